"""Every other column block picked by np.take, blended with its neighbours."""

import numpy as np

INPUT_SPECS = {
    "x": ((1024, 512), "float32"),
    "alpha": ((256,), "float32"),
}
TOLERANCE = 2e-5


def reference(x, alpha):
    even = np.take(x, np.arange(0, 512, 2), axis=1)
    odd = np.take(x, np.arange(1, 512, 2), axis=1)
    return even * alpha + odd * (1.0 - alpha)
