"""topless moe softmax."""

import numpy as np

INPUT_SPECS = {
    "x": ((256, 128), "float32"),
    "wg": ((128, 4), "float32"),
    "w1": ((4, 128, 192), "float32"),
    "w2": ((4, 192, 128), "float32"),
}
TOLERANCE = 2e-5


def reference(x, wg, w1, w2):
    g = x @ wg
    g = np.exp(g - g.max(1, keepdims=True))
    g = g / g.sum(1, keepdims=True)
    h = np.einsum("td,edf->etf", x, w1)
    h = h * (1.0 / (1.0 + np.exp(-h)))
    y = np.einsum("etf,efd->etd", h, w2)
    return np.einsum("te,etd->td", g, y)
