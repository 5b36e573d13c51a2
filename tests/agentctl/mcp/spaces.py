"""Places and runs that the tests of the server work with: the smallest that are real."""

from __future__ import annotations

PLACE = {"problem": "silu", "size": "reduced"}

SMALL_RUN = {
    "problem": "silu",
    "size": "reduced",
    "rounds": 1,
    "settings": {
        "search.beam": 1,
        "search.plans": 1,
        "search.lookahead_predictions": 2,
        "starts": "kernel",
    },
}

REFERENCE = """import numpy as np

INPUT_SPECS = {"x": ((128, 512), "float32")}


def reference(x):
    return np.exp(x)
"""
