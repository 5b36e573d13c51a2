"""Residual sum in place, then layer norm in place without keepdims."""

import numpy as np

INPUT_SPECS = {
    "x": ((1000, 512), "float32"),
    "r": ((1000, 512), "float32"),
    "g": ((512,), "float32"),
    "b": ((512,), "float32"),
}
TOLERANCE = 2e-5


def layer_norm(h, eps=1e-5):
    mu = h.mean(-1)
    h = h - mu[:, None]
    sd = np.sqrt((h**2).mean(-1) + eps)
    h /= sd[:, None]
    return h


def reference(x, r, g, b):
    h = x.copy()
    h += r
    out = layer_norm(h)
    out *= g
    out += b
    return out
