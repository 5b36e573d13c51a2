"""quantise symmetric rows."""

import numpy as np

INPUT_SPECS = {"x": ((512, 512), "float32")}
TOLERANCE = 2e-5


def reference(x):
    scale = np.abs(x).max(axis=1, keepdims=True) / 127.0
    return np.clip(x / scale, -127.0, 127.0), scale
