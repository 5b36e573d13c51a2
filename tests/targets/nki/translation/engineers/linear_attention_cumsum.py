"""Causal linear attention: elu + 1 features, running sums of keys times values."""

import numpy as np

INPUT_SPECS = {
    "q": ((4, 256, 32), "float32"),
    "k": ((4, 256, 32), "float32"),
    "v": ((4, 256, 32), "float32"),
}
TOLERANCE = 2e-5


def phi(x):
    return np.where(x > 0, x + 1.0, np.exp(np.minimum(x, 0.0)))


def reference(q, k, v):
    q, k = phi(q), phi(k)
    scores = np.tril(q @ np.swapaxes(k, -1, -2))
    return scores @ v / (scores.sum(-1, keepdims=True) + 1e-6)
