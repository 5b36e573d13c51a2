"""What a reference computes, as data: operations on whole arrays, each on results of earlier ones.

The kinds of operation are in `KINDS`; what each takes is checked when it is recorded and again when a file
is read, where shapes follow from the operations and are not believed. Arrays are named by their flat
row-major layout: `view` reads its argument and `assemble` writes to it at offset + index * strides, counted
in elements, which is all that slicing, transposing, reshaping and broadcasting do.
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

MOST_OPERATIONS = 1 << 18
MOST_BYTES = 128 << 20
"""Of constants, and of the file that holds an expression."""
_MOST_AXES = 16
_MOST_ELEMENTS = 1 << 40


class ExpressionError(Exception):
    """Not an expression: what is wrong with it."""


@dataclass(frozen=True, slots=True)
class Node:
    """One operation: its kind, its arguments' numbers, what else it takes, the shape of its result."""

    kind: str
    args: tuple[int, ...]
    params: tuple[Any, ...]
    shape: Shape


@dataclass(frozen=True, eq=False)
class Expression:
    """Operations in order, the constants they name, and the operations that are the outputs."""

    nodes: Sequence[Node]
    arrays: Sequence[Array]
    outputs: Sequence[int]

    def dumps(self) -> bytes:
        """Return it as the bytes of an .npz file."""
        listed = [[node.kind, node.args, node.params] for node in self.nodes]
        return _packed({"nodes": listed, "outputs": self.outputs}, self.arrays)


def refusal(reason: str) -> bytes:
    """Return what `loads` raises, with the reason, when it reads it."""
    return _packed({"unfollowed": reason}, ())


def _packed(content: Any, arrays: Sequence[Array]) -> bytes:
    text = json.dumps(content, separators=(",", ":")).encode()
    constants = {f"constant{number}": array for number, array in enumerate(arrays)}
    file = io.BytesIO()
    np.savez_compressed(file, allow_pickle=False, text=np.frombuffer(text, np.uint8), **constants)
    return file.getvalue()


def loads(data: bytes, inputs: Sequence[Shape]) -> Expression:
    """Read what `dumps` wrote; `inputs` are the shapes of the inputs.

    Raises:
        ExpressionError: the bytes are not an expression over these inputs, or say why there is none.
    """
    return _read(data, tuple(inputs))


@lru_cache(maxsize=4)
def _read(data: bytes, inputs: tuple[Shape, ...]) -> Expression:
    if len(data) > MOST_BYTES:
        raise ExpressionError(f"the expression takes {len(data)} bytes, at most {MOST_BYTES} are read")
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as file:
            unpacked = sum(item.file_size for item in file.zip.infolist())
            if unpacked > 2 * MOST_BYTES:
                raise ExpressionError(f"the expression unpacks to {unpacked} bytes")
            content = json.loads(file["text"].tobytes())
            arrays = [file[f"constant{number}"] for number in range(len(file.files) - 1)]
        if "unfollowed" in content:
            raise ExpressionError(f"the reference cannot be followed: {content['unfollowed']}")
        table = Table(inputs, arrays)
        for kind, args, params in content["nodes"]:
            table.add(kind, tuple(args), _frozen(params))
        outputs = [int(number) for number in content["outputs"]]
    except (OSError, ValueError, LookupError, TypeError, EOFError, RecursionError, BadZipFile) as error:
        raise ExpressionError(f"the expression cannot be read: {error}") from error
    if not all(0 <= number < len(table.nodes) for number in outputs):
        raise ExpressionError("an output of the expression is none of its operations")
    return Expression(table.nodes, arrays, outputs)


@dataclass(frozen=True, slots=True)
class Setting:
    """What a kind of operation is checked against."""

    args: Sequence[Shape]
    inputs: Sequence[Shape]
    arrays: Sequence[Array]


@dataclass(frozen=True)
class Table:
    """Operations over inputs of these shapes, checked as they are added."""

    inputs: Sequence[Shape]
    arrays: list[Array] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)

    def add(self, kind: str, args: tuple[int, ...], params: tuple[Any, ...] = ()) -> int:
        """Add an operation on earlier ones; return its number.

        Raises:
            ExpressionError: it takes something else, or there are too many.
        """
        if len(self.nodes) == MOST_OPERATIONS:
            raise ExpressionError(f"there are more than {MOST_OPERATIONS} operations")
        if kind not in KINDS or not all(isinstance(at, int) and 0 <= at < len(self.nodes) for at in args):
            raise ExpressionError(f"{kind!r} of {args} is not an operation on earlier ones")
        setting = Setting([self.nodes[at].shape for at in args], self.inputs, self.arrays)
        try:
            shape = KINDS[kind](setting, *params)
        except (ValueError, TypeError, IndexError) as error:
            raise ExpressionError(f"{kind} of shapes {setting.args} with {params}: {error}") from error
        if len(shape) > _MOST_AXES or prod(shape) > _MOST_ELEMENTS:
            raise ExpressionError(f"{kind} gives shape {shape}, which is too large")
        self.nodes.append(Node(kind, args, params, shape))
        return len(self.nodes) - 1


def strides_of(shape: Shape) -> Shape:
    """Return row-major strides, in elements."""
    return tuple(prod(shape[axis + 1 :]) for axis in range(len(shape)))


def _input(setting: Setting, number: int) -> Shape:
    return setting.inputs[_natural(number)]


