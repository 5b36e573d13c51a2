"""Rows divided by their np.linalg.norm, cosine scores with class vectors."""

import numpy as np

INPUT_SPECS = {
    "x": ((1024, 256), "float32"),
    "c": ((96, 256), "float32"),
}
TOLERANCE = 2e-5


def reference(x, c):
    xn = x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-8)
    cn = c / np.maximum(np.linalg.norm(c, axis=-1)[:, None], 1e-8)
    return xn @ cn.T
