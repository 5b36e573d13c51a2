"""Records NumPy's functions that are not ufuncs.

Functions that only look at shapes are called on the shadows. A function that is not in the table is tried
with NumPy's own code, which often consists of recorded functions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from remote.judge.identity.tracing import indexing
from remote.judge.identity.tracing.arrays import ArrayRecorder, RecordedArray, UntraceableError
from remote.judge.identity.tracing.compositions import COMPOSITIONS
from remote.judge.identity.tracing.einsum import einsum, tensordot
from remote.judge.identity.tracing.ufuncs import (
    common_type,
    record_constant,
    record_elementwise,
    record_reduction,
    record_running_product,
    record_running_sum,
)


def record_function(recorder: ArrayRecorder, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Record one call of a NumPy function."""
    if func in _VIEW_FUNCTIONS:
        return _apply_to_shadow(func, args, kwargs)
    if func in _FUNCTIONS:
        return _FUNCTIONS[func](recorder, *args, **kwargs)
    name = f"np.{func.__module__.removeprefix('numpy').strip('.')}.{func.__name__}".replace("np..", "np.")
    own = getattr(func, "_implementation", None)
    if own is None or func in _REFUSED_FUNCTIONS:
        raise UntraceableError(f"it uses {name}")
    return own(*args, **kwargs)


