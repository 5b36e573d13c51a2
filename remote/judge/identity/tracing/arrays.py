"""Arrays that record the NumPy operations applied to them.

Each array has a `shadow`: a view of the array's shape on bytes that nobody reads, one byte per element. NumPy
itself slices, transposes and reshapes the shadow. Its offset and strides then tell which elements of the
original array are meant. So views are real views: a write to one is visible through the others.
"""

from __future__ import annotations

import linecache
import mmap
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from types import FrameType
from typing import Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from remote.judge.identity.domain import Array
from remote.judge.identity.expression import (
    MAX_EXPRESSION_BYTES,
    ArrayExpression,
    OperationTable,
    Shape,
    name_function,
    strides_of,
)

MAX_ARRAY_ELEMENTS = 1 << 32
"""Elements of the largest array that can be traced; they take address space, never memory."""
_LOOKED_BACK = 4
"""Writes that a read looks back at, for one to the same place: recurrences need their last few results."""
_OVERLAP_WORK: Any = 1000  # the stubs know only 0 and -1
"""NumPy's measure of work up to which it is found out whether two parts of an array overlap."""


class UntraceableError(Exception):
    """The reference does something that cannot be traced; `part` is what it computed before that."""

    part: ArrayExpression | None = None


class _NoAttributeError(UntraceableError, AttributeError):
    """Lets a reference test whether an array has an attribute."""


def describe_line(frame: FrameType | None) -> str:
    """The line of the reference's code from which NumPy or the recorder was called, with its text."""
    while frame is not None and is_internal(frame):
        frame = frame.f_back
    if frame is None:
        return ""
    text = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
    return f"line {frame.f_lineno}: {text}" if text else f"line {frame.f_lineno}"


def is_internal(frame: FrameType) -> bool:
    """Whether code is NumPy's or the recorder's."""
    return str(frame.f_globals.get("__name__")).partition(".")[0] in {"numpy", "remote"}


@dataclass(frozen=True, slots=True)
class RecordingRules:
    """How recording arrays handle NumPy: indexing, ufuncs, functions, methods by name."""

    get: Callable[[RecordedArray, Any], RecordedArray]
    put: Callable[[RecordedArray, Any, Any], None]
    ufunc: Callable[..., Any]
    function: Callable[..., Any]
    methods: Mapping[str, Callable[..., Any]]


class ArrayRecorder:
    """The operations recorded so far under these rules; equal operations are recorded once."""

    def __init__(self, inputs: Sequence[Shape], rules: RecordingRules) -> None:
        self.table = OperationTable(inputs)
        self.rules = rules
        self.nonnegative: set[int] = set()
        """The operations that give inputs without numbers below zero."""
        self._numbers: dict[Any, int] = {}
        self._constants: dict[Any, int] = {}
        self._bytes = 0
        self.lines: dict[str, str] = {}
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
        self.space = np.frombuffer(mmap.mmap(-1, MAX_ARRAY_ELEMENTS, flags=flags), np.uint8)
        self.address = _array_address(self.space)

    def add(self, kind: str, args: tuple[int, ...], params: tuple[Any, ...] = ()) -> int:
        """Record an operation; return its number."""
        key = (kind, args, params)
        if key not in self._numbers:
            self._numbers[key] = self.table.add(kind, args, params)
            name = name_function(self.table.nodes[-1])
            if name not in self.lines:
                self.lines[name] = describe_line(sys._getframe(1))  # noqa: SLF001  of whoever calls NumPy
        return self._numbers[key]

    def add_constant(self, array: Array) -> int:
        """Record an array of known numbers."""
        return self.add("constant", (), (self.store_array(array),))

    def store_array(self, array: Array) -> int:
        """Keep an array of known numbers; return its position among the kept ones."""
        if array.dtype.kind not in "bifu":
            array = _as_float32(array)
        key = (array.shape, array.dtype.str, array.tobytes())
        if key not in self._constants:
            self._bytes += array.nbytes
            if self._bytes > MAX_EXPRESSION_BYTES:
                raise UntraceableError(f"its constants take more than {MAX_EXPRESSION_BYTES} bytes")
            self.table.arrays.append(np.array(array))
            self._constants[key] = len(self.table.arrays) - 1
        return self._constants[key]

    def layout_of(self, shadow: Array) -> tuple[Shape, int]:
        """The strides and the offset that a shadow stands for, in elements."""
        return shadow.strides, _array_address(shadow) - self.address

    def number_of(self, value: Any) -> int:
        """Return the operation that gives a value: a recording array, or numbers."""
        return value.number if isinstance(value, RecordedArray) else self.add_constant(np.asarray(value))

    def make_array(self, number: int, dtype: Any = np.float64) -> RecordedArray:
        """Return the array that an operation gives."""
        return RecordedArray(RecordedBuffer(self, number, np.dtype(dtype)))


