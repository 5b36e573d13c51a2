"""1-D convolution over a sequence (channels last), 5 taps, same padding, ReLU."""

import numpy as np

INPUT_SPECS = {
    "x": ((4, 512, 64), "float32"),
    "w": ((5, 64, 96), "float32"),
    "b": ((96,), "float32"),
}
TOLERANCE = 2e-5


def reference(x, w, b):
    taps = w.shape[0]
    pad = taps // 2
    xp = np.pad(x, ((0, 0), (pad, pad), (0, 0)))
    y = sum(xp[:, i : i + x.shape[1]] @ w[i] for i in range(taps))
    return np.maximum(y + b, 0.0)
