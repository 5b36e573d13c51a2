"""A correct kernel of silu with clutter: unused names, a loop of one iteration, sums of numbers."""

CLUTTERED = """import nki
import nki.isa as nisa
import nki.language as nl

SPARE = 12


@nki.jit
def silu(x):
    rows, columns = x.shape
    out = nl.ndarray((256, 2048), dtype=x.dtype, buffer=nl.shared_hbm)
    for i in nl.affine_range(2 * 1):
        for j in nl.affine_range(1):
            tile = nl.ndarray((128, 2048), dtype=nl.float32, buffer=nl.sbuf)
            nisa.dma_copy(dst=tile, src=x[i * 128 : i * 128 + 64 + 64, :])
            result = nl.ndarray((128, 2048), dtype=nl.float32, buffer=nl.sbuf)
            nisa.activation(dst=result, op=nl.exp, data=tile, scale=-1.0)
            nisa.tensor_scalar(dst=result, data=result, op0=nl.add, operand0=1.0)
            nisa.reciprocal(dst=result, data=result)
            nisa.tensor_tensor(dst=result, data1=result, data2=tile, op=nl.multiply)
            nisa.dma_copy(dst=out[i * 128 : i * 128 + 128, :], src=result)
    return out
"""
