"""NumPy functions of PyTorch's operators, copied by their source into the references that use them.

Each stands alone but for NumPy and other functions here. All tensors have the layout that PyTorch gives
them, such as (batch, channels, rows, columns).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np


def softmax(x: Any, axis: int) -> Any:
    powers = np.exp(x - np.max(x, axis=axis, keepdims=True))
    return powers / np.sum(powers, axis=axis, keepdims=True)


def log_softmax(x: Any, axis: int) -> Any:
    shifted = x - np.max(x, axis=axis, keepdims=True)
    return shifted - np.log(np.sum(np.exp(shifted), axis=axis, keepdims=True))


def logsumexp(x: Any, axis: Any, keepdims: bool) -> Any:
    most = np.max(x, axis=axis, keepdims=True)
    found = np.log(np.sum(np.exp(x - most), axis=axis, keepdims=True)) + most
    return found if keepdims else np.squeeze(found, axis=axis)


def sigmoid(x: Any) -> Any:
    return 1.0 / (1.0 + np.exp(-x))


def softplus(x: Any) -> Any:
    return np.maximum(x, 0.0) + np.log1p(np.exp(-np.abs(x)))


def erf(x: Any) -> Any:
    return np.vectorize(math.erf, otypes=[np.float64])(x)


def gelu(x: Any) -> Any:
    return 0.5 * x * (1.0 + erf(x * 0.7071067811865476))


def gelu_tanh(x: Any) -> Any:
    return 0.5 * x * (1.0 + np.tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)))


def elu(x: Any, alpha: float, scale: float) -> Any:
    return scale * (np.maximum(x, 0.0) + alpha * (np.exp(np.minimum(x, 0.0)) - 1.0))


def normalise(x: Any, axes: Any, eps: float) -> Any:
    centred = x - np.mean(x, axis=axes, keepdims=True)
    return centred / np.sqrt(np.mean(centred * centred, axis=axes, keepdims=True) + eps)


def group_norm(x: Any, groups: int, eps: float) -> Any:
    parts = np.reshape(x, (x.shape[0], groups, -1))
    return np.reshape(normalise(parts, 2, eps), x.shape)


def by_channel(values: Any, ndim: int) -> Any:
    return np.reshape(values, (1, -1) + (1,) * (ndim - 2))


def convolution_1d(x: Any, weight: Any, stride: int, padding: int, dilation: int, groups: int) -> Any:
    x = np.pad(x, ((0, 0), (0, 0), (padding, padding)))
    taps = weight.shape[2]
    columns = (x.shape[2] - dilation * (taps - 1) - 1) // stride + 1
    ins, outs = x.shape[1] // groups, weight.shape[0] // groups
    parts = []
    for group in range(groups):
        part = x[:, group * ins : (group + 1) * ins]
        kernel = weight[group * outs : (group + 1) * outs]
        total = 0.0
        for tap in range(taps):
            first = tap * dilation
            window = part[:, :, first : first + stride * (columns - 1) + 1 : stride]
            total = total + kernel[:, :, tap] @ window
        parts.append(total)
    return parts[0] if groups == 1 else np.concatenate(parts, axis=1)


def depthwise_1d(x: Any, weight: Any, stride: int, padding: int, dilation: int) -> Any:
    x = np.pad(x, ((0, 0), (0, 0), (padding, padding)))
    taps = weight.shape[2]
    columns = (x.shape[2] - dilation * (taps - 1) - 1) // stride + 1
    total = 0.0
    for tap in range(taps):
        first = tap * dilation
        window = x[:, :, first : first + stride * (columns - 1) + 1 : stride]
        total = total + window * weight[:, 0, tap][None, :, None]
    return total


def put(x: Any, index: Any, values: Any) -> Any:
    found = np.array(x)
    found[index] = values
    return found


def windows_2d(x: Any, size: Any, stride: Any, dilation: Any) -> Any:
    rows = (x.shape[2] - dilation[0] * (size[0] - 1) - 1) // stride[0] + 1
    columns = (x.shape[3] - dilation[1] * (size[1] - 1) - 1) // stride[1] + 1
    found = {}
    for i in range(size[0]):
        for j in range(size[1]):
            down, right = i * dilation[0], j * dilation[1]
            found[i, j] = x[
                :,
                :,
                down : down + stride[0] * (rows - 1) + 1 : stride[0],
                right : right + stride[1] * (columns - 1) + 1 : stride[1],
            ]
    return found


def pad_2d(x: Any, padding: Any, value: float) -> Any:
    rows, columns = padding
    return np.pad(x, ((0, 0), (0, 0), (rows, rows), (columns, columns)), constant_values=value)


def convolution_2d(x: Any, weight: Any, stride: Any, padding: Any, dilation: Any, groups: int) -> Any:
    ins, outs = x.shape[1] // groups, weight.shape[0] // groups
    windows = windows_2d(pad_2d(x, padding, 0.0), weight.shape[2:], stride, dilation)
    parts = []
    for group in range(groups):
        kernel = weight[group * outs : (group + 1) * outs]
        total = 0.0
        for (i, j), window in windows.items():
            part = window[:, group * ins : (group + 1) * ins]
            flat = np.reshape(part, (part.shape[0], ins, -1))
            total = total + kernel[:, :, i, j] @ flat
        parts.append(total)
    found = parts[0] if groups == 1 else np.concatenate(parts, axis=1)
    return np.reshape(found, (x.shape[0], weight.shape[0], *windows[0, 0].shape[2:]))


def depthwise_2d(x: Any, weight: Any, stride: Any, padding: Any, dilation: Any) -> Any:
    total = 0.0
    for (i, j), window in windows_2d(pad_2d(x, padding, 0.0), weight.shape[2:], stride, dilation).items():
        total = total + window * weight[:, 0, i, j][None, :, None, None]
    return total


def max_pool_2d(x: Any, size: Any, stride: Any, padding: Any, dilation: Any) -> Any:
    padded = pad_2d(x, padding, -3.0e38) if any(padding) else x
    most = None
    for window in windows_2d(padded, size, stride, dilation).values():
        most = window if most is None else np.maximum(most, window)
    return most


def avg_pool_2d(x: Any, size: Any, stride: Any, padding: Any) -> Any:
    total = 0.0
    for window in windows_2d(pad_2d(x, padding, 0.0), size, stride, (1, 1)).values():
        total = total + window
    return total / (size[0] * size[1])


def attention(query: Any, key: Any, value: Any, mask: Any, is_causal: bool, scale: float) -> Any:
    repeats = query.shape[-3] // key.shape[-3] if query.ndim > 2 else 1
    if repeats > 1:
        key, value = np.repeat(key, repeats, axis=-3), np.repeat(value, repeats, axis=-3)
    scores = query @ np.swapaxes(key, -1, -2) * scale
    if is_causal:
        rows, columns = scores.shape[-2:]
        scores = np.where(np.arange(columns)[None, :] <= np.arange(rows)[:, None], scores, -np.inf)
    if mask is not None:
        scores = np.where(mask, scores, -np.inf) if mask.dtype == bool else scores + mask
    return softmax(scores, -1) @ value
