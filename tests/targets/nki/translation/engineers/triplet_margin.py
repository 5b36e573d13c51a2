"""triplet margin."""

import numpy as np

INPUT_SPECS = {"a": ((512, 256), "float32"), "p": ((512, 256), "float32"), "n": ((512, 256), "float32")}
TOLERANCE = 2e-5


def reference(a, p, n):
    dp = np.sqrt(np.sum((a - p) ** 2, axis=1) + 1e-6)
    dn = np.sqrt(np.sum((a - n) ** 2, axis=1) + 1e-6)
    return np.maximum(dp - dn + 1.0, 0.0)
