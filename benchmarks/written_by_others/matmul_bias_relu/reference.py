"""max(a_t.T @ b + bias, 0)."""

import numpy as np


def reference(a_t, b, bias):
    a_t, b, bias = (item.astype(np.float64) for item in (a_t, b, bias))
    return np.maximum(a_t.T @ b + bias, 0.0).astype(np.float32)
