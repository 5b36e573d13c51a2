"""Cumulative sum along the last axis."""

import numpy as np


def reference(x):
    return np.cumsum(x.astype(np.float64), axis=-1).astype(np.float32)
