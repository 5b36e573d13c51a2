"""As a tutorial writes it: everything loaded first, then one block of queries after the other."""

import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def attention(q_t, k_t, v, mask):
    depth, length = q_t.shape
    out = nl.ndarray((length, depth), dtype=nl.float32, buffer=nl.shared_hbm)
    queries, keys = nl.load(q_t), nl.load(k_t)
    for i in nl.affine_range(length // 128):
        scores = nl.ndarray((128, length), dtype=nl.float32, buffer=nl.psum)
        nisa.nc_matmul(dst=scores, stationary=queries[:, i * 128 : (i + 1) * 128], moving=keys)
        scaled = nl.multiply(scores, 0.125)
        masked = nl.add(scaled, nl.load(mask[i * 128 : (i + 1) * 128, :]))
        peak = nl.max(masked, axis=1)
        weights = nl.exp(nl.subtract(masked, peak))
        total = nl.sum(weights, axis=1)
        shares = nl.multiply(weights, nl.reciprocal(total))
        result = nl.ndarray((128, depth), dtype=nl.float32, buffer=nl.psum)
        for j in nl.affine_range(length // 128):
            turned = nl.ndarray((128, 128), dtype=nl.float32, buffer=nl.psum)
            nisa.nc_transpose(dst=turned, data=shares[:, j * 128 : (j + 1) * 128])
            block = nl.copy(turned)
            values = nl.load(v[j * 128 : (j + 1) * 128, :])
            nisa.nc_matmul(dst=result, stationary=block, moving=values)
        nl.store(out[i * 128 : (i + 1) * 128, :], nl.copy(result))
    return out
