"""The kernel that optimisation starts from: correct and plain. It may import nki, numpy and math."""

import nki
import nki.isa as nisa
import nki.language as nl

TILE_M = 128  # rows of a tile: partitions
TILE_N = 1024  # columns of a tile


@nki.jit
def example(x, bias, alpha):
    m, n = x.shape
    out = nl.ndarray((m, n), dtype=x.dtype, buffer=nl.shared_hbm)

    for i_m in nl.affine_range(m // TILE_M):
        bias_tile = nl.ndarray((TILE_M, 1), dtype=bias.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=bias_tile, src=bias.reshape((m, 1))[i_m * TILE_M : (i_m + 1) * TILE_M, 0:1])
        for i_n in nl.affine_range(n // TILE_N):
            x_tile = nl.ndarray((TILE_M, TILE_N), dtype=x.dtype, buffer=nl.sbuf)
            nisa.dma_copy(
                dst=x_tile,
                src=x[i_m * TILE_M : (i_m + 1) * TILE_M, i_n * TILE_N : (i_n + 1) * TILE_N],
            )
            out_tile = nl.ndarray((TILE_M, TILE_N), dtype=out.dtype, buffer=nl.sbuf)
            nisa.tensor_scalar(
                dst=out_tile, data=x_tile, op0=nl.multiply, operand0=alpha, op1=nl.add, operand1=bias_tile
            )
            nisa.dma_copy(
                dst=out[i_m * TILE_M : (i_m + 1) * TILE_M, i_n * TILE_N : (i_n + 1) * TILE_N],
                src=out_tile,
            )
    return out
