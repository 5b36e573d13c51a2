"""out = (x / sqrt(mean(x * x, axis=1))) @ w: rows are normalised into HBM, and a plain product follows."""

import nki
import nki.isa as nisa
import nki.language as nl

TILE_M = 128  # rows of x: partitions while normalising
TILE_K = 128  # contraction: partitions of both matmul operands
TILE_N = 512  # columns of the output tile: one PSUM bank of float32


@nki.jit
def rmsnorm_matmul(x, w):
    m, k = x.shape
    n = w.shape[1]
    out = nl.ndarray((m, n), dtype=x.dtype, buffer=nl.shared_hbm)
    normed = nl.ndarray((m, k), dtype=x.dtype, buffer=nl.hbm)

    for i_m in nl.affine_range(m // TILE_M):
        x_tile = nl.ndarray((TILE_M, k), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=x_tile, src=x[i_m * TILE_M : (i_m + 1) * TILE_M, 0:k])
        squares = nl.ndarray((TILE_M, k), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_tensor(dst=squares, data1=x_tile, data2=x_tile, op=nl.multiply)
        total = nl.ndarray((TILE_M, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_reduce(dst=total, op=nl.add, data=squares, axis=1)
        inv_rms = nl.ndarray((TILE_M, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.activation(dst=inv_rms, op=nl.rsqrt, data=total, scale=1.0 / k)
        normed_tile = nl.ndarray((TILE_M, k), dtype=x.dtype, buffer=nl.sbuf)
        nisa.tensor_scalar(dst=normed_tile, data=x_tile, op0=nl.multiply, operand0=inv_rms)
        nisa.dma_copy(dst=normed[i_m * TILE_M : (i_m + 1) * TILE_M, 0:k], src=normed_tile)

    for i_m in nl.affine_range(m // TILE_M):
        lhs_t = nl.ndarray((TILE_K, k // TILE_K, TILE_M), dtype=x.dtype, buffer=nl.sbuf)
        for i_k in nl.affine_range(k // TILE_K):
            lhs_tile = nl.ndarray((TILE_M, TILE_K), dtype=x.dtype, buffer=nl.sbuf)
            nisa.dma_copy(
                dst=lhs_tile,
                src=normed[i_m * TILE_M : (i_m + 1) * TILE_M, i_k * TILE_K : (i_k + 1) * TILE_K],
            )
            lhs_t_psum = nl.ndarray((TILE_K, TILE_M), dtype=x.dtype, buffer=nl.psum)
            nisa.nc_transpose(dst=lhs_t_psum, data=lhs_tile)
            nisa.tensor_copy(dst=lhs_t[:, i_k, :], src=lhs_t_psum)
        for i_n in nl.affine_range(n // TILE_N):
            acc = nl.ndarray((TILE_M, TILE_N), dtype=nl.float32, buffer=nl.psum)
            for i_k in nl.affine_range(k // TILE_K):
                w_tile = nl.ndarray((TILE_K, TILE_N), dtype=w.dtype, buffer=nl.sbuf)
                nisa.dma_copy(
                    dst=w_tile,
                    src=w[i_k * TILE_K : (i_k + 1) * TILE_K, i_n * TILE_N : (i_n + 1) * TILE_N],
                )
                nisa.nc_matmul(dst=acc, stationary=lhs_t[:, i_k, :], moving=w_tile)
            out_tile = nl.ndarray((TILE_M, TILE_N), dtype=out.dtype, buffer=nl.sbuf)
            nisa.tensor_copy(dst=out_tile, src=acc)
            nisa.dma_copy(
                dst=out[i_m * TILE_M : (i_m + 1) * TILE_M, i_n * TILE_N : (i_n + 1) * TILE_N],
                src=out_tile,
            )
    return out
