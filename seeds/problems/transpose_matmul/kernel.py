"""out = lhs.T @ rhs, tile by tile."""

import nki
import nki.isa as nisa
import nki.language as nl

TILE_M = 128  # rows of the output tile: partitions of the accumulator
TILE_K = 128  # contraction: partitions of both matmul operands
TILE_N = 512  # columns of the output tile: one PSUM bank of float32


@nki.jit
def transpose_matmul(lhs, rhs):
    k, m = lhs.shape
    n = rhs.shape[1]
    out = nl.ndarray((m, n), dtype=lhs.dtype, buffer=nl.shared_hbm)

    for i_m in nl.affine_range(m // TILE_M):
        # The tensor engine contracts over partitions, so lhs is needed just as it lies in HBM.
        lhs_tiles = nl.ndarray((TILE_K, k // TILE_K, TILE_M), dtype=lhs.dtype, buffer=nl.sbuf)
        for i_k in nl.affine_range(k // TILE_K):
            nisa.dma_copy(
                dst=lhs_tiles[:, i_k, :],
                src=lhs[i_k * TILE_K : (i_k + 1) * TILE_K, i_m * TILE_M : (i_m + 1) * TILE_M],
            )

        for i_n in nl.affine_range((n + TILE_N - 1) // TILE_N):
            start = i_n * TILE_N
            end = min(start + TILE_N, n)  # the last tile may have fewer columns
            acc = nl.ndarray((TILE_M, end - start), dtype=nl.float32, buffer=nl.psum)
            for i_k in nl.affine_range(k // TILE_K):
                rhs_tile = nl.ndarray((TILE_K, end - start), dtype=rhs.dtype, buffer=nl.sbuf)
                nisa.dma_copy(dst=rhs_tile, src=rhs[i_k * TILE_K : (i_k + 1) * TILE_K, start:end])
                nisa.nc_matmul(dst=acc, stationary=lhs_tiles[:, i_k, :], moving=rhs_tile)

            out_tile = nl.ndarray((TILE_M, end - start), dtype=out.dtype, buffer=nl.sbuf)
            nisa.tensor_copy(dst=out_tile, src=acc)
            nisa.dma_copy(dst=out[i_m * TILE_M : (i_m + 1) * TILE_M, start:end], src=out_tile)
    return out
