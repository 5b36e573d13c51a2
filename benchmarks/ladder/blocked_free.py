"""out = lhs_t.T @ rhs, third rung: blocks of output tiles share what they load of both operands."""

import nki
import nki.isa as nisa
import nki.language as nl

TILE_M = 128  # rows of the output tile: columns of the stationary operand
TILE_K = 128  # contraction: partitions of both operands
TILE_N = 512  # columns of the output tile: one PSUM bank of float32
BLOCK_M = 256  # rows of a block of output tiles
BLOCK_N = 1024  # columns of a block of output tiles


@nki.jit
def matmul(lhs_t, rhs):
    k, m = lhs_t.shape
    n = rhs.shape[1]
    out = nl.ndarray((m, n), dtype=lhs_t.dtype, buffer=nl.shared_hbm)

    for i_m in nl.affine_range(m // BLOCK_M):
        lhs_tiles = nl.ndarray((TILE_K, k // TILE_K, BLOCK_M), dtype=lhs_t.dtype, buffer=nl.sbuf)
        for i_k in nl.affine_range(k // TILE_K):
            nisa.dma_copy(
                dst=lhs_tiles[:, i_k, :],
                src=lhs_t[i_k * TILE_K : (i_k + 1) * TILE_K, i_m * BLOCK_M : (i_m + 1) * BLOCK_M],
            )

        for i_n in nl.affine_range(n // BLOCK_N):
            rhs_tiles = nl.ndarray((TILE_K, k // TILE_K, BLOCK_N), dtype=rhs.dtype, buffer=nl.sbuf)
            for i_k in nl.affine_range(k // TILE_K):
                nisa.dma_copy(
                    dst=rhs_tiles[:, i_k, :],
                    src=rhs[i_k * TILE_K : (i_k + 1) * TILE_K, i_n * BLOCK_N : (i_n + 1) * BLOCK_N],
                )

            for j_m in nl.affine_range(BLOCK_M // TILE_M):
                for j_n in nl.affine_range(BLOCK_N // TILE_N):
                    acc = nl.ndarray((TILE_M, TILE_N), dtype=nl.float32, buffer=nl.psum)
                    for i_k in nl.affine_range(k // TILE_K):
                        nisa.nc_matmul(
                            dst=acc,
                            stationary=lhs_tiles[:, i_k, j_m * TILE_M : (j_m + 1) * TILE_M],
                            moving=rhs_tiles[:, i_k, j_n * TILE_N : (j_n + 1) * TILE_N],
                        )
                    out_tile = nl.ndarray((TILE_M, TILE_N), dtype=out.dtype, buffer=nl.sbuf)
                    nisa.tensor_copy(dst=out_tile, src=acc)
                    row = i_m * BLOCK_M + j_m * TILE_M
                    column = i_n * BLOCK_N + j_n * TILE_N
                    nisa.dma_copy(dst=out[row : row + TILE_M, column : column + TILE_N], src=out_tile)
    return out
