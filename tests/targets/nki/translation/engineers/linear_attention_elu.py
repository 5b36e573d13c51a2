"""linear attention elu."""

import numpy as np

INPUT_SPECS = {"q": ((4, 256, 64), "float32"), "k": ((4, 256, 64), "float32"), "v": ((4, 256, 64), "float32")}
TOLERANCE = 2e-5


def feature(x):
    return np.where(x > 0, x + 1.0, np.exp(np.minimum(x, 0.0)))


def reference(q, k, v):
    fq, fk = feature(q), feature(k)
    kv = np.einsum("hnd,hne->hde", fk, v)
    z = np.einsum("hnd,hd->hn", fq, fk.sum(axis=1))
    return np.einsum("hnd,hde->hne", fq, kv) / (z[..., None] + 1e-6)
