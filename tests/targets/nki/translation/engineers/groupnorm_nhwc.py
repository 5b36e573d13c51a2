"""Group norm of images with channels last, 8 groups, scale and shift."""

import numpy as np

INPUT_SPECS = {"x": ((4, 32, 32, 64), "float32"), "gamma": ((64,), "float32"), "beta": ((64,), "float32")}
TOLERANCE = 2e-5


def reference(x, gamma, beta):
    n, h, w, c = x.shape
    g = x.reshape(n, h * w, 8, c // 8)
    mean = g.mean(axis=(1, 3), keepdims=True)
    var = ((g - mean) ** 2).mean(axis=(1, 3), keepdims=True)
    y = ((g - mean) / np.sqrt(var + 1e-5)).reshape(n, h, w, c)
    return y * gamma + beta
