"""The truth of `example`. Runs in a process of its own, on NumPy arrays and the scalars, in order."""

import numpy as np


def reference(x, bias, alpha):
    # In float64, so that what is compared with is exact; a problem of several outputs returns a tuple.
    out = alpha * x.astype(np.float64) + bias.astype(np.float64)[:, None]
    return out.astype(np.float32)
