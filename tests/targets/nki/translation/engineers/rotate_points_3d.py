"""rotate points 3d."""

import numpy as np

INPUT_SPECS = {"p": ((4096, 3), "float32"), "angles": ((4096,), "float32")}
TOLERANCE = 2e-5


def reference(p, angles):
    h = 0.5 * angles
    t = np.tanh(h)
    c, s = (1 - t * t) / (1 + t * t), 2 * t / (1 + t * t)
    x, y, z = p[:, 0], p[:, 1], p[:, 2]
    return np.stack([c * x - s * y, s * x + c * y, z], axis=1)
