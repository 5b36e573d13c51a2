"""cross attention multihead."""

import numpy as np

INPUT_SPECS = {
    "x": ((256, 128), "float32"),
    "ctx": ((192, 128), "float32"),
    "wq": ((128, 128), "float32"),
    "wk": ((128, 128), "float32"),
    "wv": ((128, 128), "float32"),
    "wo": ((128, 128), "float32"),
}
TOLERANCE = 2e-5

H = 4


def split(t):
    return t.reshape(t.shape[0], H, -1).transpose(1, 0, 2)


def reference(x, ctx, wq, wk, wv, wo):
    q, k, v = split(x @ wq), split(ctx @ wk), split(ctx @ wv)
    a = q @ k.transpose(0, 2, 1) / np.sqrt(q.shape[-1])
    a = np.exp(a - a.max(-1, keepdims=True))
    a = a / a.sum(-1, keepdims=True)
    y = (a @ v).transpose(1, 0, 2).reshape(x.shape[0], -1)
    return y @ wo
