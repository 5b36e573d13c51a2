"""fake dequant matmul."""

import numpy as np

INPUT_SPECS = {
    "x": ((256, 256), "float32"),
    "q": ((256, 200), "float32"),
    "s": ((200,), "float32"),
    "z": ((200,), "float32"),
}
VALUES = {"q": "integers:-8:8"}
TOLERANCE = 2e-5


def reference(x, q, s, z):
    return x @ ((q - z) * s)
