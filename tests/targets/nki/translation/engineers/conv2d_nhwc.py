"""3x3 convolution without padding, NHWC with HWIO weights, bias and relu."""

import numpy as np

INPUT_SPECS = {"x": ((4, 34, 34, 32), "float32"), "w": ((3, 3, 32, 64), "float32"), "b": ((64,), "float32")}
TOLERANCE = 2e-5


def reference(x, w, b):
    n, h, wd, c = x.shape
    y = np.zeros((n, h - 2, wd - 2, w.shape[3]), x.dtype)
    for i in range(3):
        for j in range(3):
            y += x[:, i : i + h - 2, j : j + wd - 2] @ w[i, j]
    return np.maximum(y + b, 0)
