"""Product of complex numbers kept as pairs in the last axis, then the squared length."""

import numpy as np

INPUT_SPECS = {"a": ((512, 256, 2), "float32"), "b": ((512, 256, 2), "float32")}
TOLERANCE = 2e-5


def reference(a, b):
    re = a[..., 0] * b[..., 0] - a[..., 1] * b[..., 1]
    im = a[..., 0] * b[..., 1] + a[..., 1] * b[..., 0]
    return np.stack([re, im], axis=-1), re**2 + im**2
