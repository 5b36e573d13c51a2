"""Rotary embedding of interleaved pairs for each head, angles from positions."""

import numpy as np

INPUT_SPECS = {"x": ((2, 256, 8, 64), "float32")}
TOLERANCE = 2e-5


def reference(x):
    b, t, h, d = x.shape
    freq = 10000.0 ** (-np.arange(0, d, 2) / d)
    angle = np.arange(t)[:, None] * freq[None, :]
    c, s = np.cos(angle)[None, :, None, :], np.sin(angle)[None, :, None, :]
    pairs = x.reshape(b, t, h, d // 2, 2)
    a, bb = pairs[..., 0], pairs[..., 1]
    return np.stack([a * c - bb * s, a * s + bb * c], axis=-1).reshape(x.shape)
