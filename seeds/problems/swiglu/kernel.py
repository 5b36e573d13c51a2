"""out = (silu(x @ w_gate) * (x @ w_up)) @ w_down, one tile of rows after the other."""

import nki
import nki.isa as nisa
import nki.language as nl

TILE_M = 128  # rows of x and of the output: partitions
TILE_P = 128  # contraction: partitions of both matmul operands
TILE_F = 512  # columns of a product: one PSUM bank of float32


@nki.jit
def swiglu(x, w_up, w_down, w_gate):
    m, k = x.shape
    n = w_up.shape[1]
    out = nl.ndarray((m, k), dtype=x.dtype, buffer=nl.shared_hbm)

    for i_m in nl.affine_range(m // TILE_M):
        x_tile = nl.ndarray((TILE_M, k), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=x_tile, src=x[i_m * TILE_M : (i_m + 1) * TILE_M, 0:k])
        # The tensor engine contracts over partitions, so the rows of x are needed transposed.
        x_t = nl.ndarray((TILE_P, k // TILE_P, TILE_M), dtype=x.dtype, buffer=nl.sbuf)
        for i_k in nl.affine_range(k // TILE_P):
            x_t_psum = nl.ndarray((TILE_P, TILE_M), dtype=x.dtype, buffer=nl.psum)
            nisa.nc_transpose(dst=x_t_psum, data=x_tile[:, i_k * TILE_P : (i_k + 1) * TILE_P])
            nisa.tensor_copy(dst=x_t[:, i_k, :], src=x_t_psum)
        hidden = nl.ndarray((TILE_M, n), dtype=x.dtype, buffer=nl.sbuf)
        for i_n in nl.affine_range(n // TILE_F):
            gate = nl.ndarray((TILE_M, TILE_F), dtype=nl.float32, buffer=nl.psum)
            up = nl.ndarray((TILE_M, TILE_F), dtype=nl.float32, buffer=nl.psum)
            for i_k in nl.affine_range(k // TILE_P):
                w_gate_tile = nl.ndarray((TILE_P, TILE_F), dtype=w_gate.dtype, buffer=nl.sbuf)
                nisa.dma_copy(
                    dst=w_gate_tile,
                    src=w_gate[i_k * TILE_P : (i_k + 1) * TILE_P, i_n * TILE_F : (i_n + 1) * TILE_F],
                )
                nisa.nc_matmul(dst=gate, stationary=x_t[:, i_k, :], moving=w_gate_tile)
                w_up_tile = nl.ndarray((TILE_P, TILE_F), dtype=w_up.dtype, buffer=nl.sbuf)
                nisa.dma_copy(
                    dst=w_up_tile,
                    src=w_up[i_k * TILE_P : (i_k + 1) * TILE_P, i_n * TILE_F : (i_n + 1) * TILE_F],
                )
                nisa.nc_matmul(dst=up, stationary=x_t[:, i_k, :], moving=w_up_tile)
            # The sums are too large to spell silu out: exp(-gate) would overflow.
            silu = nl.ndarray((TILE_M, TILE_F), dtype=nl.float32, buffer=nl.sbuf)
            nisa.activation(dst=silu, op=nl.silu, data=gate)
            nisa.tensor_tensor(
                dst=hidden[:, i_n * TILE_F : (i_n + 1) * TILE_F], data1=silu, data2=up, op=nl.multiply
            )

        # The second product contracts over n.
        hidden_t = nl.ndarray((TILE_P, n // TILE_P, TILE_M), dtype=x.dtype, buffer=nl.sbuf)
        for i_n in nl.affine_range(n // TILE_P):
            hidden_t_psum = nl.ndarray((TILE_P, TILE_M), dtype=x.dtype, buffer=nl.psum)
            nisa.nc_transpose(dst=hidden_t_psum, data=hidden[:, i_n * TILE_P : (i_n + 1) * TILE_P])
            nisa.tensor_copy(dst=hidden_t[:, i_n, :], src=hidden_t_psum)

        for i_k in nl.affine_range(k // TILE_F):
            acc = nl.ndarray((TILE_M, TILE_F), dtype=nl.float32, buffer=nl.psum)
            for i_n in nl.affine_range(n // TILE_P):
                w_down_tile = nl.ndarray((TILE_P, TILE_F), dtype=w_down.dtype, buffer=nl.sbuf)
                nisa.dma_copy(
                    dst=w_down_tile,
                    src=w_down[i_n * TILE_P : (i_n + 1) * TILE_P, i_k * TILE_F : (i_k + 1) * TILE_F],
                )
                nisa.nc_matmul(dst=acc, stationary=hidden_t[:, i_n, :], moving=w_down_tile)
            out_tile = nl.ndarray((TILE_M, TILE_F), dtype=out.dtype, buffer=nl.sbuf)
            nisa.tensor_copy(dst=out_tile, src=acc)
            nisa.dma_copy(
                dst=out[i_m * TILE_M : (i_m + 1) * TILE_M, i_k * TILE_F : (i_k + 1) * TILE_F], src=out_tile
            )
    return out
