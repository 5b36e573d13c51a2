"""NumPy's functions that consist of others: differences, diagonals, sums along an array, chains of products.

NumPy's own code for them looks at numbers, or goes through ufuncs that nothing records. Each is said here by
what is recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any

import numpy as np

from remote.judge.identity.tracing.arrays import ArrayRecorder, RecordedArray, UntraceableError
from remote.judge.identity.tracing.indexing import record_select
from remote.judge.identity.tracing.ufuncs import record_constant, record_reduction


def _as_array(recorder: ArrayRecorder, value: Any) -> RecordedArray:
    return value if isinstance(value, RecordedArray) else record_constant(recorder, value)


def _diff(recorder: ArrayRecorder, a: Any, n: int = 1, axis: int = -1, **kwargs: Any) -> Any:
    ends = [kwargs.pop(name) for name in ("prepend", "append") if name in kwargs]
    if any(end is not np._NoValue for end in ends):  # noqa: SLF001  NumPy's default
        raise UntraceableError("it uses np.diff with `prepend` or `append`")
    lead = (slice(None),) * (axis % a.ndim)
    for _ in range(n):
        a = a[(*lead, slice(1, None))] - a[(*lead, slice(None, -1))]
    return a


def _trace(
    recorder: ArrayRecorder, a: Any, offset: int = 0, axis1: int = 0, axis2: int = 1, **kwargs: Any
) -> Any:
    return np.diagonal(a, offset, axis1, axis2).sum(-1)


def _diag(recorder: ArrayRecorder, v: Any, k: int = 0) -> Any:
    if v.ndim == 2:
        return np.diagonal(v, k)
    size = v.shape[0] + abs(k)
    placed: Any = np.pad(v, (max(k, 0), max(-k, 0)))
    return record_select(placed, np.eye(size, size, k, dtype=bool), placed[None], 0.0)


def _kron(recorder: ArrayRecorder, a: Any, b: Any) -> Any:
    one, other = _as_array(recorder, a), _as_array(recorder, b)
    if one.ndim != other.ndim:
        raise UntraceableError("it uses np.kron of arrays with different numbers of axes")
    shape = [size * inner for size, inner in zip(one.shape, other.shape, strict=True)]
    spread = one.reshape([size for own in one.shape for size in (own, 1)])
    return (spread * other.reshape([size for own in other.shape for size in (1, own)])).reshape(shape)


def _cross(
    recorder: ArrayRecorder, a: Any, b: Any, *axes: int, axis: int | None = None, **kwargs: Any
) -> Any:
    if axes or any(value != -1 for value in kwargs.values()):
        raise UntraceableError("it uses np.cross with axes of their own")
    at = -1 if axis is None else axis
    vectors = [_as_array(recorder, item) for item in (a, b)]
    one, other = (item.move_shadow(lambda array: np.moveaxis(array, at, -1)) for item in vectors)
    if one.shape[-1] != 3 or other.shape[-1] != 3:
        raise UntraceableError("it uses np.cross of vectors that have not three elements")
    parts = [
        one[..., (place + 1) % 3] * other[..., (place + 2) % 3]
        - one[..., (place + 2) % 3] * other[..., (place + 1) % 3]
        for place in range(3)
    ]
    return np.stack(parts, axis=at)


def _convolve(recorder: ArrayRecorder, a: Any, v: Any, mode: str = "full") -> Any:
    long, short = _as_array(recorder, a), _as_array(recorder, v)
    if short.size > long.size:
        long, short = short, long
    border = short.size - 1
    padded = np.pad(long, border)
    count = long.size + border
    terms = [padded[border - at : border - at + count] * short[at] for at in range(short.size)]
    whole = reduce(np.add, terms)
    if mode == "full":
        return whole
    if mode not in {"same", "valid"}:
        raise UntraceableError(f"it uses np.convolve with mode {mode!r}")
    first = border if mode == "valid" else border // 2
    return whole[first : first + (long.size - border if mode == "valid" else long.size)]


def _correlate(recorder: ArrayRecorder, a: Any, v: Any, mode: str = "valid") -> Any:
    if np.size(v) > np.size(a):
        raise UntraceableError("it uses np.correlate with a second array that is longer than the first")
    first = _as_array(recorder, v)
    return _convolve(recorder, a, first[::-1], mode)


def _select(
    recorder: ArrayRecorder, condlist: Sequence[Any], choicelist: Sequence[Any], default: Any = 0
) -> Any:
    found = default
    for condition, choice in zip(condlist[::-1], choicelist[::-1], strict=True):
        found = np.where(_as_array(recorder, condition), choice, found)
    return found


def _append(recorder: ArrayRecorder, arr: Any, values: Any, axis: int | None = None) -> Any:
    return np.concatenate([_as_array(recorder, arr), _as_array(recorder, values)], axis=axis)


def _multi_dot(recorder: ArrayRecorder, arrays: Sequence[Any], **kwargs: Any) -> Any:
    return reduce(np.matmul, [_as_array(recorder, item) for item in arrays])


def _covariance(
    recorder: ArrayRecorder, m: Any, y: Any = None, rowvar: bool = True, bias: bool = False, **kwargs: Any
) -> Any:
    ddof = kwargs.pop("ddof", None)
    if y is not None or m.ndim != 2 or any(value is not None for value in kwargs.values()):
        raise UntraceableError("it uses np.cov with a second array, weights or a vector")
    rows = m if rowvar else m.T
    centred = rows - rows.mean(axis=1, keepdims=True)
    free = ddof if ddof is not None else 0 if bias else 1
    return centred @ centred.T / (rows.shape[1] - free)


def _correlation(recorder: ArrayRecorder, x: Any, y: Any = None, rowvar: bool = True, **kwargs: Any) -> Any:
    covariance = _covariance(recorder, x, y, rowvar)
    deviations = np.sqrt(np.diagonal(covariance))
    return covariance / deviations[:, None] / deviations[None, :]


def _polynomial(recorder: ArrayRecorder, p: Any, x: Any) -> Any:
    found = _as_array(recorder, p[0])
    for coefficient in p[1:]:
        found = found * x + coefficient
    return found


def _apply_along_axis(
    recorder: ArrayRecorder, func1d: Callable[..., Any], axis: int, arr: Any, *args: Any, **kwargs: Any
) -> Any:
    moved = np.moveaxis(arr, axis, -1)
    lead = moved.shape[:-1]
    lines = [func1d(moved[place], *args, **kwargs) for place in np.ndindex(lead)]
    found = np.stack(lines)
    found = found.reshape((*lead, *found.shape[1:]))
    return found if len(found.shape) == len(lead) else np.moveaxis(found, -1, axis)


def _truth(a: Any) -> Any:
    return a if a.dtype.kind == "b" else np.not_equal(a, 0.0)


def _make_truth_test(name: str) -> Callable[..., Any]:
    def call(recorder: ArrayRecorder, a: Any, axis: Any = None, out: Any = None, **kwargs: Any) -> Any:
        keepdims = kwargs.pop("keepdims", False) is True
        if out is not None or any(value is not np._NoValue for value in kwargs.values()):  # noqa: SLF001
            raise UntraceableError(f"it uses np.{name} with `out` or `where`")
        function = "maximum" if name == "any" else "minimum"
        return record_reduction(_truth(a), function, axis, keepdims=keepdims)

    return call


def _count_nonzero(recorder: ArrayRecorder, a: Any, axis: Any = None, *, keepdims: bool = False) -> Any:
    return record_reduction(_truth(a), "add", axis, keepdims=keepdims)


def _fill_diagonal(recorder: ArrayRecorder, a: Any, val: Any, wrap: bool = False) -> None:
    if a.ndim != 2 or wrap:
        raise UntraceableError("it uses np.fill_diagonal of other than a matrix")
    a[...] = record_select(a, np.eye(*a.shape, dtype=bool), val, a)


def _block(recorder: ArrayRecorder, arrays: Any) -> Any:
    def depth(item: Any) -> int:
        return 1 + depth(item[0]) if isinstance(item, list) else 0

    def join(item: Any, axis: int) -> Any:
        if not isinstance(item, list):
            missing = max(levels - np.ndim(item), 0)
            return _as_array(recorder, item).reshape((1,) * missing + np.shape(item))
        parts = [_as_array(recorder, join(part, axis + 1)) for part in item]
        return np.concatenate(parts, axis=axis)

    levels = depth(arrays)
    return join(arrays, -levels)


def _delete(recorder: ArrayRecorder, arr: Any, obj: Any, axis: int | None = None) -> Any:
    flat = arr.reshape(-1) if axis is None else arr
    at = axis or 0
    kept = np.delete(np.arange(flat.shape[at]), obj)
    runs = np.split(kept, 1 + np.flatnonzero(np.diff(kept) != 1))
    lead = (slice(None),) * (at % flat.ndim)
    return np.concatenate([flat[(*lead, slice(run[0], run[-1] + 1))] for run in runs], axis=at)


def _insert(recorder: ArrayRecorder, arr: Any, obj: Any, values: Any, axis: int | None = None) -> Any:
    if not isinstance(obj, int | np.integer):
        raise UntraceableError("it uses np.insert at several places")
    flat = arr.reshape(-1) if axis is None else arr
    at = (axis or 0) % flat.ndim
    place = int(obj) % (flat.shape[at] + 1) if obj >= 0 else int(obj) % flat.shape[at]
    given = _as_array(recorder, values)
    if given.ndim == flat.ndim - 1 and given.ndim:
        given = given[(slice(None),) * at + (None,)]
    count = given.shape[at] if given.ndim == flat.ndim else 1
    shape = tuple(count if one == at else size for one, size in enumerate(flat.shape))
    lead = (slice(None),) * at
    before = [flat[(*lead, slice(None, place))]] if place else []
    after = [flat[(*lead, slice(place, None))]] if place < flat.shape[at] else []
    return np.concatenate([*before, np.broadcast_to(given, shape), *after], axis=at)


def _piecewise(
    recorder: ArrayRecorder, x: Any, condlist: Any, funclist: Sequence[Any], *args: Any, **kwargs: Any
) -> Any:
    conditions = list(condlist) if isinstance(condlist, list | tuple) else [condlist]
    values = [item(x, *args, **kwargs) if callable(item) else item for item in funclist]
    default = values[len(conditions)] if len(values) > len(conditions) else 0.0
    found = default
    for condition, value in zip(conditions, values, strict=False):  # a later condition wins
        found = np.where(_as_array(recorder, condition), value, found)
    return found


def _interp(recorder: ArrayRecorder, x: Any, xp: Any, fp: Any, **kwargs: Any) -> Any:
    left, right = (kwargs.pop(name, None) for name in ("left", "right"))
    if kwargs.get("period") is not None or isinstance(xp, RecordedArray):
        raise UntraceableError("it uses np.interp with `period` or with nodes that are not known")
    nodes, given = np.asarray(xp, float), _as_array(recorder, fp)
    found: Any = given[0] if left is None else left
    # From the end of a piece where it is smaller, a kernel's float32 has more digits.
    known = None if isinstance(fp, RecordedArray) else np.asarray(fp, float)
    pieces = []
    for at in range(len(nodes) - 1):
        slope = (given[at + 1] - given[at]) / (nodes[at + 1] - nodes[at])
        near = at + int(known is not None and bool(abs(known[at + 1]) < abs(known[at])))
        pieces.append(given[near] + (x - nodes[near]) * slope)
    pieces.append(given[len(nodes) - 1])
    for node, piece in zip(nodes, pieces, strict=True):
        found = np.where(np.greater_equal(x, node), piece, found)
    return found if right is None else np.where(np.greater(x, nodes[-1]), right, found)


COMPOSITIONS: Mapping[Any, Callable[..., Any]] = {
    np.all: _make_truth_test("all"), np.any: _make_truth_test("any"), np.append: _append,
    np.apply_along_axis: _apply_along_axis, np.block: _block, np.convolve: _convolve,
    np.corrcoef: _correlation, np.correlate: _correlate, np.count_nonzero: _count_nonzero,
    np.cov: _covariance, np.cross: _cross, np.delete: _delete, np.diag: _diag, np.diff: _diff,
    np.fill_diagonal: _fill_diagonal, np.insert: _insert, np.interp: _interp, np.kron: _kron,
    np.linalg.multi_dot: _multi_dot, np.piecewise: _piecewise, np.polyval: _polynomial,
    np.select: _select, np.trace: _trace,
}  # fmt: skip
