"""Rank-one update of a batch of matrices by outer products, with decay."""

import numpy as np

INPUT_SPECS = {
    "m": ((16, 128, 128), "float32"),
    "u": ((16, 128), "float32"),
    "v": ((16, 128), "float32"),
}
TOLERANCE = 2e-5


def reference(m, u, v):
    out = np.empty_like(m)
    for i in range(m.shape[0]):
        out[i] = 0.9 * m[i] + 0.1 * np.outer(u[i], v[i])
    return out