class RecordedBuffer:
    """The memory of one array: the operation that made it, and what was written to it since."""

    def __init__(self, recorder: ArrayRecorder, number: int, dtype: np.dtype[Any]) -> None:
        self.recorder, self.dtype = recorder, dtype
        self.shape = recorder.table.nodes[number].shape
        self._number = number
        self._written: list[tuple[int, Array, tuple[Shape, int]]] = []
        """Operations, the shadows of the parts that they were written to, and the layouts of these."""

    @property
    def number(self) -> int:
        """The operation that gives the present elements."""
        if self._written:
            numbers, places = [item[0] for item in self._written], tuple(item[2] for item in self._written)
            self._number = self.recorder.add("assemble", (self._number, *numbers), places)
            self._written = []
        return self._number

    def find_written(self, shadow: Array) -> int | None:
        """The operation that gives this part, if a late write was to it, and none since overlaps it."""
        layout = self.recorder.layout_of(shadow) if self._written else None
        for number, part, place in reversed(self._written[-_LOOKED_BACK:]):
            if part.shape == shadow.shape and place == layout:
                return number
            if _may_overlap(part, shadow):
                break
        return None

    def write(self, number: int, part: Array) -> None:
        """Write an operation's result to a part of its shape, or to all of the buffer."""
        shape, strides = part.shape, part.strides
        if shape == self.shape and strides == strides_of(shape):
            self._number, self._written = number, []
        elif prod(shape) == prod(self.shape) and strides == strides_of(shape):
            whole = (self.shape, strides_of(self.shape), 0)
            self._number, self._written = self.recorder.add("view", (number,), whole), []
        else:
            place = self.recorder.layout_of(part)
            if self._written and self._written[-1][1].shape == shape and self._written[-1][2] == place:
                self._written.pop()
            self._written.append((number, part, place))