def _apply_to_shadow(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    value, *rest = args
    if not isinstance(value, RecordedArray):
        raise UntraceableError(f"it uses np.{func.__name__} of a list of arrays")
    return value.move_shadow(lambda array: func(array, *rest, **kwargs))


def _as_array(recorder: ArrayRecorder, value: Any) -> RecordedArray:
    return value if isinstance(value, RecordedArray) else record_constant(recorder, value)


def _sum(recorder: ArrayRecorder, a: Any, axis: Any = None, dtype: Any = None, **kwargs: Any) -> Any:
    return np.add.reduce(a, axis=axis, dtype=dtype, **_given_arguments(kwargs))


def _make_reduction(ufunc: np.ufunc) -> Callable[..., Any]:
    def call(recorder: ArrayRecorder, a: Any, axis: Any = None, **kwargs: Any) -> Any:
        return ufunc.reduce(a, axis=axis, **_given_arguments(kwargs))

    return call


def _mean(recorder: ArrayRecorder, a: Any, axis: Any = None, dtype: Any = None, **kwargs: Any) -> Any:
    total = np.add.reduce(a, axis=axis, **_given_arguments(kwargs))
    if (where := kwargs.get("where", True)) is not True and where is not np._NoValue:  # noqa: SLF001
        shown = _as_array(recorder, where).broadcast_view(a.shape)
        return total / record_reduction(shown, "add", axis, keepdims=kwargs.get("keepdims") is True)
    return total / (a.size / max(total.size, 1))


def _variance(
    recorder: ArrayRecorder, a: Any, axis: Any = None, dtype: Any = None, ddof: float = 0, **kwargs: Any
) -> Any:
    if "where" in _given_arguments(kwargs):
        raise UntraceableError("it uses np.var or np.std with `where`")
    centred = np.square(a - np.mean(a, axis=axis, keepdims=True))
    total = np.add.reduce(centred, axis=axis, **_given_arguments(kwargs))
    return total / (a.size / max(total.size, 1) - ddof)


def _deviation(recorder: ArrayRecorder, a: Any, *args: Any, **kwargs: Any) -> Any:
    return np.sqrt(np.var(a, *args, **kwargs))


def _average(recorder: ArrayRecorder, a: Any, axis: Any = None, weights: Any = None, **kwargs: Any) -> Any:
    if weights is None:
        return np.mean(a, axis=axis, **kwargs)
    if np.ndim(weights) != a.ndim:
        raise UntraceableError("it uses np.average with weights of another shape")
    return np.sum(a * weights, axis=axis, **kwargs) / np.sum(weights, axis=axis, **kwargs)


def _vector_norm(
    recorder: ArrayRecorder,
    x: Any,
    ord: Any = None,  # noqa: A002  NumPy's name
    axis: Any = None,
    keepdims: bool = False,
) -> Any:
    of_vectors = x.ndim == 1 or isinstance(axis, int)
    if ord is None or ord == "fro" or (ord == 2 and of_vectors):
        return np.sqrt(np.sum(np.square(x), axis=axis, keepdims=keepdims))
    if not of_vectors or ord not in {1, np.inf}:
        raise UntraceableError("it uses np.linalg.norm of another order")
    combine = np.sum if ord == 1 else np.max
    return combine(np.abs(x), axis=axis, keepdims=keepdims)


def _where(recorder: ArrayRecorder, condition: Any, *branches: Any) -> RecordedArray:
    if len(branches) != 2:
        raise UntraceableError("it asks for the places of true elements")
    return indexing.record_select(_as_array(recorder, condition), condition, *branches)


def _clip(recorder: ArrayRecorder, a: Any, a_min: Any = None, a_max: Any = None, **kwargs: Any) -> Any:
    low, high = kwargs.pop("min", a_min), kwargs.pop("max", a_max)
    out = kwargs.pop("out", None)
    found = a if low is None else np.maximum(a, low)
    found = found if high is None else np.minimum(found, high)
    return _write_result(out, found)


def _concatenate(
    recorder: ArrayRecorder, arrays: Sequence[Any], axis: Any = 0, out: Any = None, **kwargs: Any
) -> Any:
    parts = [_as_array(recorder, item) for item in arrays]
    if axis is None:
        parts, axis = [part.move_shadow(lambda array: array.reshape(-1)) for part in parts], 0
    axis %= parts[0].ndim
    ends = np.cumsum([0, *(part.shape[axis] for part in parts)]).tolist()
    shape = (*parts[0].shape[:axis], ends[-1], *parts[0].shape[axis + 1 :])
    found = empty(recorder, shape, np.result_type(*(part.dtype for part in parts)))
    for part, (start, end) in zip(parts, pairwise(ends), strict=True):
        found[(slice(None),) * axis + (slice(start, end),)] = part
    return _write_result(out, found)


def _stack(
    recorder: ArrayRecorder, arrays: Sequence[Any], axis: int = 0, out: Any = None, **kwargs: Any
) -> Any:
    parts = [_as_array(recorder, item) for item in arrays]
    spread = [part.move_shadow(lambda array: np.expand_dims(array, axis)) for part in parts]
    return _concatenate(recorder, spread, axis, out)


def _make_stacking(at_least: Callable[[Any], Any], axis: int) -> Callable[..., Any]:
    def call(recorder: ArrayRecorder, arrays: Sequence[Any], **kwargs: Any) -> Any:
        parts = [_as_array(recorder, item) for item in arrays]
        flat = axis == 1 and at_least is np.atleast_1d and all(part.ndim == 1 for part in parts)
        return _concatenate(recorder, [part.move_shadow(at_least) for part in parts], 0 if flat else axis)

    return call


def _column_stack(recorder: ArrayRecorder, arrays: Sequence[Any]) -> Any:
    parts = [_as_array(recorder, item) for item in arrays]
    return _concatenate(recorder, [part[:, None] if part.ndim == 1 else part for part in parts], 1)


def _repeat(recorder: ArrayRecorder, a: Any, repeats: Any, axis: int | None = None) -> RecordedArray:
    source = a if axis is not None else a.move_shadow(lambda array: array.reshape(-1))
    index = np.repeat(np.arange(source.shape[axis or 0]), repeats)
    return indexing.take_elements(source, index, (axis or 0) % source.ndim)


def _tile(recorder: ArrayRecorder, a: Any, reps: Any) -> RecordedArray:
    counts = (reps,) if isinstance(reps, int) else tuple(reps)
    counts = (1,) * (a.ndim - len(counts)) + counts
    source = a.move_shadow(lambda array: array.reshape((1,) * (len(counts) - a.ndim) + array.shape))
    for axis, count in enumerate(counts):
        if count > 1:
            source = _concatenate(recorder, [source] * count, axis)
    return source.copy_elements() if isinstance(source, RecordedArray) else source


def _roll(recorder: ArrayRecorder, a: Any, shift: Any, axis: Any = None) -> Any:
    if axis is None:
        flat = _roll(recorder, a.move_shadow(lambda array: array.reshape(-1)), shift, 0)
        return flat.move_shadow(lambda array: array.reshape(a.shape))
    for by, along in zip(np.atleast_1d(shift).tolist(), np.atleast_1d(axis).tolist(), strict=True):
        index = np.roll(np.arange(a.shape[along]), by)
        a = indexing.take_elements(a, index, along % a.ndim)
    return a


_REPEATING_PADS = frozenset({"edge", "reflect", "symmetric", "wrap"})
"""Modes of padding in which each element is one of the array's."""


def _pad(
    recorder: ArrayRecorder, array: Any, pad_width: Any, mode: str = "constant", **kwargs: Any
) -> RecordedArray:
    widths = np.broadcast_to(np.asarray(pad_width), (array.ndim, 2)).tolist()
    if mode in _REPEATING_PADS:
        for axis, width in enumerate(widths):
            places = np.pad(np.arange(array.shape[axis]), width, mode=mode)  # type: ignore[call-overload]
            array = indexing.take_elements(array, places, axis) if any(width) else array
        padded: RecordedArray = array.copy_elements()
        return padded
    if mode != "constant":
        raise UntraceableError(f"it pads by mode {mode!r}")
    shape = tuple(sum(width) + size for width, size in zip(widths, array.shape, strict=True))
    found = full(recorder, shape, kwargs.get("constant_values", 0.0), array.dtype)
    inside = zip(widths, array.shape, strict=True)
    found[tuple(slice(first, first + size) for (first, _), size in inside)] = array
    return found


def _take(
    recorder: ArrayRecorder, a: Any, indices: Any, axis: int | None = None, **kwargs: Any
) -> RecordedArray:
    source = a if axis is not None else a.move_shadow(lambda array: array.reshape(-1))
    listed = indices if isinstance(indices, RecordedArray) else np.asarray(indices)
    found: RecordedArray = source[(slice(None),) * ((axis or 0) % source.ndim) + (listed,)]
    return found


def _make_triangle(keep: np.ufunc) -> Callable[..., RecordedArray]:
    def call(recorder: ArrayRecorder, m: Any, k: int = 0) -> RecordedArray:
        rows, columns = (record_constant(recorder, np.arange(size, dtype=np.int32)) for size in m.shape[-2:])
        return indexing.record_select(m, keep(columns[None] - k, rows[:, None]), m, 0.0)

    return call


def _make_running(record: Callable[[RecordedArray, int], RecordedArray]) -> Callable[..., Any]:
    def call(
        recorder: ArrayRecorder, a: Any, axis: int | None = None, dtype: Any = None, out: Any = None
    ) -> Any:
        source = a if axis is not None else a.move_shadow(lambda array: array.reshape(-1))
        return _write_result(out, record(source, axis or 0))

    return call


def _dot(recorder: ArrayRecorder, a: Any, b: Any, out: Any = None) -> Any:
    left, right = _as_array(recorder, a), _as_array(recorder, b)
    if left.ndim == 0 or right.ndim == 0:
        return _write_result(out, np.multiply(left, right))
    if right.ndim <= 2:
        return _write_result(out, np.matmul(left, right))
    return _write_result(out, tensordot(recorder, left, right, ([-1], [-2])))


def _matrix_power(recorder: ArrayRecorder, a: Any, n: int) -> Any:
    if n < 1:
        raise UntraceableError(f"it takes the power {n} of a matrix")
    found, square = None, _as_array(recorder, a)
    while n:
        if n % 2:
            found = square if found is None else np.matmul(found, square)
        n //= 2
        square = np.matmul(square, square) if n else square
    return found


def _inner(recorder: ArrayRecorder, a: Any, b: Any) -> Any:
    return tensordot(recorder, _as_array(recorder, a), _as_array(recorder, b), ([-1], [-1]))


def _flat_dot(recorder: ArrayRecorder, a: Any, b: Any) -> Any:
    one, other = (_as_array(recorder, item).move_shadow(lambda array: array.reshape(-1)) for item in (a, b))
    return np.matmul(one, other)


def _outer(recorder: ArrayRecorder, a: Any, b: Any, out: Any = None) -> Any:
    one, other = (_as_array(recorder, item).move_shadow(lambda array: array.reshape(-1)) for item in (a, b))
    return _write_result(out, np.multiply.outer(one, other))


def _round(recorder: ArrayRecorder, a: Any, decimals: int = 0, out: Any = None) -> Any:
    if decimals:
        raise UntraceableError("it rounds to decimals")
    return _write_result(out, record_elementwise(recorder, "rint", a, dtype=a.dtype))


def empty(recorder: ArrayRecorder, shape: Any, dtype: Any = None, **kwargs: Any) -> RecordedArray:
    """Record an array of unknown numbers."""
    sizes = tuple(int(size) for size in np.atleast_1d(shape))
    return recorder.make_array(recorder.add("unknown", (), sizes), np.float64 if dtype is None else dtype)


def full(
    recorder: ArrayRecorder, shape: Any, fill_value: Any, dtype: Any = None, **kwargs: Any
) -> RecordedArray:
    """Record an array of one value."""
    value = _as_array(recorder, fill_value)
    sizes = tuple(int(size) for size in np.atleast_1d(shape))
    return value.broadcast_view(sizes).copy_elements(np.dtype(dtype) if dtype else value.dtype)


def _make_like(value: float | None) -> Callable[..., RecordedArray]:
    def call(recorder: ArrayRecorder, a: Any, dtype: Any = None, **kwargs: Any) -> RecordedArray:
        shape = kwargs.get("shape") or np.shape(a)
        own = dtype or a.dtype
        return empty(recorder, shape, own) if value is None else full(recorder, shape, value, own)

    return call


def _full_like(
    recorder: ArrayRecorder, a: Any, fill_value: Any, dtype: Any = None, **kwargs: Any
) -> RecordedArray:
    return full(recorder, kwargs.get("shape") or np.shape(a), fill_value, dtype or a.dtype)


def _copy(recorder: ArrayRecorder, a: Any, **kwargs: Any) -> RecordedArray:
    return _as_array(recorder, a).copy_elements()


def _copyto(
    recorder: ArrayRecorder, dst: Any, src: Any, casting: str = "same_kind", where: Any = True
) -> None:
    dst[...] = src if where is True else indexing.record_select(dst, where, src, dst)


def _return_unchanged(recorder: ArrayRecorder, a: Any, **kwargs: Any) -> Any:
    return a


def _astype(recorder: ArrayRecorder, x: Any, dtype: Any, /, **kwargs: Any) -> Any:
    return x.astype(dtype)


def _broadcast_arrays(recorder: ArrayRecorder, *args: Any, **kwargs: Any) -> Any:
    parts = [_as_array(recorder, item) for item in args]
    shape = np.broadcast_shapes(*(part.shape for part in parts))
    return tuple(part.broadcast_view(shape) for part in parts)


def _number_of_axes(recorder: ArrayRecorder, a: RecordedArray) -> int:
    return a.ndim


def _shape(recorder: ArrayRecorder, a: RecordedArray) -> tuple[int, ...]:
    return a.shape


def _size(recorder: ArrayRecorder, a: RecordedArray, axis: int | None = None) -> int:
    return a.size if axis is None else a.shape[axis]


def _common_type(recorder: ArrayRecorder, *args: Any) -> np.dtype[Any]:
    return common_type(*args)


def _return_false(recorder: ArrayRecorder, x: Any) -> bool:
    return False


def _return_true(recorder: ArrayRecorder, x: Any) -> bool:
    return True


def _split(recorder: ArrayRecorder, ary: Any, indices_or_sections: Any, axis: int = 0) -> list[RecordedArray]:
    parts = np.array_split(np.arange(ary.shape[axis]), indices_or_sections)
    lead = (slice(None),) * (axis % ary.ndim)
    return [ary[(*lead, slice(int(part[0]), int(part[-1]) + 1))] for part in parts]


def _given_arguments(kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments, without those that have no effect."""
    nothing = (None, np._NoValue)  # noqa: SLF001  NumPy's default
    return {name: value for name, value in kwargs.items() if not any(value is item for item in nothing)}


def _write_result(out: Any, found: Any) -> Any:
    if out is None:
        return found
    out[...] = found
    return out


_VIEW_FUNCTIONS = frozenset({
    np.atleast_1d, np.atleast_2d, np.atleast_3d, np.broadcast_to, np.diagonal, np.expand_dims, np.flip,
    np.fliplr, np.flipud, np.matrix_transpose, np.moveaxis, np.permute_dims, np.ravel, np.reshape,
    np.rollaxis, np.rot90, np.lib.stride_tricks.sliding_window_view, np.squeeze, np.swapaxes, np.transpose,
})  # fmt: skip

_FUNCTIONS: dict[Any, Callable[..., Any]] = {
    np.amax: _make_reduction(np.maximum), np.amin: _make_reduction(np.minimum),
    np.max: _make_reduction(np.maximum), np.min: _make_reduction(np.minimum),
    np.nanmax: _make_reduction(np.maximum), np.nanmin: _make_reduction(np.minimum),
    np.prod: _make_reduction(np.multiply), np.sum: _sum, np.nansum: _sum, np.mean: _mean, np.nanmean: _mean,
    np.var: _variance, np.std: _deviation, np.average: _average, np.linalg.norm: _vector_norm,
    np.where: _where, np.clip: _clip, np.round: _round,
    np.concatenate: _concatenate, np.stack: _stack, np.vstack: _make_stacking(np.atleast_2d, 0),
    np.hstack: _make_stacking(np.atleast_1d, 1), np.dstack: _make_stacking(np.atleast_3d, 2),
    np.column_stack: _column_stack,
    np.array_split: _split, np.split: _split,
    np.repeat: _repeat, np.tile: _tile, np.roll: _roll, np.pad: _pad, np.take: _take,
    np.tril: _make_triangle(np.less_equal), np.triu: _make_triangle(np.greater_equal),
    np.cumsum: _make_running(record_running_sum), np.cumprod: _make_running(record_running_product),
    np.einsum: einsum, np.tensordot: tensordot, np.dot: _dot, np.inner: _inner, np.vdot: _flat_dot,
    np.outer: _outer, np.linalg.matrix_power: _matrix_power,
    np.empty_like: _make_like(None), np.zeros_like: _make_like(0.0), np.ones_like: _make_like(1.0),
    np.full_like: _full_like,
    np.copy: _copy, np.copyto: _copyto, np.astype: _astype, np.broadcast_arrays: _broadcast_arrays,
    np.nan_to_num: _copy, np.real: _return_unchanged,
    np.ndim: _number_of_axes, np.shape: _shape, np.size: _size, np.result_type: _common_type,
    np.iscomplexobj: _return_false, np.isrealobj: _return_true, **COMPOSITIONS,
}  # fmt: skip

_REFUSED_FUNCTIONS = frozenset({np.argmax, np.argmin, np.argsort, np.sort, np.nonzero, np.median})
"""Refused here, because NumPy's own code would fail with a less clear message."""
