"""The truth of `rope_single_freq_apply`, in float64: each pair of rows i, i + D / 2 is turned and scaled."""

import numpy as np


def reference(x, freqs_cos, freqs_sin):
    cos, sin = freqs_cos.astype(np.float64), freqs_sin.astype(np.float64)
    first, second = np.split(x.astype(np.float64), 2)
    return np.concatenate([first * cos - second * sin, first * sin + second * cos]).astype(np.float32)
