"""Rotary embedding on interleaved pairs of queries and keys, then their scores."""

import numpy as np

INPUT_SPECS = {
    "q": ((4, 128, 64), "float32"),
    "k": ((4, 128, 64), "float32"),
}
TOLERANCE = 2e-5


def rotate(x):
    t, d = x.shape[-2:]
    freq = 1.0 / 10000 ** (np.arange(0, d, 2) / d)
    ang = np.arange(t)[:, None] * freq[None, :]
    cos, sin = np.cos(ang), np.sin(ang)
    out = np.empty_like(x)
    out[..., 0::2] = x[..., 0::2] * cos - x[..., 1::2] * sin
    out[..., 1::2] = x[..., 0::2] * sin + x[..., 1::2] * cos
    return out


def reference(q, k):
    return np.einsum("htd,hsd->hts", rotate(q), rotate(k)) * 0.125
