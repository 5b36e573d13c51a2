"""Measures what honest rounding and reordering do: runs the reference in float32 with its sums reordered.

`run_in_float32` runs a NumPy reference on arrays that replace float64 by float32. Sums and matrix products
add up in shuffled order, chunk after chunk, as a device does. The distance to the exact result is the
yardstick for a kernel's error, and tells whether extreme inputs can be judged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

_CHUNK = 128
_MX_GROUP = 32
_FLOATS = "fV"
"""Kinds of types that hold fractions: bfloat16 and float8 are no types of NumPy itself."""
_MX_HEADROOM = 7
"""The exponent of the largest element of a group of float8_e4m3fn: half of what that type reaches."""


def run_in_float32(reference: Callable[..., Any], inputs: Sequence[Array], seed: int) -> Any:
    """Return the reference's result in float32, with its additions in an order drawn by `seed`."""
    ReorderedArray.order = np.random.default_rng(seed)
    with np.errstate(all="ignore"):
        return reference(*(array.view(ReorderedArray) for array in inputs))


def run_in_narrow_type(reference: Callable[..., Any], inputs: Sequence[Array], dtype: Any) -> Any:
    """Return the reference's result when everything it computes is kept in a type of two bytes."""
    ReorderedArray.kept = np.dtype(dtype)
    try:
        return run_in_float32(reference, inputs, seed=2)
    finally:
        ReorderedArray.kept = None


def run_with_mx_products(reference: Callable[..., Any], inputs: Sequence[Array]) -> Any:
    """Return the reference's result when the operands of products are rounded to MXFP8."""
    ReorderedArray.rounds_products = True
    try:
        return run_in_float32(reference, inputs, seed=3)
    finally:
        ReorderedArray.rounds_products = False


class ReorderedArray(np.ndarray[Any, Any]):
    """An array of at most float32 whose sums run in shuffled order; elements are rounded to `kept`.

    If it `rounds_products`, their operands are rounded to MXFP8.
    """

    order = np.random.default_rng(0)
    kept: np.dtype[Any] | None = None
    rounds_products = False

    def astype(self, dtype: Any, *args: Any, **kwargs: Any) -> Any:
        """Cast as NumPy does, to float32 where float64 is asked for."""
        return super().astype(_narrow_dtype(dtype), *args, **kwargs)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        """Compute on plain float32 arrays, with additions and matrix products in shuffled order."""
        plain = [_plain_array(item) for item in inputs]
        if "dtype" in kwargs:
            kwargs["dtype"] = _narrow_dtype(kwargs["dtype"])
        out = kwargs.pop("out", None)
        if out is not None:
            kwargs["out"] = tuple(item.view(np.ndarray) if item is not None else None for item in out)
        function = _REORDERED_UFUNCS.get((ufunc, method)) if out is None else None
        result = function(*plain, **kwargs) if function else getattr(ufunc, method)(*plain, **kwargs)
        return _wrap_result(result)

    def __array_function__(
        self, func: Any, types: Iterable[type], args: Iterable[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        """Keep the type through functions that are not ufuncs."""
        if ReorderedArray.rounds_products and func in _PRODUCTS:
            args = tuple(_round_to_mx(item) if isinstance(item, np.ndarray) else item for item in args)
        return _wrap_result(super().__array_function__(func, types, args, kwargs))


def _narrow_dtype(dtype: Any) -> Any:
    return np.float32 if dtype is not None and np.dtype(dtype) == np.float64 else dtype


def _plain_array(item: Any) -> Any:
    if isinstance(item, np.ndarray):
        item = item.view(np.ndarray)
    if isinstance(item, np.ndarray | np.generic) and item.dtype == np.float64:
        return item.astype(np.float32)
    return item


def _wrap_result(result: Any) -> Any:
    if isinstance(result, tuple | list):
        return type(result)(_wrap_result(item) for item in result)
    if isinstance(result, np.ndarray | np.floating):
        array = np.asarray(_plain_array(result))
        if ReorderedArray.kept is not None and array.dtype == np.float32:
            array = array.astype(ReorderedArray.kept).astype(np.float32)
        return array.view(ReorderedArray)
    return result


def _shuffled_chunks(length: int) -> list[Array]:
    """All positions in shuffled order, in chunks."""
    order = ReorderedArray.order.permutation(length)
    return [order[start : start + _CHUNK] for start in range(0, length, _CHUNK)]


def _matmul(left: Array, right: Array, **kwargs: Any) -> Any:
    if ReorderedArray.rounds_products and left.ndim and right.ndim:
        left = _round_to_mx(left)
        right = (
            _round_to_mx(right.swapaxes(-1, -2)).swapaxes(-1, -2) if right.ndim > 1 else _round_to_mx(right)
        )
    if left.ndim < 2 or right.ndim < 2 or kwargs:
        return np.matmul(left, right, **kwargs)
    parts = (left[..., piece] @ right[..., piece, :] for piece in _shuffled_chunks(left.shape[-1]))
    return _sum_in_turn(parts)


def _round_to_mx(array: Array) -> Array:
    """Round to 8 bits with a power of two as the scale of each 32 neighbours in a row."""
    if array.dtype.kind not in _FLOATS or not array.size:
        return array
    pad = [(0, 0)] * (array.ndim - 1) + [(0, -array.shape[-1] % _MX_GROUP)]
    groups = np.pad(np.asarray(array, np.float32), pad).reshape(*array.shape[:-1], -1, _MX_GROUP)
    largest = np.abs(groups).max(axis=-1, keepdims=True)
    exponents = np.frexp(np.where(np.isfinite(largest), largest, 1.0))[1] - 1 - _MX_HEADROOM
    rounded = np.ldexp(groups, -exponents).astype(ml_dtypes.float8_e4m3fn).astype(np.float32)
    found = np.ldexp(rounded, exponents).reshape(*array.shape[:-1], -1)[..., : array.shape[-1]]
    result: Array = found.view(type(array))
    return result


def _add_reduce(array: Any, axis: Any = 0, dtype: Any = None, **kwargs: Any) -> Any:
    usual = dtype is None and kwargs.get("where", True) is True and kwargs.get("initial") is None
    if not usual or not isinstance(axis, int) or not array.shape[axis]:
        return np.add.reduce(array, axis=axis, dtype=dtype, **kwargs)
    pieces = _shuffled_chunks(array.shape[axis])
    return _sum_in_turn(np.add.reduce(array.take(piece, axis), axis=axis, **kwargs) for piece in pieces)


def _sum_in_turn(parts: Iterable[Array]) -> Any:
    total = None
    for part in parts:
        total = part if total is None else total + part
    return total


_PRODUCTS = frozenset({np.dot, np.einsum, np.inner, np.tensordot})
"""Products that are no ufuncs; whatever they contract, neighbours in a row share a scale."""

_REORDERED_UFUNCS: dict[tuple[np.ufunc, str], Callable[..., Any]] = {
    (np.matmul, "__call__"): _matmul,
    (np.add, "reduce"): _add_reduce,
}
