"""Batch norm of inference over channels of NCHW, then ReLU6."""

import numpy as np

INPUT_SPECS = {
    "x": ((8, 64, 28, 28), "float32"),
    "mean": ((64,), "float32"),
    "var": ((64,), "float32"),
    "gamma": ((64,), "float32"),
    "beta": ((64,), "float32"),
}
VALUES = {"var": "positive"}
TOLERANCE = 2e-5


def reference(x, mean, var, gamma, beta):
    shape = (1, -1, 1, 1)
    y = (x - mean.reshape(shape)) / np.sqrt(var.reshape(shape) + 1e-3)
    y = y * gamma.reshape(shape) + beta.reshape(shape)
    return np.clip(y, 0.0, 6.0)
