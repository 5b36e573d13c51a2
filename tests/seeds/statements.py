"""A second statement of every problem's mathematics, in float64: another formulation, no shared code.

Each takes a problem's inputs as float64 arrays and returns its output before any rounding.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def adamw(theta: Array, g: Array, m: Array, v: Array) -> Array:
    """The mean as a step towards the gradient, the corrected root as the length of a vector."""
    mean = m + 0.1 * (g - m)
    root = np.hypot(math.sqrt(999) * np.sqrt(v), g)
    return 0.99999 * theta - mean / (100 * root + 1e-6)


def add_rmsnorm_matmul(x: Array, w: Array, z: Array, g: Array) -> Array:
    """Normalised after the product, which is linear."""
    y = x + z
    return np.einsum("mk,kn->mn", y, g[:, None] * w) * _inverse_rms(y, 1e-5)


def bmm(lhs: Array, rhs: Array) -> Array:
    return np.einsum("bmk,bkn->bmn", lhs, rhs)


def bmm_softmax(lhs: Array, rhs: Array) -> Array:
    """By the logarithm of the sum."""
    scores = bmm(lhs, rhs)
    return np.exp(scores - np.logaddexp.reduce(scores, axis=2)[..., None])


def gqa_full(q: Array, k: Array, v: Array) -> Array:
    """Online: keys come in blocks, and what was added up before is scaled to the new maximum."""
    group = q.shape[2] // k.shape[2]
    queries, keys, values = (array.transpose(0, 2, 1, 3) for array in (q, k, v))
    queries = queries.reshape(q.shape[0], k.shape[2], group, *queries.shape[2:])
    shape = queries.shape[:-1]
    top, total, out = np.full(shape, -np.inf), np.zeros(shape), np.zeros(queries.shape)
    for start in range(0, k.shape[1], 100):
        block = slice(start, start + 100)
        scores = np.einsum("bhgqd,bhkd->bhgqk", queries, keys[:, :, block], optimize=True)
        scores /= math.sqrt(q.shape[3])
        higher = np.maximum(top, scores.max(axis=-1))
        weights, kept = np.exp(scores - higher[..., None]), np.exp(top - higher)
        total = total * kept + weights.sum(axis=-1)
        out *= kept[..., None]
        out += np.einsum("bhgqk,bhkd->bhgqd", weights, values[:, :, block], optimize=True)
        top = higher
    return (out / total[..., None]).reshape(q.shape[0], q.shape[2], *q.shape[1::2])


def lora(x: Array, w: Array, a: Array, b: Array) -> Array:
    """One product, with the weights that both make together."""
    return np.einsum("mk,kn->mn", x, w + np.einsum("kr,rn->kn", a, b))


def mamba(delta: Array, u: Array, a: Array, b: Array, c: Array) -> Array:
    """The recurrence solved: what entered at step j has decayed by exp(a * sum of delta after j)."""
    elapsed = np.cumsum(delta, axis=1)
    out = np.zeros(delta.shape)
    for rate, entering, leaving in zip(a.T[:, :, None], b, c, strict=True):
        entered = np.cumsum(delta * u * entering * np.exp(-rate * elapsed), axis=1)
        out += leaving * np.exp(rate * elapsed) * entered
    return out


def matmul(lhs: Array, rhs: Array) -> Array:
    return np.einsum("mk,kn->mn", lhs, rhs)


def matmul_add_rmsnorm(x: Array, w: Array, z: Array, g: Array) -> Array:
    y = z + np.einsum("mk,kn->mn", x, w)
    return y * _inverse_rms(y, 1e-5) * g


def rmsnorm_matmul(x: Array, w: Array) -> Array:
    """Normalised after the product, which is linear."""
    return np.einsum("mk,kn->mn", x, w) * _inverse_rms(x, 0.0)


def rope_single_freq_apply(x: Array, freqs_cos: Array, freqs_sin: Array) -> Array:
    """A product of complex numbers."""
    half = len(x) // 2
    turned = (x[:half] + 1j * x[half:]) * (freqs_cos + 1j * freqs_sin)
    return np.concatenate([turned.real, turned.imag])


def silu(x: Array) -> Array:
    """By the hyperbolic tangent."""
    return x * (0.5 + 0.5 * np.tanh(x / 2))


def swiglu(x: Array, w_up: Array, w_down: Array, w_gate: Array) -> Array:
    up, gate = (np.einsum("mk,kn->mn", x, w) for w in (w_up, w_gate))
    return np.einsum("mn,nk->mk", up * silu(gate), w_down)


def transpose_matmul(lhs: Array, rhs: Array) -> Array:
    return np.einsum("km,kn->mn", lhs, rhs)


def _inverse_rms(rows: Array, epsilon: float) -> Array:
    """sqrt(n) / sqrt(|row|^2 + n * epsilon), as a column."""
    n = rows.shape[1]
    return np.sqrt(n / (np.einsum("mk,mk->m", rows, rows) + n * epsilon))[:, None]


STATEMENTS: dict[str, Callable[..., Array]] = {
    statement.__name__: statement
    for statement in (
        adamw, add_rmsnorm_matmul, bmm, bmm_softmax, gqa_full, lora, mamba, matmul, matmul_add_rmsnorm,
        rmsnorm_matmul, rope_single_freq_apply, silu, swiglu, transpose_matmul,
    )
}  # fmt: skip
