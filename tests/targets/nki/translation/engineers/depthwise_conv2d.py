"""depthwise conv2d."""

import numpy as np

INPUT_SPECS = {"x": ((2, 64, 30, 30), "float32"), "w": ((64, 3, 3), "float32")}
TOLERANCE = 2e-5


def reference(x, w):
    out = np.zeros_like(x)
    xp = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    for i in range(3):
        for j in range(3):
            out += xp[:, :, i : i + x.shape[2], j : j + x.shape[3]] * w[None, :, i, j, None, None]
    return out
