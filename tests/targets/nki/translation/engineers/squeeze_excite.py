"""squeeze excite."""

import numpy as np

INPUT_SPECS = {"x": ((4, 64, 16, 16), "float32"), "w1": ((64, 16), "float32"), "w2": ((16, 64), "float32")}
TOLERANCE = 2e-5


def reference(x, w1, w2):
    s = x.mean(axis=(2, 3))
    h = np.maximum(s @ w1, 0.0)
    g = 1.0 / (1.0 + np.exp(-(h @ w2)))
    return x * g[:, :, None, None]
