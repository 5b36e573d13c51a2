"""The truth of `matmul_add_rmsnorm`, in float64: the rows of x @ w + z over their root mean square, times g."""

import numpy as np

EPSILON = 1e-5


def reference(x, w, z, g):
    y = np.matmul(x.astype(np.float64), w.astype(np.float64)) + z
    rms = np.sqrt(np.mean(np.square(y), axis=1, keepdims=True) + EPSILON)
    return (y / rms * g).astype(np.float32)
