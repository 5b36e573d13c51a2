"""The truth of `transpose_matmul`: the product in float64."""

import numpy as np


def reference(lhs, rhs):
    return np.matmul(lhs.T.astype(np.float64), rhs.astype(np.float64)).astype(np.float32)
