"""References of every kind that is translated, at small sizes, with their inputs' shapes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Reference = Callable[..., Any]
Shapes = tuple[tuple[int, ...], ...]


def softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def layernorm(x, gamma, beta):
    centred = x - x.mean(axis=1, keepdims=True)
    return centred / np.sqrt(np.mean(centred**2, axis=1, keepdims=True) + 1e-5) * gamma + beta


def attention(q, k, v):
    scores = np.einsum("hqd,hkd->hqk", q, k) * 0.25
    mask = np.tril(np.ones(scores.shape[1:], dtype=bool))
    return softmax(np.where(mask, scores, -np.inf)) @ v


def grouped_attention(q, k, v):
    heads = []
    for head in range(q.shape[1]):
        own = head // 2
        heads.append(softmax(q[:, head] @ k[:, own].T) @ v[:, own])
    return np.stack(heads, axis=1)


def gated_mlp(x, gate, up, down):
    product = x @ gate
    return (product / (1 + np.exp(-product)) * (x @ up)) @ down


def convolution(x, w, bias):
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    out = np.zeros((x.shape[0], w.shape[0], *x.shape[2:]), dtype=x.dtype)
    for i in range(3):
        for j in range(3):
            window = padded[:, :, i : i + x.shape[2], j : j + x.shape[3]]
            out += np.einsum("nchw,oc->nohw", window, w[:, :, i, j])
    return out + bias[:, None, None]


def depthwise(x, w):
    padded = np.pad(x, ((0, 0), (2, 0)))
    return sum(padded[:, k : k + x.shape[1]] * w[:, k : k + 1] for k in range(3))


def recurrence(x):
    state, states = np.zeros_like(x[0]), []
    for row in x:
        state = 0.9 * state + 0.1 * row
        states.append(state)
    return np.stack(states)


def rotary(x):
    half = x.shape[-1] // 2
    angle = np.outer(np.arange(x.shape[1]), 0.1 ** (np.arange(half) / half))
    cos, sin = (np.concatenate([f(angle)] * 2, axis=-1).astype(np.float32) for f in (np.cos, np.sin))
    return x * cos + np.concatenate([-x[..., half:], x[..., :half]], axis=-1) * sin


def decode(q, keys, values, position):
    scores = np.einsum("bd,bsd->bs", q, keys)
    scores = np.where(np.arange(keys.shape[1])[None] <= position, scores, -1e30)
    return np.einsum("bs,bsd->bd", softmax(scores), values)


def group_norm(x, gamma):
    grouped = x.reshape(x.shape[0], 4, -1)
    grouped = (grouped - grouped.mean(axis=2, keepdims=True)) / np.sqrt(
        grouped.var(axis=2, keepdims=True) + 1e-5
    )
    return grouped.reshape(x.shape) * gamma[:, None]


def restyle(x, style, w):
    """Normalised rows, scaled and shifted by two halves of a product."""
    product = style @ w
    scale, shift = np.split(product[..., None], 2, axis=1)
    deviation = x.std(axis=2, keepdims=True) + 1e-5
    return (1 + scale) * ((x - x.mean(axis=2, keepdims=True)) / deviation) + shift


SLOPES = np.array([0.5, 0.3])[:, None, None]
STEPS = np.arange(90) - np.arange(90)[:, None]

REFERENCES: dict[str, tuple[Reference, Shapes]] = {
    "softmax": (softmax, ((200, 70),)),
    "layernorm": (layernorm, ((130, 96), (96,), (96,))),
    "softmax of columns": (lambda x: softmax(x.T).T, ((70, 140),)),
    "sums over columns": (lambda x: (x.sum(0), (x - x.mean(0)).max(0)), ((150, 40),)),
    "sum of everything": (lambda x: x.sum(), ((40, 300),)),
    "two results": (lambda x, y: (x * y, (x * y).sum(axis=1)), ((64, 32), (64, 32))),
    "matmul": (lambda a, b: a @ b, ((70, 130), (130, 600))),
    "matmul of transposes": (lambda a, b: a.T @ b.T, ((130, 70), (40, 130))),
    "einsum": (lambda a, b: np.einsum("ibk,kjb->bij", a, b), ((20, 3, 40), (40, 24, 3))),
    "outer product": (np.outer, ((30,), (50,))),
    "matrix and vector": (lambda a, b: a @ b, ((140, 60), (60,))),
    "attention": (attention, ((2, 140, 16), (2, 140, 16), (2, 140, 16))),
    "grouped attention": (grouped_attention, ((40, 4, 16), (40, 2, 16), (40, 2, 16))),
    "gated mlp": (gated_mlp, ((40, 24), (24, 150), (24, 150), (150, 24))),
    "convolution": (convolution, ((2, 5, 9, 11), (6, 5, 3, 3), (6,))),
    "depthwise convolution": (depthwise, ((140, 50), (140, 3))),
    "pooling": (lambda x: x.reshape(2, 6, 5, 2, 7, 2).max(axis=(3, 5)), ((2, 6, 10, 14),)),
    "recurrence": (recurrence, ((12, 150),)),
    "running sum": (lambda x: np.cumsum(x, axis=1) / np.arange(1, 41, dtype=np.float32), ((30, 40),)),
    "rotary": (rotary, ((2, 40, 16),)),
    "decode": (decode, ((3, 16), (3, 50, 16), (3, 50, 16), (3, 1))),
    "group norm": (group_norm, ((3, 8, 20), (8,))),
    "styles": (restyle, ((4, 128, 64), (4, 16), (16, 256))),
    "transpose": (lambda x: np.ascontiguousarray(x.T), ((70, 300),)),
    "permutation": (lambda x: x.transpose(2, 0, 1) * 2.0, ((5, 30, 12),)),
    "joined and padded": (
        lambda x, y: np.pad(np.concatenate([x[:, 10:], y, x[:, :10]], axis=1), ((0, 0), (3, 5))),
        ((64, 30), (64, 12)),
    ),
    "shifted rows": (lambda x: np.concatenate([x[1:], np.zeros_like(x[:1])], axis=0), ((140, 20),)),
    "rolled": (lambda x: np.roll(x, 3, axis=1) + x, ((20, 30),)),
    "repeated": (lambda x: np.repeat(x, 3, axis=0) * 1.5, ((20, 30),)),
    "backwards": (lambda x: np.cumsum(x[:, ::-1], axis=1)[:, ::-1], ((30, 40),)),
    "running product": (lambda x: np.cumprod(1 / (1 + np.exp(-x)), axis=1), ((30, 40),)),
    "running maximum": (lambda x: np.maximum.accumulate(x, axis=1), ((30, 40),)),
    "differences": (lambda x: np.diff(x, axis=1) * np.diff(x, n=2)[:, :1], ((30, 40),)),
    "blocks of a scale": (lambda x, s: x * np.kron(s, np.ones((8, 5))), ((32, 40), (4, 8))),
    "cases": (lambda x, y: np.select([x > y, x > 0], [x, x * y], -y), ((64, 50), (64, 50))),
    "any of a row": (lambda x: np.where(np.any(x > 1.5, axis=1, keepdims=True), x, 0.5), ((64, 50),)),
    "smoothed rows": (
        lambda x: np.stack([np.convolve(row, [0.25, 0.5, 0.25], mode="same") for row in x]),
        ((20, 60),),
    ),
    "low rank products": (
        lambda x, y, u: np.tanh((x @ u) @ (y @ u).T / 512),
        ((140, 256), (24, 256), (256, 16)),
    ),
    "rotated pairs, multiplied": (
        lambda x, y: np.stack([x[..., 1::2], -x[..., ::2]], axis=-1).reshape(x.shape) @ y.T,
        ((140, 64), (24, 64)),
    ),
    "shares of everything": (lambda x: x / np.sqrt((x * x).sum()), ((150, 40),)),
    "leaky": (lambda x, y: np.where(x > 0, x, 0.1 * x) + np.where(x <= y, y, x), ((64, 50), (64, 50))),
    "channels' scales": (
        lambda x, g, v: x * (g / np.sqrt(v * v + 0.5))[None, :, None] + g[None, :, None],
        ((8, 32, 40), (32,), (32,)),
    ),
    "added mask": (lambda s: softmax(s + np.triu(np.full((150, 150), -1e9), 1)), ((150, 150),)),
    "added window": (
        lambda s: softmax(s + np.where((STEPS <= 0) & (STEPS > -20), 0.0, -1e9)),
        ((90, 90),),
    ),
    "shown where compared": (
        lambda x, y: np.where(x > 0.5, np.tanh(y) * x, 0.0) + np.where(x < y, 0.0, 1.0 - x),
        ((64, 50), (64, 50)),
    ),
    "infinite mask": (
        lambda q, k: softmax(q @ k.T + np.where(np.tri(150) > 0, 0.0, -np.inf)),
        ((150, 16), (150, 16)),
    ),
    "distances": (lambda s: softmax(s - SLOPES * np.abs(STEPS)), ((2, 90, 90),)),
    "distances to the left": (
        lambda s: softmax(s + np.where(STEPS <= 0, SLOPES * STEPS, -np.inf)),
        ((2, 90, 90),),
    ),
    "lower triangle": (np.tril, ((150, 150),)),
    "choice": (lambda x, y: np.where(x < y, x * x, np.abs(y)), ((64, 50), (64, 50))),
    "choices by ranges": (
        lambda x: np.where((x >= -1.0) & (x < 0.0), x * x, np.where(x > 1.0, 0.5, x)),
        ((64, 50),),
    ),
    "choices by one mask": (
        lambda x, y: np.where(x > y, x[:, :1], y) * np.where(x > y, -2.0, np.exp(y)),
        ((64, 50), (64, 50)),
    ),
    "choices of windows": (
        lambda x: np.where(x[:, 1:] > 0.5, x[:, :-1], np.abs(x[:, 1:])) * np.where(x[:, 1:] > 0, 1.0, 2.0),
        ((64, 50),),
    ),
    "comparisons with columns": (
        lambda x: np.where(x.max(axis=1, keepdims=True) * 0.5 < x, x, x.min(axis=1, keepdims=True) - x),
        ((64, 50),),
    ),
    "comparisons of products": (
        lambda x, y: (2.0 - y * 3.0 < x) * x - (x - y * 0.5),
        ((64, 50), (64, 50)),
    ),
    "functions": (lambda x: np.tanh(np.log1p(np.exp(-np.abs(x)))) + x**3, ((64, 50),)),
    "constant result": (lambda x: x * 0.0 + 2.0, ((64, 50),)),
    "one row": (lambda x: x + 1.0, ((50,),)),
}  # fmt: skip
