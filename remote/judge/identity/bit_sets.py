"""Sets stored as the bits of unsigned integers: unions over axes and through matrix products."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from remote.judge.identity.domain import Array


def union_over_axes(bits: Array, axes: Sequence[int]) -> Array:
    """Return the union over axes, which stay with size one."""
    found: Array = np.asarray(np.bitwise_or.reduce(bits, axis=tuple(axes), keepdims=True))
    return found


def union_of_products(left: Array, right: Array, left_zero: Array, right_zero: Array) -> Array:
    """Return the union over all terms of each element of left @ right; a term that is zero adds nothing."""
    if not left.any() and not right.any():
        lead = np.broadcast_shapes(left.shape[:-2], right.shape[:-2])
        return np.zeros((*lead, left.shape[-2], right.shape[-1]), left.dtype)
    if not left_zero.any() and not right_zero.any():
        found: Array = union_over_axes(left, (-1,)) | union_over_axes(right, (-2,))
        return found
    terms = (
        _product_term(left, right, left_zero, right_zero=right_zero, at=at) for at in range(left.shape[-1])
    )
    total = next(terms)
    for term in terms:
        total |= term
    return total


def _product_term(left: Array, right: Array, left_zero: Array, *, right_zero: Array, at: int) -> Array:
    zero = left_zero[..., :, at, None] | right_zero[..., at, None, :]
    found: Array = np.where(zero, left.dtype.type(0), left[..., :, at, None] | right[..., at, None, :])
    return found
