"""Batch of bilinear forms with gating: out[b] = sigmoid(x[b] W) * (x[b] A[b])."""

import numpy as np

INPUT_SPECS = {"x": ((16, 64, 128), "float32"), "w": ((128, 96), "float32"), "a": ((16, 128, 96), "float32")}


def reference(x, w, a):
    gate = 1.0 / (1.0 + np.exp(-np.tensordot(x, w, axes=([2], [0]))))
    return np.multiply(gate, np.einsum("bij,bjk->bik", x, a))
