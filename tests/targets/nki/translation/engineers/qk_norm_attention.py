"""qk norm attention."""

import numpy as np

INPUT_SPECS = {
    "q": ((2, 200, 64), "float32"),
    "k": ((2, 200, 64), "float32"),
    "v": ((2, 200, 64), "float32"),
    "g": ((64,), "float32"),
}
TOLERANCE = 2e-5


def l2(x):
    return x / np.sqrt((x**2).sum(-1, keepdims=True) + 1e-6)


def reference(q, k, v, g):
    s = (l2(q) * g) @ l2(k).transpose(0, 2, 1) * 10.0
    p = np.exp(s - s.max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True) @ v
