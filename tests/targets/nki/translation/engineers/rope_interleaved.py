"""rope interleaved."""

import numpy as np

INPUT_SPECS = {"x": ((8, 256, 64), "float32")}
TOLERANCE = 2e-5


def reference(x):
    t, d = x.shape[1:]
    freq = 1.0 / 10000.0 ** (np.arange(0, d, 2) / d)
    ang = np.arange(t)[:, None] * freq[None, :]
    c, s = np.cos(ang).astype(x.dtype), np.sin(ang).astype(x.dtype)
    x0, x1 = x[..., 0::2], x[..., 1::2]
    out = np.empty_like(x)
    out[..., 0::2] = x0 * c - x1 * s
    out[..., 1::2] = x0 * s + x1 * c
    return out
