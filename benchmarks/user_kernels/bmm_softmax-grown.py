"""out[b] = softmax(lhs[b] @ rhs[b]) along rows, as it has grown: a sum kept for a check that went long ago,
exponentials once for the sum and once for the result, and a copy that somebody once needed.
"""

import nki
import nki.isa as nisa
import nki.language as nl

TILE_M = 128  # rows of the output tile: partitions
TILE_N = 512  # columns of a product: one PSUM bank of float32


@nki.jit
def bmm_softmax(lhs, rhs):
    b, m, k = lhs.shape
    n = rhs.shape[2]
    out = nl.ndarray((b, m, n), dtype=lhs.dtype, buffer=nl.shared_hbm)

    for i_b in nl.affine_range(b):
        rhs_tile = nl.ndarray((k, n), dtype=rhs.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=rhs_tile, src=rhs[i_b, 0:k, 0:n])

        for i_m in nl.affine_range(m // TILE_M):
            lhs_tile = nl.ndarray((TILE_M, k), dtype=lhs.dtype, buffer=nl.sbuf)
            nisa.dma_copy(dst=lhs_tile, src=lhs[i_b, i_m * TILE_M : (i_m + 1) * TILE_M, 0:k])
            lhs_t_psum = nl.ndarray((k, TILE_M), dtype=lhs.dtype, buffer=nl.psum)
            nisa.nc_transpose(dst=lhs_t_psum, data=lhs_tile)
            lhs_t = nl.ndarray((k, TILE_M), dtype=lhs.dtype, buffer=nl.sbuf)
            nisa.tensor_copy(dst=lhs_t, src=lhs_t_psum)

            products = nl.ndarray((TILE_M, n), dtype=nl.float32, buffer=nl.sbuf)
            for i_n in nl.affine_range(n // TILE_N):
                acc = nl.ndarray((TILE_M, TILE_N), dtype=nl.float32, buffer=nl.psum)
                nisa.nc_matmul(
                    dst=acc, stationary=lhs_t, moving=rhs_tile[:, i_n * TILE_N : (i_n + 1) * TILE_N]
                )
                nisa.tensor_copy(dst=products[:, i_n * TILE_N : (i_n + 1) * TILE_N], src=acc)
            scores = nl.ndarray((TILE_M, n), dtype=nl.float32, buffer=nl.sbuf)
            nisa.tensor_copy(dst=scores, src=products)
            checksum = nl.ndarray((TILE_M, 1), dtype=nl.float32, buffer=nl.sbuf)
            nisa.tensor_reduce(dst=checksum, op=nl.add, data=scores, axis=1)

            neg_max = nl.ndarray((TILE_M, 1), dtype=nl.float32, buffer=nl.sbuf)
            nisa.tensor_reduce(dst=neg_max, op=nl.maximum, data=scores, axis=1, negate=True)
            summands = nl.ndarray((TILE_M, n), dtype=nl.float32, buffer=nl.sbuf)
            nisa.activation(dst=summands, op=nl.exp, data=scores, bias=neg_max)
            total = nl.ndarray((TILE_M, 1), dtype=nl.float32, buffer=nl.sbuf)
            nisa.tensor_reduce(dst=total, op=nl.add, data=summands, axis=1)
            inv_total = nl.ndarray((TILE_M, 1), dtype=nl.float32, buffer=nl.sbuf)
            nisa.reciprocal(dst=inv_total, data=total)
            exps = nl.ndarray((TILE_M, n), dtype=nl.float32, buffer=nl.sbuf)
            nisa.activation(dst=exps, op=nl.exp, data=scores, bias=neg_max)
            out_tile = nl.ndarray((TILE_M, n), dtype=out.dtype, buffer=nl.sbuf)
            nisa.tensor_scalar(dst=out_tile, data=exps, op0=nl.multiply, operand0=inv_total)
            nisa.dma_copy(dst=out[i_b, i_m * TILE_M : (i_m + 1) * TILE_M, 0:n], src=out_tile)
    return out
