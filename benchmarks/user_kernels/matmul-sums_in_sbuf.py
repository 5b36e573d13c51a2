"""out = lhs @ rhs, tile by tile: each product is copied to SBUF and added there to its output tile."""

import nki
import nki.isa as nisa
import nki.language as nl

TILE_M = 128  # rows of the output tile: partitions of the accumulator
TILE_K = 128  # contraction: partitions of both matmul operands
TILE_N = 512  # columns of the output tile: one PSUM bank of float32


@nki.jit
def matmul(lhs, rhs):
    m, k = lhs.shape
    n = rhs.shape[1]
    out = nl.ndarray((m, n), dtype=lhs.dtype, buffer=nl.shared_hbm)

    for i_m in nl.affine_range(m // TILE_M):
        # The tensor engine contracts over partitions, so the rows of lhs are needed transposed.
        lhs_t = nl.ndarray((TILE_K, k // TILE_K, TILE_M), dtype=lhs.dtype, buffer=nl.sbuf)
        for i_k in nl.affine_range(k // TILE_K):
            lhs_tile = nl.ndarray((TILE_M, TILE_K), dtype=lhs.dtype, buffer=nl.sbuf)
            nisa.dma_copy(
                dst=lhs_tile,
                src=lhs[i_m * TILE_M : (i_m + 1) * TILE_M, i_k * TILE_K : (i_k + 1) * TILE_K],
            )
            lhs_t_psum = nl.ndarray((TILE_K, TILE_M), dtype=lhs.dtype, buffer=nl.psum)
            nisa.nc_transpose(dst=lhs_t_psum, data=lhs_tile)
            nisa.tensor_copy(dst=lhs_t[:, i_k, :], src=lhs_t_psum)

        for i_n in nl.affine_range(n // TILE_N):
            out_tile = nl.ndarray((TILE_M, TILE_N), dtype=nl.float32, buffer=nl.sbuf)
            nisa.memset(dst=out_tile, value=0.0)
            for i_k in nl.sequential_range(k // TILE_K):
                rhs_tile = nl.ndarray((TILE_K, TILE_N), dtype=rhs.dtype, buffer=nl.sbuf)
                nisa.dma_copy(
                    dst=rhs_tile,
                    src=rhs[i_k * TILE_K : (i_k + 1) * TILE_K, i_n * TILE_N : (i_n + 1) * TILE_N],
                )
                acc = nl.ndarray((TILE_M, TILE_N), dtype=nl.float32, buffer=nl.psum)
                nisa.nc_matmul(dst=acc, stationary=lhs_t[:, i_k, :], moving=rhs_tile)
                product = nl.ndarray((TILE_M, TILE_N), dtype=nl.float32, buffer=nl.sbuf)
                nisa.tensor_copy(dst=product, src=acc)
                nisa.tensor_tensor(dst=out_tile, data1=out_tile, data2=product, op=nl.add)
            nisa.dma_copy(
                dst=out[i_m * TILE_M : (i_m + 1) * TILE_M, i_n * TILE_N : (i_n + 1) * TILE_N],
                src=out_tile,
            )
    return out
