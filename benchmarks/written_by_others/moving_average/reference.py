"""Exponential moving average with a decay for each element."""

import numpy as np


def reference(x, a):
    x, a = x.astype(np.float64), a.astype(np.float64)
    h = np.zeros(x.shape[0])
    out = np.zeros_like(x)
    for t in range(x.shape[1]):
        h = a[:, t] * h + (1.0 - a[:, t]) * x[:, t]
        out[:, t] = h
    return out.astype(np.float32)
