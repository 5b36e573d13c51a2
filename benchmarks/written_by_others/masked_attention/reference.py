"""Softmax(q_t.T @ k_t / 8 + mask) @ v."""

import numpy as np


def reference(q_t, k_t, v, mask):
    q_t, k_t, v, mask = (item.astype(np.float64) for item in (q_t, k_t, v, mask))
    scores = q_t.T @ k_t / 8.0 + mask
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return (weights / weights.sum(axis=-1, keepdims=True) @ v).astype(np.float32)
