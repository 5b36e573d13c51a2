"""A reference's computation as data: operations on whole arrays, each using results of earlier ones.

`SHAPE_RULES` lists the kinds of operation. Arguments are checked when an operation is recorded and again when
a file is read; shapes are derived from the operations, never trusted. Arrays are addressed by their flat
row-major layout: `view` reads its argument, and `assemble` writes to it, at offset + index * strides, counted
in elements. That covers slicing, transposing, reshaping and broadcasting.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import prod
from typing import Any
from zipfile import BadZipFile

import numpy as np

from remote.judge.identity.domain import Array
from remote.judge.identity.functions import REDUCTIONS

Shape = tuple[int, ...]

MAX_OPERATIONS = 1 << 18
MAX_EXPRESSION_BYTES = 128 << 20
"""Limit for the constants, and for the file that holds an expression."""
_MAX_AXES = 16
_MAX_ELEMENTS = 1 << 40


class InvalidExpressionError(Exception):
    """Not an expression; the message says what is wrong."""


class UnfollowedError(InvalidExpressionError):
    """The reference could not be followed; `part` is the expression of what comes before, if there is any."""

    def __init__(self, reason: str, part: ArrayExpression | None) -> None:
        super().__init__(f"the reference cannot be followed: {reason}")
        self.part = part


@dataclass(frozen=True, slots=True)
class ExpressionNode:
    """One operation: its kind, its arguments' numbers, its parameters, and the shape of its result."""

    kind: str
    args: tuple[int, ...]
    params: tuple[Any, ...]
    shape: Shape


def name_function(node: ExpressionNode) -> str:
    """Return the name of an operation's function, by which `ArrayExpression.lines` has its line."""
    return str(node.params[0]) if node.kind in {"unary", "binary", "reduce"} else node.kind


@dataclass(frozen=True, eq=False)
class ArrayExpression:
    """Operations in order, the constants they use, and the operations that are the outputs."""

    nodes: Sequence[ExpressionNode]
    arrays: Sequence[Array]
    outputs: Sequence[int]
    lines: Mapping[str, str] = field(default_factory=dict)
    """Where a reference first uses a function: its name, and the number and the text of the line."""

    def to_bytes(self) -> bytes:
        """Return the expression as the bytes of an .npz file."""
        return _pack_file(self._content(), self.arrays)

    def _content(self) -> dict[str, Any]:
        listed = [[node.kind, node.args, node.params] for node in self.nodes]
        return {"nodes": listed, "outputs": self.outputs, "lines": dict(self.lines)}

    def pack_as_part(self, reason: str) -> bytes:
        """Return a file that makes `load_expression` raise, with this as what comes before the reason."""
        return _pack_file({"unfollowed": reason, **self._content()}, self.arrays)


def pack_refusal(reason: str) -> bytes:
    """Return a file that makes `load_expression` raise with this reason."""
    return _pack_file({"unfollowed": reason}, ())


def _pack_file(content: Any, arrays: Sequence[Array]) -> bytes:
    text = json.dumps(content, separators=(",", ":")).encode()
    constants = {f"constant{number}": array for number, array in enumerate(arrays)}
    file = io.BytesIO()
    np.savez_compressed(file, allow_pickle=False, text=np.frombuffer(text, np.uint8), **constants)
    return file.getvalue()


def load_expression(data: bytes, inputs: Sequence[Shape]) -> ArrayExpression:
    """Read what `to_bytes` wrote; `inputs` are the shapes of the inputs.

    Raises:
        UnfollowedError: the bytes state why there is no expression.
        InvalidExpressionError: the bytes are no expression over these inputs.
    """
    return _load_cached(data, tuple(inputs))


