"""A port of older code: three passes with scores and weights in HBM between them."""

import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def attention_fwd(q_t, k_t, v, mask):
    d, s = q_t.shape
    out = nl.ndarray((s, d), dtype=nl.float32, buffer=nl.shared_hbm)
    scores = nl.ndarray((s, s), dtype=nl.float32, buffer=nl.private_hbm)
    weights = nl.ndarray((s, s), dtype=nl.float32, buffer=nl.private_hbm)
    for i in nl.affine_range(s // 128):
        for j in nl.affine_range(s // 128):
            acc = nl.ndarray((128, 128), dtype=nl.float32, buffer=nl.psum)
            left = nl.load(q_t[:, i * 128 : (i + 1) * 128])
            right = nl.load(k_t[:, j * 128 : (j + 1) * 128])
            nisa.nc_matmul(dst=acc, stationary=left, moving=right)
            tile = nl.ndarray((128, 128), dtype=nl.float32, buffer=nl.sbuf)
            nisa.activation(dst=tile, op=nl.copy, data=acc, scale=0.125)
            nl.store(scores[i * 128 : (i + 1) * 128, j * 128 : (j + 1) * 128], value=tile)
    for i in nl.affine_range(s // 64):
        rows = nl.load(scores[i * 64 : (i + 1) * 64, :])
        added = nl.add(rows, nl.load(mask[i * 64 : (i + 1) * 64, :]))
        peak = nl.ndarray((64, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_reduce(dst=peak, op=nl.maximum, data=added, axis=1, negate=True)
        exps = nl.ndarray((64, s), dtype=nl.float32, buffer=nl.sbuf)
        total = nl.ndarray((64, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.activation_reduce(dst=exps, op=nl.exp, data=added, bias=peak, reduce_op=nl.add, reduce_res=total)
        nisa.reciprocal(dst=total, data=total)
        nisa.tensor_scalar(dst=exps, data=exps, op0=nl.multiply, operand0=total)
        nl.store(weights[i * 64 : (i + 1) * 64, :], value=exps)
    for i in nl.affine_range(s // 128):
        acc = nl.ndarray((128, d), dtype=nl.float32, buffer=nl.psum)
        for j in nl.affine_range(s // 128):
            block = nl.load(weights[i * 128 : (i + 1) * 128, j * 128 : (j + 1) * 128])
            turned = nl.ndarray((128, 128), dtype=nl.float32, buffer=nl.psum)
            nisa.nc_transpose(dst=turned, data=block)
            kept = nl.ndarray((128, 128), dtype=nl.float32, buffer=nl.sbuf)
            nisa.tensor_copy(dst=kept, src=turned)
            nisa.nc_matmul(dst=acc, stationary=kept, moving=nl.load(v[j * 128 : (j + 1) * 128, :]))
        done = nl.ndarray((128, d), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_copy(dst=done, src=acc)
        nl.store(out[i * 128 : (i + 1) * 128, :], value=done)
    return out
