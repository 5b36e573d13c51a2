"""Batch norm in training mode, channels last."""

import numpy as np

INPUT_SPECS = {"x": ((8, 28, 28, 64), "float32"), "gamma": ((64,), "float32"), "beta": ((64,), "float32")}


def reference(x, gamma, beta):
    mean = x.mean(axis=(0, 1, 2))
    var = x.var(axis=(0, 1, 2))
    return gamma * (x - mean) / np.sqrt(var + 1e-5) + beta
