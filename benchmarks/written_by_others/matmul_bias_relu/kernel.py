"""As a tutorial writes it: three loops, both operands loaded where they are multiplied."""

import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def matmul_bias_relu(a_t, b, bias):
    k_size, m_size = a_t.shape
    n_size = b.shape[1]
    out = nl.ndarray((m_size, n_size), dtype=nl.float32, buffer=nl.shared_hbm)
    for m in nl.affine_range(m_size // 128):
        for n in nl.affine_range(n_size // 256):
            acc = nl.ndarray((128, 256), dtype=nl.float32, buffer=nl.psum)
            for k in nl.affine_range(k_size // 128):
                left = nl.load(a_t[k * 128 : (k + 1) * 128, m * 128 : (m + 1) * 128])
                right = nl.load(b[k * 128 : (k + 1) * 128, n * 256 : (n + 1) * 256])
                nisa.nc_matmul(dst=acc, stationary=left, moving=right)
            shift = nl.load(bias[:, n * 256 : (n + 1) * 256].broadcast(0, 128))
            total = nl.add(acc, shift)
            nl.store(out[m * 128 : (m + 1) * 128, n * 256 : (n + 1) * 256], nl.maximum(total, 0.0))
    return out
