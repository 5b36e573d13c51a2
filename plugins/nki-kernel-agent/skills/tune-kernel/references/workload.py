"""RMSNorm in front of a matrix product: a workload to copy."""

import numpy as np
from nkigym.ops import NKIMatmul, NKIRMSNorm, NKITranspose


def f_nkigym(x, w):
    normed = NKIRMSNorm(eps=1e-6)(data=x)
    normed_T = NKITranspose()(data=normed)
    output = NKIMatmul()(stationary=normed_T, moving=w)
    return output


def f_numpy(x, w):
    return x / np.sqrt(np.mean(x * x, axis=1, keepdims=True) + 1e-6) @ w


INPUT_SPECS = {"x": ((512, 1024), "bfloat16"), "w": ((1024, 1024), "bfloat16")}
CACHE_ROOT = "normed_product"
HOSTS = []
TARGET_MFU = 0.6
