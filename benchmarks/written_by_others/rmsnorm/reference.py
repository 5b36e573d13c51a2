"""x / sqrt(mean(x ** 2) + 1e-6) * weight, row-wise."""

import numpy as np


def reference(x, weight):
    x, weight = x.astype(np.float64), weight.astype(np.float64)
    mean_square = np.mean(np.square(x), axis=-1, keepdims=True)
    return (x / np.sqrt(mean_square + 1e-6) * weight).astype(np.float32)
