"""Batch norm inference and leaky relu, NCHW."""

import numpy as np

INPUT_SPECS = {
    "x": ((8, 64, 32, 32), "float32"),
    "gamma": ((64,), "float32"),
    "beta": ((64,), "float32"),
    "mean": ((64,), "float32"),
    "var": ((64,), "float32"),
}
VALUES = {"var": "positive"}


def reference(x, gamma, beta, mean, var):
    inv = gamma / np.sqrt(var + 1e-5)
    y = x * inv.reshape(1, -1, 1, 1) + (beta - mean * inv).reshape(1, -1, 1, 1)
    return np.where(y > 0, y, 0.01 * y)
