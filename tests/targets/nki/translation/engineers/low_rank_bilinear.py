"""Bilinear scores through low-rank factors and a gate."""

import numpy as np

INPUT_SPECS = {
    "x": ((512, 256), "float32"),
    "y": ((384, 256), "float32"),
    "u": ((256, 32), "float32"),
    "v": ((256, 32), "float32"),
}
TOLERANCE = 2e-5


def reference(x, y, u, v):
    left = x.dot(u)
    right = y.dot(v)
    s = np.inner(left, right) / (256 * np.sqrt(32))
    return 1 / (1 + np.exp(-s))
