"""weight norm linear."""

import numpy as np

INPUT_SPECS = {"x": ((512, 256), "float32"), "v": ((300, 256), "float32"), "g": ((300,), "float32")}
VALUES = {"g": "positive"}
TOLERANCE = 2e-5


def reference(x, v, g):
    norm = np.linalg.norm(v, axis=1)
    w = v * (g / norm)[:, None]
    return x @ w.T
