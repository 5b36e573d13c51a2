"""lion step."""

import numpy as np

INPUT_SPECS = {"p": ((512, 256), "float32"), "g": ((512, 256), "float32"), "m": ((512, 256), "float32")}
TOLERANCE = 2e-5


def reference(p, g, m):
    update = np.sign(0.9 * m + 0.1 * g)
    return p - 1e-2 * (update + 0.1 * p), 0.99 * m + 0.01 * g
