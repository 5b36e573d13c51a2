"""out = y / sqrt(mean(y * y, axis=1) + 1e-5) * g with y = x @ w + z, one tile of rows after the other."""

import nki
import nki.isa as nisa
import nki.language as nl

TILE_M = 128  # rows of the output tile: partitions
TILE_K = 128  # contraction: partitions of both matmul operands
TILE_N = 512  # columns of a product: one PSUM bank of float32

EPSILON = 1e-5


@nki.jit
def matmul_add_rmsnorm(x, w, z, g):
    m, k = x.shape
    n = w.shape[1]
    out = nl.ndarray((m, n), dtype=x.dtype, buffer=nl.shared_hbm)

    # g belongs to columns, so every partition needs all of it.
    g_tile = nl.ndarray((TILE_M, n), dtype=g.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=g_tile, src=g.reshape((1, n)).broadcast(0, TILE_M))

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

        y = nl.ndarray((TILE_M, n), dtype=nl.float32, buffer=nl.sbuf)
        for i_n in nl.affine_range(n // TILE_N):
            acc = nl.ndarray((TILE_M, TILE_N), dtype=nl.float32, buffer=nl.psum)
            for i_k in nl.affine_range(k // TILE_K):
                w_tile = nl.ndarray((TILE_K, TILE_N), dtype=w.dtype, buffer=nl.sbuf)
                nisa.dma_copy(
                    dst=w_tile, src=w[i_k * TILE_K : (i_k + 1) * TILE_K, i_n * TILE_N : (i_n + 1) * TILE_N]
                )
                nisa.nc_matmul(dst=acc, stationary=x_t[:, i_k, :], moving=w_tile)

            z_tile = nl.ndarray((TILE_M, TILE_N), dtype=z.dtype, buffer=nl.sbuf)
            nisa.dma_copy(
                dst=z_tile, src=z[i_m * TILE_M : (i_m + 1) * TILE_M, i_n * TILE_N : (i_n + 1) * TILE_N]
            )
            nisa.tensor_tensor(
                dst=y[:, i_n * TILE_N : (i_n + 1) * TILE_N], data1=acc, data2=z_tile, op=nl.add
            )

        squares = nl.ndarray((TILE_M, n), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_tensor(dst=squares, data1=y, data2=y, op=nl.multiply)
        total = nl.ndarray((TILE_M, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_reduce(dst=total, op=nl.add, data=squares, axis=1)
        mean = nl.ndarray((TILE_M, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_scalar(
            dst=mean, data=total, op0=nl.multiply, operand0=1.0 / n, op1=nl.add, operand1=EPSILON
        )
        inv_rms = nl.ndarray((TILE_M, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.activation(dst=inv_rms, op=nl.rsqrt, data=mean)
        normed = nl.ndarray((TILE_M, n), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_scalar(dst=normed, data=y, op0=nl.multiply, operand0=inv_rms)
        out_tile = nl.ndarray((TILE_M, n), dtype=out.dtype, buffer=nl.sbuf)
        nisa.tensor_tensor(dst=out_tile, data1=normed, data2=g_tile, op=nl.multiply)
        nisa.dma_copy(dst=out[i_m * TILE_M : (i_m + 1) * TILE_M, 0:n], src=out_tile)
    return out
