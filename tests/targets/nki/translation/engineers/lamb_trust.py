"""LAMB-like step per row: Adam direction scaled by the ratio of norms of rows."""

import numpy as np

INPUT_SPECS = {
    "p": ((512, 1024), "float32"),
    "g": ((512, 1024), "float32"),
    "m": ((512, 1024), "float32"),
    "v": ((512, 1024), "float32"),
}
VALUES = {"v": "positive"}


def reference(p, g, m, v):
    m1 = 0.9 * m + 0.1 * g
    v1 = 0.99 * v + 0.01 * np.square(g)
    u = m1 / (np.sqrt(v1) + 1e-6) + 0.01 * p
    trust = np.sqrt(np.sum(p * p, axis=1, keepdims=True)) / np.sqrt(np.sum(u * u, axis=1, keepdims=True))
    return p - 0.001 * trust * u, m1, v1