@lru_cache(maxsize=4)
def _load_cached(data: bytes, inputs: tuple[Shape, ...]) -> ArrayExpression:
    if len(data) > MAX_EXPRESSION_BYTES:
        raise InvalidExpressionError(
            f"the expression takes {len(data)} bytes, at most {MAX_EXPRESSION_BYTES} are read"
        )
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as file:
            unpacked = sum(item.file_size for item in file.zip.infolist())
            if unpacked > 2 * MAX_EXPRESSION_BYTES:
                raise InvalidExpressionError(f"the expression unpacks to {unpacked} bytes")
            content = json.loads(file["text"].tobytes())
            arrays = [file[f"constant{number}"] for number in range(len(file.files) - 1)]
        if "unfollowed" in content and "nodes" not in content:
            raise UnfollowedError(content["unfollowed"], None)
        table = OperationTable(inputs, arrays)
        for kind, args, params in content["nodes"]:
            table.add(kind, tuple(args), _as_tuples(params))
        outputs = [int(number) for number in content["outputs"]]
        lines = {str(name): str(line) for name, line in content.get("lines", {}).items()}
    except (OSError, ValueError, LookupError, TypeError, EOFError, RecursionError, BadZipFile) as error:
        raise InvalidExpressionError(f"the expression cannot be read: {error}") from error
    if not all(0 <= number < len(table.nodes) for number in outputs):
        raise InvalidExpressionError("an output of the expression is none of its operations")
    found = ArrayExpression(table.nodes, arrays, outputs, lines)
    if "unfollowed" in content:
        raise UnfollowedError(content["unfollowed"], found)
    return found


@dataclass(frozen=True, slots=True)
class OperationContext:
    """The context that an operation is checked against."""

    args: Sequence[Shape]
    inputs: Sequence[Shape]
    arrays: Sequence[Array]


@dataclass(frozen=True)
class OperationTable:
    """Operations over inputs of these shapes, checked as they are added."""

    inputs: Sequence[Shape]
    arrays: list[Array] = field(default_factory=list)
    nodes: list[ExpressionNode] = field(default_factory=list)

    def add(self, kind: str, args: tuple[int, ...], params: tuple[Any, ...] = ()) -> int:
        """Add an operation on earlier ones; return its number.

        Raises:
            InvalidExpressionError: it needs other arguments, or there are too many operations.
        """
        if len(self.nodes) == MAX_OPERATIONS:
            raise InvalidExpressionError(f"there are more than {MAX_OPERATIONS} operations")
        if kind not in SHAPE_RULES or not all(
            isinstance(at, int) and 0 <= at < len(self.nodes) for at in args
        ):
            raise InvalidExpressionError(f"{kind!r} of {args} is not an operation on earlier ones")
        setting = OperationContext([self.nodes[at].shape for at in args], self.inputs, self.arrays)
        try:
            shape = SHAPE_RULES[kind](setting, *params)
        except (ValueError, TypeError, IndexError) as error:
            raise InvalidExpressionError(f"{kind} of shapes {setting.args} with {params}: {error}") from error
        if len(shape) > _MAX_AXES or prod(shape) > _MAX_ELEMENTS:
            raise InvalidExpressionError(f"{kind} gives shape {shape}, which is too large")
        self.nodes.append(ExpressionNode(kind, args, params, shape))
        return len(self.nodes) - 1


def strides_of(shape: Shape) -> Shape:
    """Return row-major strides, in elements."""
    return tuple(prod(shape[axis + 1 :]) for axis in range(len(shape)))


def _input_shape(setting: OperationContext, number: int) -> Shape:
    return setting.inputs[_require_natural(number)]


def _constant_shape(setting: OperationContext, number: int) -> Shape:
    array = setting.arrays[_require_natural(number)]
    _require(array.dtype.kind in "bifu", f"constants are no {array.dtype}")
    return array.shape


def _unknown_shape(setting: OperationContext, *shape: int) -> Shape:
    return tuple(_require_natural(size) for size in shape)


def _unary_shape(setting: OperationContext, name: str) -> Shape:
    _require_name(name)
    (shape,) = setting.args
    return shape


def _binary_shape(setting: OperationContext, name: str) -> Shape:
    _require_name(name)
    left, right = setting.args
    return np.broadcast_shapes(left, right)


def _select_shape(setting: OperationContext) -> Shape:
    mask, left, right = setting.args
    return np.broadcast_shapes(mask, left, right)


def _reduce_shape(setting: OperationContext, name: str, *axes: int) -> Shape:
    (shape,) = setting.args
    _require(name in REDUCTIONS, f"{name!r} is no reduction")
    _require(all(0 <= axis < len(shape) for axis in axes) and len({*axes}) == len(axes) > 0, "axes")
    return tuple(1 if axis in axes else size for axis, size in enumerate(shape))


def _matmul_shape(setting: OperationContext) -> Shape:
    left, right = setting.args
    _require(min(len(left), len(right)) >= 2 and left[-1] == right[-2], "the inner axes do not fit")
    return (*np.broadcast_shapes(left[:-2], right[:-2]), left[-2], right[-1])


