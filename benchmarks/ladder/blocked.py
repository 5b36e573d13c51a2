"""out = lhs_t.T @ rhs, last rung: blocks in all three dimensions; SBUF holds the sums of a block of columns."""

import nki
import nki.isa as nisa
import nki.language as nl

TILE_M = 128  # rows of the output tile: columns of the stationary operand
TILE_K = 128  # contraction: partitions of both operands
TILE_N = 512  # columns of the output tile: one PSUM bank of float32
BLOCK_M = 1024  # rows of a block of output tiles
BLOCK_K = 1024  # contraction within PSUM; blocks are added up in SBUF
BLOCK_N = 1024  # columns of a block of output tiles


@nki.jit
def matmul(lhs_t, rhs):
    k, m = lhs_t.shape
    n = rhs.shape[1]
    out = nl.ndarray((m, n), dtype=lhs_t.dtype, buffer=nl.shared_hbm)

    for i_n in nl.affine_range(n // BLOCK_N):
        sums = nl.ndarray((TILE_M, m // TILE_M, BLOCK_N), dtype=nl.float32, buffer=nl.sbuf)
        nisa.memset(dst=sums, value=0.0)

        for i_k in nl.sequential_range(k // BLOCK_K):
            rhs_tiles = nl.ndarray((TILE_K, BLOCK_K // TILE_K, BLOCK_N), dtype=rhs.dtype, buffer=nl.sbuf)
            for j_k in nl.affine_range(BLOCK_K // TILE_K):
                row = i_k * BLOCK_K + j_k * TILE_K
                nisa.dma_copy(
                    dst=rhs_tiles[:, j_k, :],
                    src=rhs[row : row + TILE_K, i_n * BLOCK_N : (i_n + 1) * BLOCK_N],
                )

            for i_m in nl.affine_range(m // BLOCK_M):
                lhs_tiles = nl.ndarray(
                    (TILE_K, BLOCK_K // TILE_K, BLOCK_M), dtype=lhs_t.dtype, buffer=nl.sbuf
                )
                for j_k in nl.affine_range(BLOCK_K // TILE_K):
                    row = i_k * BLOCK_K + j_k * TILE_K
                    nisa.dma_copy(
                        dst=lhs_tiles[:, j_k, :],
                        src=lhs_t[row : row + TILE_K, i_m * BLOCK_M : (i_m + 1) * BLOCK_M],
                    )

                for j_m in nl.affine_range(BLOCK_M // TILE_M):
                    tile = i_m * (BLOCK_M // TILE_M) + j_m
                    for j_n in nl.affine_range(BLOCK_N // TILE_N):
                        acc = nl.ndarray((TILE_M, TILE_N), dtype=nl.float32, buffer=nl.psum)
                        for j_k in nl.affine_range(BLOCK_K // TILE_K):
                            nisa.nc_matmul(
                                dst=acc,
                                stationary=lhs_tiles[:, j_k, j_m * TILE_M : (j_m + 1) * TILE_M],
                                moving=rhs_tiles[:, j_k, j_n * TILE_N : (j_n + 1) * TILE_N],
                            )
                        part = sums[:, tile, j_n * TILE_N : (j_n + 1) * TILE_N]
                        nisa.tensor_tensor(dst=part, data1=part, data2=acc, op=nl.add)

        for j_m in nl.affine_range(m // TILE_M):
            out_tile = nl.ndarray((TILE_M, BLOCK_N), dtype=out.dtype, buffer=nl.sbuf)
            nisa.tensor_copy(dst=out_tile, src=sums[:, j_m, :])
            nisa.dma_copy(
                dst=out[j_m * TILE_M : (j_m + 1) * TILE_M, i_n * BLOCK_N : (i_n + 1) * BLOCK_N], src=out_tile
            )
    return out
