"""out = softmax(q @ k.T / sqrt(d)) @ v for each query head: SBUF collects the rows of v, weighted, tile by tile."""

import nki
import nki.isa as nisa
import nki.language as nl

TILE_Q = 128  # queries of a tile: partitions of scores and outputs
TILE_K = 128  # keys of a tile where they are on partitions: transposes and the product with v
TILE_S = 512  # keys of a tile of scores: one PSUM bank of float32


@nki.jit
def gqa_full(q, k, v):
    batch, n, q_heads, d = q.shape
    k_heads = k.shape[2]
    group = q_heads // k_heads
    out = nl.ndarray((batch, q_heads, n, d), dtype=q.dtype, buffer=nl.shared_hbm)
    for i_b in nl.affine_range(batch):
        for i_kh in nl.affine_range(k_heads):
            # q @ k.T contracts over d and the product with v over keys: these are to be on partitions.
            k_t = nl.ndarray((d, n), dtype=k.dtype, buffer=nl.sbuf)
            v_tiles = nl.ndarray((TILE_K, n // TILE_K, d), dtype=v.dtype, buffer=nl.sbuf)
            for i_k in nl.affine_range(n // TILE_K):
                k_tile = nl.ndarray((TILE_K, d), dtype=k.dtype, buffer=nl.sbuf)
                nisa.dma_copy(dst=k_tile, src=k[i_b, i_k * TILE_K : (i_k + 1) * TILE_K, i_kh, 0:d])
                k_t_psum = nl.ndarray((d, TILE_K), dtype=k.dtype, buffer=nl.psum)
                nisa.nc_transpose(dst=k_t_psum, data=k_tile)
                nisa.tensor_copy(dst=k_t[:, i_k * TILE_K : (i_k + 1) * TILE_K], src=k_t_psum)
                nisa.dma_copy(
                    dst=v_tiles[:, i_k, :], src=v[i_b, i_k * TILE_K : (i_k + 1) * TILE_K, i_kh, 0:d]
                )
            for i_g in nl.affine_range(group):
                head = i_kh * group + i_g
                for i_q in nl.affine_range(n // TILE_Q):
                    q_tile = nl.ndarray((TILE_Q, d), dtype=q.dtype, buffer=nl.sbuf)
                    nisa.dma_copy(dst=q_tile, src=q[i_b, i_q * TILE_Q : (i_q + 1) * TILE_Q, head, 0:d])
                    q_t_psum = nl.ndarray((d, TILE_Q), dtype=q.dtype, buffer=nl.psum)
                    nisa.nc_transpose(dst=q_t_psum, data=q_tile)
                    q_t = nl.ndarray((d, TILE_Q), dtype=q.dtype, buffer=nl.sbuf)
                    nisa.tensor_scalar(dst=q_t, data=q_t_psum, op0=nl.multiply, operand0=d**-0.5)
                    scores = nl.ndarray((TILE_Q, n), dtype=nl.float32, buffer=nl.sbuf)
                    for i_s in nl.affine_range(n // TILE_S):
                        scores_psum = nl.ndarray((TILE_Q, TILE_S), dtype=nl.float32, buffer=nl.psum)
                        nisa.nc_matmul(
                            dst=scores_psum, stationary=q_t, moving=k_t[:, i_s * TILE_S : (i_s + 1) * TILE_S]
                        )
                        nisa.tensor_copy(dst=scores[:, i_s * TILE_S : (i_s + 1) * TILE_S], src=scores_psum)
                    neg_max = nl.ndarray((TILE_Q, 1), dtype=nl.float32, buffer=nl.sbuf)
                    nisa.tensor_reduce(dst=neg_max, op=nl.maximum, data=scores, axis=1, negate=True)
                    exps = nl.ndarray((TILE_Q, n), dtype=nl.float32, buffer=nl.sbuf)
                    nisa.activation(dst=exps, op=nl.exp, data=scores, bias=neg_max)
                    total = nl.ndarray((TILE_Q, 1), dtype=nl.float32, buffer=nl.sbuf)
                    nisa.tensor_reduce(dst=total, op=nl.add, data=exps, axis=1)
                    inv_total = nl.ndarray((TILE_Q, 1), dtype=nl.float32, buffer=nl.sbuf)
                    nisa.reciprocal(dst=inv_total, data=total)
                    weighted = nl.ndarray((TILE_Q, d), dtype=nl.float32, buffer=nl.sbuf)
                    nisa.memset(dst=weighted, value=0.0)
                    for i_k in nl.affine_range(n // TILE_K):
                        exps_t_psum = nl.ndarray((TILE_K, TILE_Q), dtype=nl.float32, buffer=nl.psum)
                        nisa.nc_transpose(dst=exps_t_psum, data=exps[:, i_k * TILE_K : (i_k + 1) * TILE_K])
                        exps_t = nl.ndarray((TILE_K, TILE_Q), dtype=nl.float32, buffer=nl.sbuf)
                        nisa.tensor_copy(dst=exps_t, src=exps_t_psum)
                        part = nl.ndarray((TILE_Q, d), dtype=nl.float32, buffer=nl.psum)
                        nisa.nc_matmul(dst=part, stationary=exps_t, moving=v_tiles[:, i_k, :])
                        nisa.tensor_tensor(dst=weighted, data1=weighted, data2=part, op=nl.add)
                    # The sum of a row divides all of it alike: d outputs are fewer than n probabilities.
                    out_tile = nl.ndarray((TILE_Q, d), dtype=out.dtype, buffer=nl.sbuf)
                    nisa.tensor_scalar(dst=out_tile, data=weighted, op0=nl.multiply, operand0=inv_total)
                    nisa.dma_copy(dst=out[i_b, head, i_q * TILE_Q : (i_q + 1) * TILE_Q, 0:d], src=out_tile)
    return out
