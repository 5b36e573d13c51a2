"""avgpool2d 3x3 s1."""

import numpy as np

INPUT_SPECS = {"x": ((4, 32, 32, 32), "float32")}
TOLERANCE = 2e-5


def reference(x):
    h, w = x.shape[2] - 2, x.shape[3] - 2
    acc = 0
    for i in range(3):
        for j in range(3):
            acc = acc + x[:, :, i : i + h, j : j + w]
    return acc / 9.0
