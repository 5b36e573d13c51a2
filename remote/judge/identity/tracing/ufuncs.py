"""Records elementwise functions, their reductions, and matrix products."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from remote.judge.identity.functions import COMPARISONS, REDUCTIONS
from remote.judge.identity.tracing.arrays import ArrayRecorder, RecordedArray, UntraceableError

_FINITENESS_RESULTS = {"isfinite": True, "isinf": False, "isnan": False}


_LOGICAL_FUNCTIONS = {
    "add": "logical_or",
    "bitwise_and": "logical_and",
    "bitwise_or": "logical_or",
    "bitwise_xor": "logical_xor",
    "invert": "logical_not",
    "multiply": "logical_and",
}
"""The boolean counterparts of functions of numbers."""


def record_ufunc(
    recorder: ArrayRecorder, ufunc: np.ufunc, method: str, inputs: Sequence[Any], kwargs: dict[str, Any]
) -> Any:
    """Record one call of a ufunc; return the `out` argument if there is one."""
    out = kwargs.pop("out", None)
    if ufunc.nout != 1 or method not in _METHODS:
        raise UntraceableError(f"it uses np.{ufunc.__name__}, {method}")
    where = kwargs.pop("where", True) if method == "__call__" else True
    found = _METHODS[method](recorder, ufunc, inputs, kwargs)
    if out is None and where is not True:
        raise UntraceableError(f"it uses np.{ufunc.__name__} with `where` and without `out`")
    if out is None:
        return found
    (target,) = out
    if not isinstance(target, RecordedArray):
        raise UntraceableError("it writes to an array that is not followed")
    if where is not True:
        parts = tuple(recorder.number_of(item) for item in (where, found, target))
        found = recorder.make_array(recorder.add("select", parts), target.dtype)
    target[...] = found
    return target


def record_elementwise(
    recorder: ArrayRecorder, name: str, *inputs: Any, dtype: Any = np.float64
) -> RecordedArray:
    """Record a function of one or two arguments by its name."""
    kind = "unary" if len(inputs) == 1 else "binary"
    numbers = tuple(recorder.number_of(item) for item in inputs)
    return recorder.make_array(recorder.add(kind, numbers, (name,)), dtype)


def record_reduction(
    value: RecordedArray, name: str, axis: Any, *, keepdims: bool = False, dtype: Any = None
) -> RecordedArray:
    """Record a reduction over some axes; None means all."""
    axes = range(value.ndim) if axis is None else np.atleast_1d(axis)
    chosen = sorted(int(item) % value.ndim for item in axes)
    if not chosen:
        return value.copy_elements()
    number = value.recorder.add("reduce", (value.number,), (name, *chosen))
    counts = value.dtype.kind == "b" and name in {"add", "multiply"}
    found = value.recorder.make_array(number, dtype or (np.int64 if counts else value.dtype))
    return found if keepdims else found.move_shadow(lambda array: np.squeeze(array, axis=tuple(chosen)))


def record_matmul(recorder: ArrayRecorder, left: Any, right: Any) -> RecordedArray:
    """Record a product with the rules of np.matmul: vectors are rows on the left and columns on the right."""
    one, other = (
        item if isinstance(item, RecordedArray) else record_constant(recorder, item) for item in (left, right)
    )
    rows = one.move_shadow(lambda array: array[None]) if one.ndim == 1 else one
    columns = other.move_shadow(lambda array: array[:, None]) if other.ndim == 1 else other
    number = recorder.add("matmul", (rows.number, columns.number))
    found = recorder.make_array(number, common_type(one, other))
    if found.dtype.kind == "b":
        raise UntraceableError("it multiplies matrices of truth values")
    if other.ndim == 1:
        found = found.move_shadow(lambda array: array[..., 0])
    return (
        found.move_shadow(lambda array: array[..., 0, :] if other.ndim > 1 else array[..., 0])
        if one.ndim == 1
        else found
    )


def record_constant(recorder: ArrayRecorder, value: Any) -> RecordedArray:
    """Return known numbers as a recording array."""
    array = np.asarray(value)
    return recorder.make_array(recorder.add_constant(array), array.dtype)


def _record_call(
    recorder: ArrayRecorder, ufunc: np.ufunc, inputs: Sequence[Any], kwargs: dict[str, Any]
) -> RecordedArray:
    dtype = kwargs.pop("dtype", None)
    _require_known_arguments(ufunc, kwargs, {"casting", "order", "subok"})
    if ufunc is np.matmul:
        return record_matmul(recorder, *inputs)
    if ufunc.signature is not None or ufunc.nin > 2:
        raise UntraceableError(f"it uses np.{ufunc.__name__}")
    name = ufunc.__name__
    if name in _FINITENESS_RESULTS:
        # Symbols are finite: a reference that guards against infinities computes the same without the guard.
        (value,) = inputs
        return record_constant(recorder, np.bool_(_FINITENESS_RESULTS[name])).broadcast_view(value.shape)
    made_type = np.dtype(dtype or _result_type(ufunc, inputs))
    if made_type.kind == "b":
        name = _LOGICAL_FUNCTIONS.get(name, name)
    return record_elementwise(recorder, name, *inputs, dtype=made_type)


def _record_reduce(
    recorder: ArrayRecorder, ufunc: np.ufunc, inputs: Sequence[Any], kwargs: dict[str, Any]
) -> RecordedArray:
    (value, *rest) = inputs
    axis = rest[0] if rest else kwargs.pop("axis", 0)
    keepdims = kwargs.pop("keepdims", False)
    dtype, initial = kwargs.pop("dtype", None), kwargs.pop("initial", None)
    where = kwargs.pop("where", True)
    _require_known_arguments(ufunc, kwargs, set())
    name = {"fmax": "maximum", "fmin": "minimum"}.get(ufunc.__name__, ufunc.__name__)
    if initial is np._NoValue:  # noqa: SLF001  NumPy's default
        initial = None
    if where is not True or initial is not None:
        found = _record_part_reduce(recorder, name, value, axis=axis, where=where, initial=initial)
        return found if not keepdims else found.move_shadow(lambda array: np.expand_dims(array, axis))
    if name == "logaddexp":
        exponentials = record_elementwise(recorder, "exp", value)
        return record_elementwise(
            recorder, "log", record_reduction(exponentials, "add", axis, keepdims=keepdims)
        )
    if name not in REDUCTIONS:
        raise UntraceableError(f"it uses np.{name}.reduce")
    return record_reduction(value, name, axis, keepdims=keepdims, dtype=dtype)


def _record_part_reduce(
    recorder: ArrayRecorder, name: str, value: RecordedArray, *, axis: Any, where: Any, initial: Any
) -> RecordedArray:
    """Record a reduction of some elements, or one that begins with a number."""
    nothing = {"add": 0.0, "multiply": 1.0}.get(name, initial)
    if nothing is None or name not in REDUCTIONS or axis is None:
        raise UntraceableError(f"it uses np.{name}.reduce with `where` or `initial`")
    if where is not True:
        parts = tuple(recorder.number_of(item) for item in (where, value, nothing))
        value = recorder.make_array(recorder.add("select", parts), value.dtype)
    found = record_reduction(value, name, axis)
    return found if initial is None else record_elementwise(recorder, name, found, initial)


def _record_accumulate(
    recorder: ArrayRecorder, ufunc: np.ufunc, inputs: Sequence[Any], kwargs: dict[str, Any]
) -> RecordedArray:
    (value, *rest) = inputs
    axis = rest[0] if rest else kwargs.get("axis", 0)
    recorders = {np.add: record_running_sum, np.multiply: record_running_product}
    if ufunc in {np.maximum, np.minimum}:
        return _record_running_extreme(ufunc, value, axis % value.ndim)
    if ufunc not in recorders:
        raise UntraceableError(f"it uses np.{ufunc.__name__}.accumulate")
    return recorders[ufunc](value, axis)


def _record_running_extreme(ufunc: np.ufunc, value: RecordedArray, axis: int) -> RecordedArray:
    """Record a running maximum or minimum: of 2, 4, 8, ... neighbours, each of two such of half as many."""
    lead, step, found = (slice(None),) * axis, 1, value.copy_elements()
    while step < value.shape[axis]:
        before = found.copy_elements()
        later, earlier = before[(*lead, slice(step, None))], before[(*lead, slice(None, -step))]
        found[(*lead, slice(step, None))] = ufunc(later, earlier)
        step *= 2
    return found


def record_running_sum(value: RecordedArray, axis: int) -> RecordedArray:
    """Record a running sum along an axis: a product with a triangular matrix of ones."""
    recorder, size = value.recorder, value.shape[axis]
    index = record_constant(recorder, np.arange(size, dtype=np.int32))
    upper = np.less_equal(index[:, None], index[None])
    rows = value.move_shadow(lambda array: np.moveaxis(array, axis, -1))
    flat = rows if value.ndim > 1 else rows[None]
    found = record_matmul(recorder, flat, upper)
    return (found if value.ndim > 1 else found[0]).move_shadow(lambda array: np.moveaxis(array, -1, axis))


def record_running_product(value: RecordedArray, axis: int) -> RecordedArray:
    """Record a running product along an axis: a recurrence that begins with 1 and adds nothing."""
    recorder, steps = value.recorder, value.move_shadow(lambda array: np.moveaxis(array, axis, 0))
    nothing = record_constant(recorder, np.zeros((1,) * value.ndim))
    initial = record_constant(recorder, np.ones(steps.shape[1:]))
    parts = (steps.number, nothing.number, initial.number)
    number = recorder.add("recurrence", parts, (steps.shape[0],))
    found = recorder.make_array(number, value.dtype)
    return found.move_shadow(lambda array: np.moveaxis(array, 0, axis))


def _record_outer(
    recorder: ArrayRecorder, ufunc: np.ufunc, inputs: Sequence[Any], kwargs: dict[str, Any]
) -> Any:
    left, right = (
        item if isinstance(item, RecordedArray) else record_constant(recorder, item) for item in inputs
    )
    return ufunc(left[(..., *(None,) * right.ndim)], right, **kwargs)


_METHODS: dict[str, Callable[..., RecordedArray]] = {
    "__call__": _record_call,
    "accumulate": _record_accumulate,
    "outer": _record_outer,
    "reduce": _record_reduce,
}


def common_type(*values: Any) -> np.dtype[Any]:
    """Return the type that arrays and numbers have in common."""
    return np.result_type(*(item.dtype if isinstance(item, RecordedArray) else item for item in values))


def _result_type(ufunc: np.ufunc, inputs: Sequence[Any]) -> np.dtype[Any]:
    """The type of a function's result."""
    if ufunc.__name__ in COMPARISONS:
        return np.dtype(bool)
    common = common_type(*inputs)
    if common.kind == "c":
        raise UntraceableError("it computes with complex numbers")
    if common.kind == "V":  # a small float type
        return common
    return ufunc.resolve_dtypes((*map(_resolvable_type, inputs), None))[-1]


def _resolvable_type(item: Any) -> Any:
    """A type in the form that `resolve_dtypes` takes; Python numbers go by their Python type."""
    if isinstance(item, RecordedArray):
        return item.dtype
    return type(item) if type(item) in {int, float} else np.asarray(item).dtype


def _require_known_arguments(ufunc: np.ufunc, kwargs: dict[str, Any], known: set[str]) -> None:
    unknown = sorted(set(kwargs) - known)
    if unknown:
        raise UntraceableError(f"it uses np.{ufunc.__name__} with `{unknown[0]}`")
