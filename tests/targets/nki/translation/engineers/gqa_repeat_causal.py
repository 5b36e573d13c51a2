"""Grouped-query attention: keys and values are repeated for the query heads; causal."""

import numpy as np

INPUT_SPECS = {"q": ((8, 256, 64), "float32"), "k": ((2, 256, 64), "float32"), "v": ((2, 256, 64), "float32")}
TOLERANCE = 2e-5


def reference(q, k, v):
    groups = q.shape[0] // k.shape[0]
    k = np.repeat(k, groups, axis=0)
    v = np.repeat(v, groups, axis=0)
    logits = q @ np.swapaxes(k, -1, -2) * (q.shape[-1] ** -0.5)
    mask = np.tril(np.ones((q.shape[1], k.shape[1])))
    logits = np.where(mask == 0, -1e30, logits)
    p = np.exp(logits - logits.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    return p @ v
