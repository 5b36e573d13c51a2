"""Sentence embeddings: mean of the tokens that a mask keeps, L2-normalised."""

import numpy as np

INPUT_SPECS = {"tokens": ((32, 128, 384), "float32"), "mask": ((32, 128), "float32")}


def reference(tokens, mask):
    keep = (mask > 0).astype(np.float32)
    total = (tokens * keep[:, :, None]).sum(axis=1)
    count = np.maximum(keep.sum(axis=1, keepdims=True), 1.0)
    pooled = total / count
    return pooled / np.maximum(np.sqrt((pooled**2).sum(axis=1, keepdims=True)), 1e-12)
