"""adamw full."""

import numpy as np

INPUT_SPECS = {
    "p": ((512, 512), "float32"),
    "g": ((512, 512), "float32"),
    "m": ((512, 512), "float32"),
    "v": ((512, 512), "float32"),
}
VALUES = {"v": "positive"}
TOLERANCE = 2e-5

LR, B1, B2, EPS, WD, STEP = 1e-3, 0.9, 0.999, 1e-8, 0.01, 7


def reference(p, g, m, v):
    m = B1 * m + (1 - B1) * g
    v = B2 * v + (1 - B2) * g * g
    mhat = m / (1 - B1**STEP)
    vhat = v / (1 - B2**STEP)
    p = p * (1 - LR * WD) - LR * mhat / (np.sqrt(vhat) + EPS)
    return p, m, v
