"""lstm cell."""

import numpy as np

INPUT_SPECS = {
    "x": ((128, 64), "float32"),
    "h": ((128, 96), "float32"),
    "c": ((128, 96), "float32"),
    "wx": ((64, 384), "float32"),
    "wh": ((96, 384), "float32"),
    "b": ((384,), "float32"),
}
TOLERANCE = 2e-5


def sig(z):
    return np.where(z >= 0, 1 / (1 + np.exp(-np.abs(z))), np.exp(-np.abs(z)) / (1 + np.exp(-np.abs(z))))


def reference(x, h, c, wx, wh, b):
    z = x @ wx + h @ wh + b
    i, f, g, o = np.split(z, 4, axis=1)
    c = sig(f) * c + sig(i) * np.tanh(g)
    return sig(o) * np.tanh(c), c
