"""3x3 average pooling with stride 2 and padding 1, counting the border."""

import numpy as np

INPUT_SPECS = {"x": ((4, 64, 56, 56), "float32")}
TOLERANCE = 2e-5


def reference(x):
    xp = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    total = 0.0
    for i in range(3):
        for j in range(3):
            total = total + xp[:, :, i : i + 56 : 2, j : j + 56 : 2]
    return total / 9
