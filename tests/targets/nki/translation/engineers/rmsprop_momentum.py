"""rmsprop momentum."""

import numpy as np

INPUT_SPECS = {
    "p": ((256, 512), "float32"),
    "g": ((256, 512), "float32"),
    "s": ((256, 512), "float32"),
    "buf": ((256, 512), "float32"),
}
VALUES = {"s": "positive"}
TOLERANCE = 2e-5


def reference(p, g, s, buf):
    s = 0.99 * s + 0.01 * np.square(g)
    buf = 0.9 * buf + g / np.sqrt(s + 1e-8)
    return p - 0.01 * buf, s, buf
