"""discounted returns."""

import numpy as np

INPUT_SPECS = {"r": ((128, 200), "float32")}
TOLERANCE = 2e-5


def reference(r):
    out = np.zeros_like(r)
    run = np.zeros_like(r[:, 0])
    for t in reversed(range(r.shape[1])):
        run = r[:, t] + 0.99 * run
        out[:, t] = run
    return out
