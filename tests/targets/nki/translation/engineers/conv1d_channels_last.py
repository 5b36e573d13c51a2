"""1-D convolution, 5 taps, channels last, padding same, gelu by tanh."""

import numpy as np

INPUT_SPECS = {"x": ((4, 512, 64), "float32"), "w": ((5, 64, 128), "float32"), "b": ((128,), "float32")}
TOLERANCE = 2e-5


def reference(x, w, b):
    t = x.shape[1]
    padded = np.pad(x, ((0, 0), (2, 2), (0, 0)))
    y = b + sum(padded[:, k : k + t] @ w[k] for k in range(5))
    return 0.5 * y * (1 + np.tanh(0.7978845608 * (y + 0.044715 * y**3)))
