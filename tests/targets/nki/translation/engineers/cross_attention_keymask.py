"""Cross attention with a key padding mask that the caller gives (1 valid, 0 padding)."""

import numpy as np

INPUT_SPECS = {
    "query": ((4, 128, 64), "float32"),
    "memory_k": ((4, 384, 64), "float32"),
    "memory_v": ((4, 384, 64), "float32"),
    "key_mask": ((384,), "float32"),
}
TOLERANCE = 2e-5
VALUES = {"key_mask": "positive"}


def reference(query, memory_k, memory_v, key_mask):
    d = query.shape[-1]
    scores = np.matmul(query, memory_k.transpose(0, 2, 1)) / np.sqrt(d)
    scores = scores + (1.0 - key_mask)[None, None, :] * -1e4
    scores = scores - scores.max(axis=-1, keepdims=True)
    probs = np.exp(scores)
    probs = probs / probs.sum(axis=-1, keepdims=True)
    return np.matmul(probs, memory_v)
