"""strided patch embed."""

import numpy as np

INPUT_SPECS = {"img": ((2, 3, 64, 64), "float32"), "w": ((96, 3, 8, 8), "float32"), "b": ((96,), "float32")}
TOLERANCE = 2e-5


def reference(img, w, b):
    n, c, h, wd = img.shape
    p = img.reshape(n, c, h // 8, 8, wd // 8, 8).transpose(0, 2, 4, 1, 3, 5).reshape(n, -1, c * 64)
    return p @ w.reshape(96, -1).T + b
