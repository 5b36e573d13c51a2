"""Rotary embedding by halves, with the table of angles made inside."""

import numpy as np

INPUT_SPECS = {"x": ((512, 4, 64), "float32")}

TOLERANCE = 2e-5


def reference(x):
    inv = 10000.0 ** (-np.arange(32) / 32)
    ang = np.arange(512)[:, None] * inv
    c, s = np.cos(ang)[:, None, :], np.sin(ang)[:, None, :]
    a, b = x[..., :32], x[..., 32:]
    return np.concatenate([a * c - b * s, a * s + b * c], axis=-1)
