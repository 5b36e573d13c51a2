"""Attention in windows of 64 positions with an additive bias."""

import numpy as np

INPUT_SPECS = {
    "q": ((4, 512, 64), "float32"),
    "k": ((4, 512, 64), "float32"),
    "v": ((4, 512, 64), "float32"),
    "bias": ((64, 64), "float32"),
}


def reference(q, k, v, bias):
    b, t, d = q.shape
    w = 64
    q, k, v = (a.reshape(b, t // w, w, d) for a in (q, k, v))
    s = q @ np.swapaxes(k, -1, -2) / np.sqrt(d) + bias
    s -= s.max(-1, keepdims=True)
    p = np.exp(s)
    o = (p @ v) / p.sum(-1, keepdims=True)
    return o.reshape(b, t, d)
