"""out = lhs_t.T @ rhs, second rung: a row of output tiles shares its tiles of lhs_t."""

import nki
import nki.isa as nisa
import nki.language as nl

TILE_M = 128  # rows of the output tile: columns of the stationary operand
TILE_K = 128  # contraction: partitions of both operands
TILE_N = 512  # columns of the output tile: one PSUM bank of float32


@nki.jit
def matmul(lhs_t, rhs):
    k, m = lhs_t.shape
    n = rhs.shape[1]
    out = nl.ndarray((m, n), dtype=lhs_t.dtype, buffer=nl.shared_hbm)

    for i_m in nl.affine_range(m // TILE_M):
        lhs_tiles = nl.ndarray((TILE_K, k // TILE_K, TILE_M), dtype=lhs_t.dtype, buffer=nl.sbuf)
        for i_k in nl.affine_range(k // TILE_K):
            nisa.dma_copy(
                dst=lhs_tiles[:, i_k, :],
                src=lhs_t[i_k * TILE_K : (i_k + 1) * TILE_K, i_m * TILE_M : (i_m + 1) * TILE_M],
            )

        for i_n in nl.affine_range(n // TILE_N):
            rhs_tiles = nl.ndarray((TILE_K, k // TILE_K, TILE_N), dtype=rhs.dtype, buffer=nl.sbuf)
            for i_k in nl.affine_range(k // TILE_K):
                nisa.dma_copy(
                    dst=rhs_tiles[:, i_k, :],
                    src=rhs[i_k * TILE_K : (i_k + 1) * TILE_K, i_n * TILE_N : (i_n + 1) * TILE_N],
                )
            acc = nl.ndarray((TILE_M, TILE_N), dtype=nl.float32, buffer=nl.psum)
            for i_k in nl.affine_range(k // TILE_K):
                nisa.nc_matmul(dst=acc, stationary=lhs_tiles[:, i_k, :], moving=rhs_tiles[:, i_k, :])

            out_tile = nl.ndarray((TILE_M, TILE_N), dtype=out.dtype, buffer=nl.sbuf)
            nisa.tensor_copy(dst=out_tile, src=acc)
            nisa.dma_copy(
                dst=out[i_m * TILE_M : (i_m + 1) * TILE_M, i_n * TILE_N : (i_n + 1) * TILE_N],
                src=out_tile,
            )
    return out
