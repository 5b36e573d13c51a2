"""Standardise a whole array."""

import numpy as np

INPUT_SPECS = {"a": ((512, 768), "float32")}


def reference(a):
    return (a - a.mean()) / (a.std() + 1e-6)
