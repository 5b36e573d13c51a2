"""out = x @ w + (x @ a) @ b, tile by tile; both products add up in one accumulator."""

import nki
import nki.isa as nisa
import nki.language as nl

TILE_M = 128  # rows of the output tile: partitions of the accumulator
TILE_K = 128  # contraction: partitions of both matmul operands
TILE_N = 512  # columns of the output tile: one PSUM bank of float32


@nki.jit
def lora(x, w, a, b):
    m, k = x.shape
    r, n = b.shape
    out = nl.ndarray((m, n), dtype=x.dtype, buffer=nl.shared_hbm)

    # a is small, of rank r: it stays on chip.
    a_tiles = nl.ndarray((TILE_K, k // TILE_K, r), dtype=a.dtype, buffer=nl.sbuf)
    for i_k in nl.affine_range(k // TILE_K):
        nisa.dma_copy(dst=a_tiles[:, i_k, :], src=a[i_k * TILE_K : (i_k + 1) * TILE_K, 0:r])

    for i_m in nl.affine_range(m // TILE_M):
        # The tensor engine contracts over partitions, so the rows of x are needed transposed.
        x_t = nl.ndarray((TILE_K, k // TILE_K, TILE_M), dtype=x.dtype, buffer=nl.sbuf)
        for i_k in nl.affine_range(k // TILE_K):
            x_tile = nl.ndarray((TILE_M, TILE_K), dtype=x.dtype, buffer=nl.sbuf)
            nisa.dma_copy(
                dst=x_tile, src=x[i_m * TILE_M : (i_m + 1) * TILE_M, i_k * TILE_K : (i_k + 1) * TILE_K]
            )
            x_t_psum = nl.ndarray((TILE_K, TILE_M), dtype=x.dtype, buffer=nl.psum)
            nisa.nc_transpose(dst=x_t_psum, data=x_tile)
            nisa.tensor_copy(dst=x_t[:, i_k, :], src=x_t_psum)

        # x @ a is needed transposed too, which is what a as the stationary operand gives.
        xa_t_psum = nl.ndarray((r, TILE_M), dtype=nl.float32, buffer=nl.psum)
        for i_k in nl.affine_range(k // TILE_K):
            nisa.nc_matmul(dst=xa_t_psum, stationary=a_tiles[:, i_k, :], moving=x_t[:, i_k, :])
        xa_t = nl.ndarray((r, TILE_M), dtype=x.dtype, buffer=nl.sbuf)
        nisa.tensor_copy(dst=xa_t, src=xa_t_psum)

        for i_n in nl.affine_range(n // TILE_N):
            acc = nl.ndarray((TILE_M, TILE_N), dtype=nl.float32, buffer=nl.psum)
            for i_k in nl.affine_range(k // TILE_K):
                w_tile = nl.ndarray((TILE_K, TILE_N), dtype=w.dtype, buffer=nl.sbuf)
                nisa.dma_copy(
                    dst=w_tile, src=w[i_k * TILE_K : (i_k + 1) * TILE_K, i_n * TILE_N : (i_n + 1) * TILE_N]
                )
                nisa.nc_matmul(dst=acc, stationary=x_t[:, i_k, :], moving=w_tile)
            b_tile = nl.ndarray((r, TILE_N), dtype=b.dtype, buffer=nl.sbuf)
            nisa.dma_copy(dst=b_tile, src=b[0:r, i_n * TILE_N : (i_n + 1) * TILE_N])
            nisa.nc_matmul(dst=acc, stationary=xa_t, moving=b_tile)

            out_tile = nl.ndarray((TILE_M, TILE_N), dtype=out.dtype, buffer=nl.sbuf)
            nisa.tensor_copy(dst=out_tile, src=acc)
            nisa.dma_copy(
                dst=out[i_m * TILE_M : (i_m + 1) * TILE_M, i_n * TILE_N : (i_n + 1) * TILE_N], src=out_tile
            )
    return out
