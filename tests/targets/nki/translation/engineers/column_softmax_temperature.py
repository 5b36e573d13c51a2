"""Softmax over the first axis with a temperature."""

import numpy as np

INPUT_SPECS = {
    "x": ((384, 640), "float32"),
}
TOLERANCE = 2e-5


def reference(x):
    z = x / 0.7
    z = z - z.max(axis=0)
    e = np.exp(z)
    return e / e.sum(axis=0)