class RecordedArray(NDArrayOperatorsMixin):
    """An array, or a view of one, as references see it."""

    __array_priority__ = 1000

    def __init__(self, buffer: RecordedBuffer, shadow: Array | None = None) -> None:
        self.buffer = buffer
        self.recorder = buffer.recorder
        if shadow is None:
            count = prod(buffer.shape)
            if count > MAX_ARRAY_ELEMENTS:
                raise UntraceableError(f"an array of shape {buffer.shape} is too large")
            shadow = self.recorder.space[:count].reshape(buffer.shape)
        self.shadow: Array = shadow
        self._seen: tuple[int, int] | None = None

    @property
    def number(self) -> int:
        """The operation that gives the present elements."""
        written = self.buffer.find_written(self.shadow)
        if written is not None:
            return written
        source = self.buffer.number
        if self._seen is None or self._seen[0] != source:
            shape, (strides, offset) = self.shape, self.recorder.layout_of(self.shadow)
            same = (shape, strides, offset) == (self.buffer.shape, strides_of(shape), 0)
            number = source if same else self.recorder.add("view", (source,), (shape, strides, offset))
            self._seen = source, number
        return self._seen[1]

    @property
    def shape(self) -> Shape:
        return self.shadow.shape

    @property
    def ndim(self) -> int:
        return self.shadow.ndim

    @property
    def size(self) -> int:
        return self.shadow.size

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.buffer.dtype

    @property
    def itemsize(self) -> int:
        return self.buffer.dtype.itemsize

    @property
    def nbytes(self) -> int:
        return self.itemsize * self.size

    @property
    def real(self) -> RecordedArray:
        return self

    @property
    def T(self) -> RecordedArray:  # noqa: N802  NumPy's name
        return self.move_shadow(np.transpose)

    @property
    def mT(self) -> RecordedArray:  # noqa: N802  NumPy's name
        return self.move_shadow(lambda array: np.swapaxes(array, -1, -2))

    def __len__(self) -> int:
        return len(self.shadow)

    def __iter__(self) -> Iterator[RecordedArray]:
        return (self[at] for at in range(len(self)))

    def __getitem__(self, index: Any) -> RecordedArray:
        return self.recorder.rules.get(self, index)

    def __setitem__(self, index: Any, value: Any) -> None:
        self.recorder.rules.put(self, index, value)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in self.recorder.rules.methods:
            return self.recorder.rules.methods[name].__get__(self)
        raise _NoAttributeError(f"it uses `.{name}` of an array")

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        """Record an elementwise function, a reduction or a matrix product."""
        return self.recorder.rules.ufunc(self.recorder, ufunc, method, inputs, kwargs)

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """Record what a function of NumPy does."""
        return self.recorder.rules.function(self.recorder, func, args, kwargs)

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise UntraceableError("it asks for the numbers in an array")

    def _refuse_number(self, *_: Any) -> Any:
        raise UntraceableError("what it does depends on the numbers in an array")

    __bool__ = __float__ = __int__ = __index__ = __complex__ = _refuse_number
    __hash__ = None  # type: ignore[assignment]  # as NumPy's arrays

    def move_shadow(self, movement: Callable[[Array], Array]) -> RecordedArray:
        """Apply a NumPy operation on shapes, which needs no numbers; copies where NumPy copies."""
        for source in (self, self.copy_elements):
            array = source if isinstance(source, RecordedArray) else source()
            shadow = movement(array.shadow)
            if np.may_share_memory(shadow, self.recorder.space):
                return RecordedArray(array.buffer, shadow)
        raise UntraceableError("it brings elements into an order that is not followed")

    def copy_elements(self, dtype: Any = None) -> RecordedArray:
        """Return a new array of the same elements."""
        return self.recorder.make_array(self.number, dtype or self.dtype)

    def broadcast_view(self, shape: Shape) -> RecordedArray:
        """Return a view broadcast to that shape."""
        return self.move_shadow(lambda array: np.broadcast_to(array, shape))

    def write_part(self, target: Array, value: Any) -> None:
        """Write to a part of the buffer, given by its shadow."""
        if not isinstance(value, RecordedArray):
            array = np.asarray(value)
            value = self.recorder.make_array(self.recorder.add_constant(array), array.dtype)
        if self.dtype.kind in "iub" and not np.can_cast(value.dtype, self.dtype, "same_kind"):
            raise UntraceableError(f"it writes {value.dtype} to an array of {self.dtype}, which would round")
        if value.shape != target.shape:
            while value.ndim > target.ndim:
                value = value[0]  # leading axes of size one, which NumPy drops
            value = value.broadcast_view(target.shape)
        self.buffer.write(value.number, target)


def _may_overlap(one: Array, other: Array) -> bool:
    """Whether two shadows have an element in common, or it takes long to find out."""
    try:
        return np.shares_memory(one, other, max_work=_OVERLAP_WORK)
    except np.exceptions.TooHardError:
        return True


def _array_address(array: Array) -> int:
    address: int = array.__array_interface__["data"][0]
    return address


def _as_float32(array: Array) -> Array:
    """Convert small float types such as bfloat16, which files cannot hold."""
    if array.dtype.kind != "V" or array.dtype.names:
        raise UntraceableError(f"it computes with {array.dtype}")
    return array.astype(np.float32)