def _constant(setting: Setting, number: int) -> Shape:
    array = setting.arrays[_natural(number)]
    _require(array.dtype.kind in "bifu", f"constants are no {array.dtype}")
    return array.shape


def _unknown(setting: Setting, *shape: int) -> Shape:
    return tuple(_natural(size) for size in shape)


def _unary(setting: Setting, name: str) -> Shape:
    _named(name)
    (shape,) = setting.args
    return shape


def _binary(setting: Setting, name: str) -> Shape:
    _named(name)
    left, right = setting.args
    return np.broadcast_shapes(left, right)


def _select(setting: Setting) -> Shape:
    mask, left, right = setting.args
    return np.broadcast_shapes(mask, left, right)


def _reduce(setting: Setting, name: str, *axes: int) -> Shape:
    (shape,) = setting.args
    _require(name in REDUCTIONS, f"{name!r} is no reduction")
    _require(all(0 <= axis < len(shape) for axis in axes) and len({*axes}) == len(axes) > 0, "axes")
    return tuple(1 if axis in axes else size for axis, size in enumerate(shape))


def _matmul(setting: Setting) -> Shape:
    left, right = setting.args
    _require(min(len(left), len(right)) >= 2 and left[-1] == right[-2], "the inner axes do not fit")
    return (*np.broadcast_shapes(left[:-2], right[:-2]), left[-2], right[-1])


def _view(setting: Setting, shape: Shape, strides: Shape, offset: int) -> Shape:
    (source,) = setting.args
    _inside(source, shape, strides, offset)
    return shape


def _recurrence(setting: Setting, length: int) -> Shape:
    factors, terms, initial = setting.args
    shape = np.broadcast_shapes(factors, terms, (_natural(length), *initial))
    _require(shape == (length, *initial) and length > 0, "more elements than it began with")
    return shape


def _take(setting: Setting, number: int, axis: int) -> Shape:
    (source,) = setting.args
    index = setting.arrays[_natural(number)]
    _require(index.dtype.kind == "i" and index.ndim == 1 and index.size > 0, "not a list of numbers")
    _require(0 <= axis < len(source), f"no axis {axis}")
    _require(index.min() >= 0 and index.max() < source[axis], "numbers beyond the axis")
    return (*source[:axis], index.size, *source[axis + 1 :])


def _assemble(setting: Setting, *places: tuple[Shape, int]) -> Shape:
    base, *pieces = setting.args
    _require(len(pieces) == len(places), "pieces without a place")
    for piece, (strides, offset) in zip(pieces, places, strict=True):
        _inside(base, piece, strides, offset)
        _require(aligned(base, piece, strides, offset) is not None, "a piece that runs across axes")
        _require(all(strides[axis] for axis, size in enumerate(piece) if size > 1), "a piece over itself")
    return base


KINDS: Mapping[str, Callable[..., Shape]] = {
    "assemble": _assemble,
    "binary": _binary,
    "constant": _constant,
    "input": _input,
    "matmul": _matmul,
    "recurrence": _recurrence,
    "reduce": _reduce,
    "select": _select,
    "take": _take,
    "unary": _unary,
    "unknown": _unknown,
    "view": _view,
}
"""By kind: from shapes of arguments and parameters to the result's shape; ValueError if they do not fit."""


@dataclass(frozen=True, slots=True)
class Aligned:
    """A strided part of an array: where it begins, and by axis of the array the part's (axis, step)."""

    starts: Shape
    axes: Mapping[int, tuple[int, int]]


def aligned(source: Shape, shape: Shape, strides: Shape, offset: int) -> Aligned | None:
    """Return how each axis of a strided part runs along one axis of its source; None: one runs across."""
    if not prod(source):
        return None
    starts = tuple(int(at) for at in np.unravel_index(offset, source))
    found: dict[int, tuple[int, int]] = {}
    for own, (size, stride) in enumerate(zip(shape, strides, strict=True)):
        if size == 1 or stride == 0:
            continue
        axis = _axis_of(source, starts, size, stride)
        if axis is None or axis in found:
            return None
        found[axis] = own, stride // strides_of(source)[axis]
    return Aligned(starts, found)


def _axis_of(source: Shape, starts: Shape, size: int, stride: int) -> int | None:
    for axis, (extent, unit) in enumerate(zip(source, strides_of(source), strict=True)):
        if extent > 1 and abs(stride) >= unit:
            last = starts[axis] + (size - 1) * (stride // unit)
            return axis if stride % unit == 0 and 0 <= last < extent else None
    return None


def _inside(source: Shape, shape: Shape, strides: Shape, offset: int) -> None:
    _require(len(shape) == len(strides), "strides of other axes")
    _require(all(abs(stride) <= _MOST_ELEMENTS for stride in strides), "strides beyond any array")
    reach = [(_natural(size) - 1) * stride for size, stride in zip(shape, strides, strict=True)]
    lowest = offset + sum(step for step in reach if step < 0)
    highest = offset + sum(step for step in reach if step > 0)
    _require(prod(shape) > 0 and lowest >= 0 and highest < prod(source), "reaches beyond its source")


def _natural(number: int) -> int:
    _require(isinstance(number, int) and number >= 0, f"{number!r} is no natural number")
    return number


def _named(name: str) -> None:
    _require(isinstance(name, str) and 0 < len(name) <= 64, f"{name!r} is no name")


def _require(holds: bool, text: str) -> None:
    if not holds:
        raise ValueError(text)


def _frozen(params: Any) -> Any:
    return tuple(_frozen(item) for item in params) if isinstance(params, list) else params
