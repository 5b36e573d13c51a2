"""flip reverse cumsum."""

import numpy as np

INPUT_SPECS = {"x": ((128, 200), "float32")}
TOLERANCE = 2e-5


def reference(x):
    return np.cumsum(x[:, ::-1], axis=1)[:, ::-1]
