"""NumPy's functions on shapes alone: axes are expressions over a problem's dimensions, no element is known.

Two axes are the same where they have the same length at every size. What is not in the tables here is not
followed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from seeds.errors import ExpressionError
from seeds.expressions import evaluate

Sizes = Sequence[Mapping[str, int]]

ONE = "1"


class ShapeError(Exception):
    """Why the shape of a result is not known."""


@dataclass(frozen=True, slots=True)
class Number:
    """A number; `text` is its expression where it is an integer over the dimensions."""

    text: str | None = None


@dataclass(frozen=True, slots=True)
class DType:
    """A data type by its name."""

    name: str


@dataclass(frozen=True, slots=True)
class Array:
    """An array by the expressions of its axes, and its type."""

    axes: tuple[str, ...]
    dtype: str


Value = Number | DType | Array | tuple[Any, ...]
Options = Mapping[str, Value]

TYPES = frozenset({"float16", "float32", "float64", "int32", "int64"})

_SAME = frozenset(
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
_NEW = frozenset({"zeros", "ones", "empty", "ndarray"})


@dataclass(frozen=True)
class Shapes:
    """The functions, for dimensions of all `sizes`."""

    sizes: Sizes

    def call(self, name: str, given: Sequence[Value], options: Options) -> Value:
        """Return what `np.name(*given, **options)` gives.

        Raises:
            ShapeError: the function is not known here, or these arguments are not.
        """
        handler = _FUNCTIONS.get(name)
        if handler is None:
            raise ShapeError("an unknown function")
        try:
            return handler(self, *given, **options)
        except (TypeError, ValueError, IndexError) as error:
            raise ShapeError("unknown arguments") from error

    def broadcast(self, values: Sequence[Value]) -> Value:
        """Return what arithmetic on the values gives."""
        arrays = [item for item in values if isinstance(item, Array)]
        if not all(isinstance(item, Array | Number) for item in values):
            raise ShapeError("neither arrays nor numbers")
        if not arrays:
            return Number()
        rank = max(len(item.axes) for item in arrays)
        padded = [(ONE,) * (rank - len(item.axes)) + item.axes for item in arrays]
        axes = tuple(self._joined(column) for column in zip(*padded, strict=True))
        return Array(axes, common(arrays))

    def matmul(self, left: Value, right: Value) -> Value:
        one, other = array(left), array(right)
        if min(len(one.axes), len(other.axes)) < 2:
            raise ShapeError("a product with a vector")
        if not self.alike(one.axes[-1], other.axes[-2]):
            raise ShapeError(f"contracts axes of lengths {one.axes[-1]} and {other.axes[-2]}")
        outer = self.broadcast([Array(one.axes[:-2], one.dtype), Array(other.axes[:-2], other.dtype)])
        return Array((*array(outer).axes, one.axes[-2], other.axes[-1]), common([one, other]))

    def alike(self, one: str, other: str) -> bool:
        """Whether two axes have the same length at every size."""
        return one == other or self._lengths(one) == self._lengths(other)

    def _joined(self, axes: Sequence[str]) -> str:
        longer = [axis for axis in axes if not self.alike(axis, ONE)]
        if any(not self.alike(axis, longer[0]) for axis in longer):
            raise ShapeError(f"axes of lengths {' and '.join(dict.fromkeys(longer))}")
        return longer[0] if longer else next((axis for axis in axes if axis != ONE), ONE)

    def _lengths(self, axis: str) -> list[int]:
        try:
            return [evaluate(axis, dims) for dims in self.sizes]
        except ExpressionError as error:
            raise ShapeError(str(error)) from error


def array(value: Value) -> Array:
    if not isinstance(value, Array):
        raise ShapeError("not an array")
    return value


def text(value: Value) -> str:
    """Return an integer over the dimensions as its expression."""
    if not isinstance(value, Number) or value.text is None:
        raise ShapeError("not an integer over the sizes")
    return value.text


def axes_of(shape: Value) -> tuple[str, ...]:
    """Return a shape that is given as an integer or a tuple of them."""
    return tuple(text(item) for item in (shape if isinstance(shape, tuple) else (shape,)))


def common(arrays: Sequence[Array]) -> str:
    return str(np.result_type(*(item.dtype for item in arrays)))


def _places(axis: Value, rank: int) -> list[int]:
    """Axes as numbers from 0."""
    try:
        found = [evaluate(item, {}) for item in axes_of(axis)]
    except ExpressionError as error:
        raise ShapeError("an axis that is not written as a number") from error
    if any(not -rank <= place < rank for place in found):
        raise ShapeError(f"{rank} axes have none of number {found}")
    return [place % rank for place in found]


def _reduced(_: Shapes, value: Value, axis: Value | None = None, keepdims: Value = Number("0")) -> Value:
    found = array(value)
    rank = len(found.axes)
    gone = range(rank) if axis is None else _places(axis, rank)
    kept = [ONE] if text(keepdims) != "0" else []
    parts = [kept if place in gone else [length] for place, length in enumerate(found.axes)]
    return Array(tuple(length for part in parts for length in part), found.dtype)


def _new(_: Shapes, shape: Value, dtype: Value = DType("float64")) -> Value:
    if not isinstance(dtype, DType):
        raise ShapeError("not a data type")
    return Array(axes_of(shape), dtype.name)


def _transpose(_: Shapes, value: Value, axes: Value | None = None) -> Value:
    found = array(value)
    order = list(range(len(found.axes)))[::-1] if axes is None else _places(axes, len(found.axes))
    if sorted(order) != list(range(len(found.axes))):
        raise ShapeError("not an order of all axes")
    return Array(tuple(found.axes[place] for place in order), found.dtype)


def _swapaxes(_: Shapes, value: Value, one: Value, other: Value) -> Value:
    found = array(value)
    axes = list(found.axes)
    (first,), (second,) = _places(one, len(axes)), _places(other, len(axes))
    axes[first], axes[second] = axes[second], axes[first]
    return Array(tuple(axes), found.dtype)


def _reshape(_: Shapes, value: Value, shape: Value) -> Value:
    return Array(axes_of(shape), array(value).dtype)


def _repeat(_: Shapes, value: Value, times: Value, axis: Value) -> Value:
    found = array(value)
    axes = list(found.axes)
    (place,) = _places(axis, len(axes))
    axes[place] = f"({axes[place]} * {text(times)})"
    return Array(tuple(axes), found.dtype)


def _concatenate(_: Shapes, arrays: Value, axis: Value = Number("0")) -> Value:
    if not isinstance(arrays, tuple) or not arrays:
        raise ShapeError("not a list of arrays")
    items = [array(item) for item in arrays]
    axes = list(items[0].axes)
    (place,) = _places(axis, len(axes))
    axes[place] = f"({' + '.join(item.axes[place] for item in items)})"
    return Array(tuple(axes), common(items))


def _expand_dims(_: Shapes, value: Value, axis: Value) -> Value:
    found = array(value)
    (place,) = _places(axis, len(found.axes) + 1)
    return Array((*found.axes[:place], ONE, *found.axes[place:]), found.dtype)


def _astype(_: Shapes, value: Value, dtype: Value) -> Value:
    if isinstance(dtype, DType) and isinstance(value, Array):
        return Array(value.axes, dtype.name)
    raise ShapeError("not an array and a data type")


def _same(_: Shapes, value: Value) -> Value:
    return Number() if isinstance(value, Number) else array(value)


def _number(_: Shapes, value: Value) -> Value:
    if not isinstance(value, Number):
        raise ShapeError("not a number")
    return Number()


def _broadcast(shapes: Shapes, *values: Value) -> Value:
    return shapes.broadcast(values)


_FUNCTIONS: dict[str, Callable[..., Value]] = {
    **dict.fromkeys(_SAME, _same),
    **dict.fromkeys(_BROADCAST, _broadcast),
    **dict.fromkeys(TYPES, _number),
    **dict.fromkeys(_REDUCE, _reduced),
    **dict.fromkeys(_NEW, _new),
    "matmul": Shapes.matmul,
    "transpose": _transpose,
    "swapaxes": _swapaxes,
    "reshape": _reshape,
    "broadcast_to": _reshape,
    "repeat": _repeat,
    "concatenate": _concatenate,
    "expand_dims": _expand_dims,
    "astype": _astype,
}