def _view_shape(setting: OperationContext, shape: Shape, strides: Shape, offset: int) -> Shape:
    (source,) = setting.args
    _require_inside(source, shape, strides, offset=offset)
    return shape


def _recurrence_shape(setting: OperationContext, length: int) -> Shape:
    factors, terms, initial = setting.args
    shape = np.broadcast_shapes(factors, terms, (_require_natural(length), *initial))
    _require(shape == (length, *initial) and length > 0, "more elements than it began with")
    return shape


def _take_shape(setting: OperationContext, number: int, axis: int) -> Shape:
    (source,) = setting.args
    index = setting.arrays[_require_natural(number)]
    _require(index.dtype.kind == "i" and index.ndim == 1 and index.size > 0, "not a list of numbers")
    _require(0 <= axis < len(source), f"no axis {axis}")
    _require(index.min() >= 0 and index.max() < source[axis], "numbers beyond the axis")
    return (*source[:axis], index.size, *source[axis + 1 :])


def _assembled_shape(setting: OperationContext, *places: tuple[Shape, int]) -> Shape:
    base, *pieces = setting.args
    _require(len(pieces) == len(places), "pieces without a place")
    for piece, (strides, offset) in zip(pieces, places, strict=True):
        _require_inside(base, piece, strides, offset=offset)
        _require(align_view(base, piece, strides, offset) is not None, "a piece that runs across axes")
        _require(all(strides[axis] for axis, size in enumerate(piece) if size > 1), "a piece over itself")
    return base


SHAPE_RULES: Mapping[str, Callable[..., Shape]] = {
    "assemble": _assembled_shape,
    "binary": _binary_shape,
    "constant": _constant_shape,
    "input": _input_shape,
    "matmul": _matmul_shape,
    "recurrence": _recurrence_shape,
    "reduce": _reduce_shape,
    "select": _select_shape,
    "take": _take_shape,
    "unary": _unary_shape,
    "unknown": _unknown_shape,
    "view": _view_shape,
}
"""By kind: from shapes of arguments and parameters to the result's shape; ValueError if they do not fit."""


@dataclass(frozen=True, slots=True)
class AxisAlignment:
    """A strided part of an array: its start, and for each axis of the array the part's (axis, step)."""

    starts: Shape
    axes: Mapping[int, tuple[int, int]]


def align_view(source: Shape, shape: Shape, strides: Shape, offset: int) -> AxisAlignment | None:
    """Return how each axis of a strided part runs along one axis of its source; None if one does not."""
    if not prod(source):
        return None
    starts = tuple(int(at) for at in np.unravel_index(offset, source))
    found: dict[int, tuple[int, int]] = {}
    for own, (size, stride) in enumerate(zip(shape, strides, strict=True)):
        if size == 1 or stride == 0:
            continue
        axis = _source_axis(source, starts, size, stride=stride)
        if axis is None or axis in found:
            return None
        found[axis] = own, stride // strides_of(source)[axis]
    return AxisAlignment(starts, found)


def _source_axis(source: Shape, starts: Shape, size: int, *, stride: int) -> int | None:
    for axis, (extent, unit) in enumerate(zip(source, strides_of(source), strict=True)):
        if extent > 1 and abs(stride) >= unit:
            last = starts[axis] + (size - 1) * (stride // unit)
            return axis if stride % unit == 0 and 0 <= last < extent else None
    return None


def _require_inside(source: Shape, shape: Shape, strides: Shape, *, offset: int) -> None:
    _require(len(shape) == len(strides), "strides of other axes")
    _require(all(abs(stride) <= _MAX_ELEMENTS for stride in strides), "strides beyond any array")
    reach = [(_require_natural(size) - 1) * stride for size, stride in zip(shape, strides, strict=True)]
    lowest = offset + sum(step for step in reach if step < 0)
    highest = offset + sum(step for step in reach if step > 0)
    _require(prod(shape) > 0 and lowest >= 0 and highest < prod(source), "reaches beyond its source")


def _require_natural(number: int) -> int:
    _require(isinstance(number, int) and number >= 0, f"{number!r} is no natural number")
    return number


def _require_name(name: str) -> None:
    _require(isinstance(name, str) and 0 < len(name) <= 64, f"{name!r} is no name")


def _require(holds: bool, text: str) -> None:
    if not holds:
        raise ValueError(text)


def _as_tuples(params: Any) -> Any:
    return tuple(_as_tuples(item) for item in params) if isinstance(params, list) else params
