"""Exponential moving average along time by a loop over steps."""

import numpy as np

INPUT_SPECS = {
    "x": ((256, 128), "float32"),
    "decay": ((128,), "float32"),
}
TOLERANCE = 2e-5


def reference(x, decay):
    a = 1.0 / (1.0 + np.exp(-decay))
    state = np.zeros(x.shape[1], x.dtype)
    out = []
    for t in range(x.shape[0]):
        state = a * state + (1.0 - a) * x[t]
        out.append(state)
    return np.stack(out)
