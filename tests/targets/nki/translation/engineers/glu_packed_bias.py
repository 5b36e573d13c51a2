"""glu packed bias."""

import numpy as np

INPUT_SPECS = {"x": ((300, 256), "float32"), "w": ((256, 512), "float32"), "b": ((512,), "float32")}
TOLERANCE = 2e-5


def reference(x, w, b):
    a, g = np.split(x @ w + b, 2, axis=-1)
    return a / (1 + np.exp(-g))
