"""Attention with linear biases (ALiBi), the mask inside the bias."""

import numpy as np

INPUT_SPECS = {"q": ((8, 128, 64), "float32"), "k": ((8, 128, 64), "float32"), "v": ((8, 128, 64), "float32")}
TOLERANCE = 2e-5


def reference(q, k, v):
    h, t, d = q.shape
    slopes = np.array([2 ** (-(i + 1)) for i in range(h)])
    pos = np.arange(t)
    bias = -slopes[:, None, None] * np.abs(pos[:, None] - pos[None, :])
    bias = bias + np.triu(np.full((t, t), -1e9), 1)
    s = np.einsum("hqd,hkd->hqk", q, k) / np.sqrt(d) + bias
    s -= s.max(-1, keepdims=True)
    p = np.exp(s)
    p /= p.sum(-1, keepdims=True)
    return np.einsum("hqk,hkd->hqd", p, v)
