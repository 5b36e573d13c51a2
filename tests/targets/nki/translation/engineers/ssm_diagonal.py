"""ssm diagonal."""

import numpy as np

INPUT_SPECS = {
    "u": ((64, 128), "float32"),
    "a": ((64, 8), "float32"),
    "b": ((128, 8), "float32"),
    "c": ((128, 8), "float32"),
}
TOLERANCE = 2e-5


def reference(u, a, b, c):
    decay = np.exp(-np.abs(a))
    state = np.zeros((u.shape[0], a.shape[1]), dtype=u.dtype)
    ys = []
    for t in range(u.shape[1]):
        state = state * decay + u[:, t, None] * b[t]
        ys.append((state * c[t]).sum(axis=1))
    return np.stack(ys, axis=1)
