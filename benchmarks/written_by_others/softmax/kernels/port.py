"""A port of older code: columns in six pieces, maxima of the pieces beside one another, then a second pass."""

import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def softmax_fwd(x):
    m, n = x.shape
    y = nl.ndarray((m, n), dtype=nl.float32, buffer=nl.shared_hbm)
    width = 128
    for i in nl.affine_range(m // 128):
        rows = nl.ds(i * 128, 128)
        maxima = nl.ndarray((128, n // width), dtype=nl.float32, buffer=nl.sbuf)
        tiles = []
        for k in nl.affine_range(n // width):
            tile = nl.ndarray((128, width), dtype=nl.float32, buffer=nl.sbuf)
            nisa.dma_copy(dst=tile, src=x[rows, nl.ds(k * width, width)])
            nisa.tensor_reduce(dst=maxima[:, k : k + 1], op=nl.maximum, data=tile, axis=1)
            tiles.append(tile)
        peak = nl.ndarray((128, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_reduce(dst=peak, op=nl.maximum, data=maxima, axis=1, negate=True)
        sums = nl.ndarray((128, n // width), dtype=nl.float32, buffer=nl.sbuf)
        for k, tile in enumerate(tiles):
            nisa.activation_reduce(
                dst=tile, op=nl.exp, data=tile, bias=peak, reduce_op=nl.add, reduce_res=sums[:, k : k + 1]
            )
        total = nl.ndarray((128, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_reduce(dst=total, op=nl.add, data=sums, axis=1)
        nisa.reciprocal(dst=total, data=total)
        for k, tile in enumerate(tiles):
            nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0=total)
            nisa.dma_copy(dst=y[rows, nl.ds(k * width, width)], src=tile)
    return y
