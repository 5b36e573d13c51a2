"""out = x / (1 + exp(-x)) in two passes: the sigmoid of everything first, then the products."""

import nki
import nki.isa as nisa
import nki.language as nl

TILE_M = 128  # rows of a tile: partitions
TILE_N = 1024  # columns of a tile


@nki.jit
def silu(x):
    m, n = x.shape
    out = nl.ndarray((m, n), dtype=x.dtype, buffer=nl.shared_hbm)
    sigmoids = nl.ndarray((m, n), dtype=nl.float32, buffer=nl.hbm)

    for i_m in nl.affine_range(m // TILE_M):
        for i_n in nl.affine_range(n // TILE_N):
            x_tile = nl.ndarray((TILE_M, TILE_N), dtype=x.dtype, buffer=nl.sbuf)
            nisa.dma_copy(
                dst=x_tile, src=x[i_m * TILE_M : (i_m + 1) * TILE_M, i_n * TILE_N : (i_n + 1) * TILE_N]
            )
            sigmoid = nl.ndarray((TILE_M, TILE_N), dtype=nl.float32, buffer=nl.sbuf)
            nisa.activation(dst=sigmoid, op=nl.sigmoid, data=x_tile)
            nisa.dma_copy(
                dst=sigmoids[i_m * TILE_M : (i_m + 1) * TILE_M, i_n * TILE_N : (i_n + 1) * TILE_N],
                src=sigmoid,
            )

    for i_m in nl.affine_range(m // TILE_M):
        for i_n in nl.affine_range(n // TILE_N):
            x_tile = nl.ndarray((TILE_M, TILE_N), dtype=x.dtype, buffer=nl.sbuf)
            nisa.dma_copy(
                dst=x_tile, src=x[i_m * TILE_M : (i_m + 1) * TILE_M, i_n * TILE_N : (i_n + 1) * TILE_N]
            )
            sigmoid = nl.ndarray((TILE_M, TILE_N), dtype=nl.float32, buffer=nl.sbuf)
            nisa.dma_copy(
                dst=sigmoid,
                src=sigmoids[i_m * TILE_M : (i_m + 1) * TILE_M, i_n * TILE_N : (i_n + 1) * TILE_N],
            )
            out_tile = nl.ndarray((TILE_M, TILE_N), dtype=out.dtype, buffer=nl.sbuf)
            nisa.tensor_tensor(dst=out_tile, data1=x_tile, data2=sigmoid, op=nl.multiply)
            nisa.dma_copy(
                dst=out[i_m * TILE_M : (i_m + 1) * TILE_M, i_n * TILE_N : (i_n + 1) * TILE_N], src=out_tile
            )
    return out
