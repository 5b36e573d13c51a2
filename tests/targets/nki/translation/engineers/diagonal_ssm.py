"""Diagonal state space: h = exp(dt a) h + dt b x, y = sum over state of c h."""

import numpy as np

INPUT_SPECS = {
    "x": ((128, 256), "float32"),
    "dt": ((128, 256), "float32"),
    "a": ((128, 8), "float32"),
    "b": ((8, 256), "float32"),
    "c": ((8, 256), "float32"),
}
VALUES = {"dt": "positive"}
TOLERANCE = 1e-4


def reference(x, dt, a, b, c):
    d, t = x.shape
    decay = np.exp(-dt[:, None, :] * np.abs(a)[:, :, None])
    inp = (dt * x)[:, None, :] * b[None]
    h = np.zeros((d, a.shape[1]))
    y = np.zeros((d, t))
    for i in range(t):
        h = decay[:, :, i] * h + inp[:, :, i]
        y[:, i] = np.sum(h * c[:, i], axis=1)
    return y
