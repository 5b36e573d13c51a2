"""NumPy's functions on shapes alone: axes are expressions over a problem's dimensions; elements are unknown.

Two axes are the same if they have the same length at every size. Functions that are not in the tables here
are not supported.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from seeds.errors import ExpressionError
from seeds.expressions import evaluate_expression

Sizes = Sequence[Mapping[str, int]]

UNIT_LENGTH = "1"


class ShapeError(Exception):
    """The shape of a result cannot be determined; the message says why."""


@dataclass(frozen=True, slots=True)
class SymbolicNumber:
    """A number; `text` is its expression if it is an integer over the dimensions."""

    text: str | None = None


@dataclass(frozen=True, slots=True)
class SymbolicDType:
    """A data type, by name."""

    name: str


@dataclass(frozen=True, slots=True)
class SymbolicArray:
    """An array: the expressions of its axes, and its data type."""

    axes: tuple[str, ...]
    dtype: str


SymbolicValue = SymbolicNumber | SymbolicDType | SymbolicArray | tuple[Any, ...]
Options = Mapping[str, SymbolicValue]

DTYPE_NAMES = frozenset({"float16", "float32", "float64", "int32", "int64"})

_SAME_SHAPE = frozenset(
    """
    exp exp2 expm1 log log1p log2 sqrt square cbrt abs absolute fabs negative positive reciprocal sign tanh
    sinh cosh sin cos tan arctan floor ceil rint cumsum sort flip copy ascontiguousarray
    """.split()  # noqa: SIM905  thirty names read better as one text
)
_BROADCAST = frozenset(
    """
    add subtract multiply divide true_divide power maximum minimum hypot arctan2 where
    """.split()  # noqa: SIM905  the same
)
_REDUCE = frozenset({"sum", "mean", "max", "min", "amax", "amin", "prod", "std", "var"})
_CREATORS = frozenset({"zeros", "ones", "empty", "ndarray"})


@dataclass(frozen=True)
class ShapeFunctions:
    """The functions, for dimensions of all `sizes`."""

    sizes: Sizes

    def call_function(self, name: str, given: Sequence[SymbolicValue], options: Options) -> SymbolicValue:
        """Return the result of `np.name(*given, **options)`.

        Raises:
            ShapeError: the function or these arguments are not supported.
        """
        handler = _FUNCTIONS.get(name)
        if handler is None:
            raise ShapeError("an unknown function")
        try:
            return handler(self, *given, **options)
        except (TypeError, ValueError, IndexError) as error:
            raise ShapeError("unknown arguments") from error

    def broadcast(self, values: Sequence[SymbolicValue]) -> SymbolicValue:
        """Return the result of arithmetic on the values."""
        arrays = [item for item in values if isinstance(item, SymbolicArray)]
        if not all(isinstance(item, SymbolicArray | SymbolicNumber) for item in values):
            raise ShapeError("neither arrays nor numbers")
        if not arrays:
            return SymbolicNumber()
        rank = max(len(item.axes) for item in arrays)
        padded = [(UNIT_LENGTH,) * (rank - len(item.axes)) + item.axes for item in arrays]
        axes = tuple(self._join_axes(column) for column in zip(*padded, strict=True))
        return SymbolicArray(axes, common_dtype(arrays))

    def matmul(self, left: SymbolicValue, right: SymbolicValue) -> SymbolicValue:
        one, other = require_array(left), require_array(right)
        if min(len(one.axes), len(other.axes)) < 2:
            raise ShapeError("a product with a vector")
        if not self.have_same_length(one.axes[-1], other.axes[-2]):
            raise ShapeError(f"contracts axes of lengths {one.axes[-1]} and {other.axes[-2]}")
        outer = self.broadcast(
            [SymbolicArray(one.axes[:-2], one.dtype), SymbolicArray(other.axes[:-2], other.dtype)]
        )
        return SymbolicArray(
            (*require_array(outer).axes, one.axes[-2], other.axes[-1]), common_dtype([one, other])
        )

    def have_same_length(self, one: str, other: str) -> bool:
        """Return whether two axes have the same length at every size."""
        return one == other or self._axis_lengths(one) == self._axis_lengths(other)

    def _join_axes(self, axes: Sequence[str]) -> str:
        longer = [axis for axis in axes if not self.have_same_length(axis, UNIT_LENGTH)]
        if any(not self.have_same_length(axis, longer[0]) for axis in longer):
            raise ShapeError(f"axes of lengths {' and '.join(dict.fromkeys(longer))}")
        return longer[0] if longer else next((axis for axis in axes if axis != UNIT_LENGTH), UNIT_LENGTH)

    def _axis_lengths(self, axis: str) -> list[int]:
        try:
            return [evaluate_expression(axis, dims) for dims in self.sizes]
        except ExpressionError as error:
            raise ShapeError(str(error)) from error


def require_array(value: SymbolicValue) -> SymbolicArray:
    if not isinstance(value, SymbolicArray):
        raise ShapeError("not an array")
    return value


def require_integer_text(value: SymbolicValue) -> str:
    """Return the expression of an integer over the dimensions; raises ShapeError for other values."""
    if not isinstance(value, SymbolicNumber) or value.text is None:
        raise ShapeError("not an integer over the sizes")
    return value.text


def parse_axes(shape: SymbolicValue) -> tuple[str, ...]:
    """Return the axes of a shape given as an integer or a tuple of integers."""
    return tuple(require_integer_text(item) for item in (shape if isinstance(shape, tuple) else (shape,)))


def common_dtype(arrays: Sequence[SymbolicArray]) -> str:
    return str(np.result_type(*(item.dtype for item in arrays)))


def _axis_numbers(axis: SymbolicValue, rank: int) -> list[int]:
    """Return axes as numbers from 0."""
    try:
        found = [evaluate_expression(item, {}) for item in parse_axes(axis)]
    except ExpressionError as error:
        raise ShapeError("an axis that is not written as a number") from error
    if any(not -rank <= place < rank for place in found):
        raise ShapeError(f"{rank} axes have none of number {found}")
    return [place % rank for place in found]


def _reduce_axes(
    _: ShapeFunctions,
    value: SymbolicValue,
    axis: SymbolicValue | None = None,
    keepdims: SymbolicValue = SymbolicNumber("0"),
) -> SymbolicValue:
    found = require_array(value)
    rank = len(found.axes)
    gone = range(rank) if axis is None else _axis_numbers(axis, rank)
    kept = [UNIT_LENGTH] if require_integer_text(keepdims) != "0" else []
    parts = [kept if place in gone else [length] for place, length in enumerate(found.axes)]
    return SymbolicArray(tuple(length for part in parts for length in part), found.dtype)


def _new_array(
    _: ShapeFunctions, shape: SymbolicValue, dtype: SymbolicValue = SymbolicDType("float64")
) -> SymbolicValue:
    if not isinstance(dtype, SymbolicDType):
        raise ShapeError("not a data type")
    return SymbolicArray(parse_axes(shape), dtype.name)


def _transpose(_: ShapeFunctions, value: SymbolicValue, axes: SymbolicValue | None = None) -> SymbolicValue:
    found = require_array(value)
    order = list(range(len(found.axes)))[::-1] if axes is None else _axis_numbers(axes, len(found.axes))
    if sorted(order) != list(range(len(found.axes))):
        raise ShapeError("not an order of all axes")
    return SymbolicArray(tuple(found.axes[place] for place in order), found.dtype)


def _swapaxes(
    _: ShapeFunctions, value: SymbolicValue, one: SymbolicValue, other: SymbolicValue
) -> SymbolicValue:
    found = require_array(value)
    axes = list(found.axes)
    (first,), (second,) = _axis_numbers(one, len(axes)), _axis_numbers(other, len(axes))
    axes[first], axes[second] = axes[second], axes[first]
    return SymbolicArray(tuple(axes), found.dtype)


def _reshape(_: ShapeFunctions, value: SymbolicValue, shape: SymbolicValue) -> SymbolicValue:
    return SymbolicArray(parse_axes(shape), require_array(value).dtype)


def _repeat(
    _: ShapeFunctions, value: SymbolicValue, times: SymbolicValue, axis: SymbolicValue
) -> SymbolicValue:
    found = require_array(value)
    axes = list(found.axes)
    (place,) = _axis_numbers(axis, len(axes))
    axes[place] = f"({axes[place]} * {require_integer_text(times)})"
    return SymbolicArray(tuple(axes), found.dtype)


def _concatenate(
    _: ShapeFunctions, arrays: SymbolicValue, axis: SymbolicValue = SymbolicNumber("0")
) -> SymbolicValue:
    if not isinstance(arrays, tuple) or not arrays:
        raise ShapeError("not a list of arrays")
    items = [require_array(item) for item in arrays]
    axes = list(items[0].axes)
    (place,) = _axis_numbers(axis, len(axes))
    axes[place] = f"({' + '.join(item.axes[place] for item in items)})"
    return SymbolicArray(tuple(axes), common_dtype(items))


def _expand_dims(_: ShapeFunctions, value: SymbolicValue, axis: SymbolicValue) -> SymbolicValue:
    found = require_array(value)
    (place,) = _axis_numbers(axis, len(found.axes) + 1)
    return SymbolicArray((*found.axes[:place], UNIT_LENGTH, *found.axes[place:]), found.dtype)


def _astype(_: ShapeFunctions, value: SymbolicValue, dtype: SymbolicValue) -> SymbolicValue:
    if isinstance(dtype, SymbolicDType) and isinstance(value, SymbolicArray):
        return SymbolicArray(value.axes, dtype.name)
    raise ShapeError("not an array and a data type")


def _same_shape(_: ShapeFunctions, value: SymbolicValue) -> SymbolicValue:
    return SymbolicNumber() if isinstance(value, SymbolicNumber) else require_array(value)


def _cast_number(_: ShapeFunctions, value: SymbolicValue) -> SymbolicValue:
    if not isinstance(value, SymbolicNumber):
        raise ShapeError("not a number")
    return SymbolicNumber()


def _broadcast(shapes: ShapeFunctions, *values: SymbolicValue) -> SymbolicValue:
    return shapes.broadcast(values)


_FUNCTIONS: dict[str, Callable[..., SymbolicValue]] = {
    **dict.fromkeys(_SAME_SHAPE, _same_shape),
    **dict.fromkeys(_BROADCAST, _broadcast),
    **dict.fromkeys(DTYPE_NAMES, _cast_number),
    **dict.fromkeys(_REDUCE, _reduce_axes),
    **dict.fromkeys(_CREATORS, _new_array),
    "matmul": ShapeFunctions.matmul,
    "transpose": _transpose,
    "swapaxes": _swapaxes,
    "reshape": _reshape,
    "broadcast_to": _reshape,
    "repeat": _repeat,
    "concatenate": _concatenate,
    "expand_dims": _expand_dims,
    "astype": _astype,
}
