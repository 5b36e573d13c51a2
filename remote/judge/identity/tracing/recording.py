"""Runs a reference once on recording arrays, and returns the expression that it computes."""

from __future__ import annotations

import linecache
import math
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from traceback import walk_tb
from typing import Any

import numpy as np

from remote.judge.identity.expression import ArrayExpression, InvalidExpressionError, Shape
from remote.judge.identity.tracing import functions, indexing, ufuncs
from remote.judge.identity.tracing.arrays import (
    ArrayRecorder,
    RecordedArray,
    RecordingRules,
    UntraceableError,
    is_internal,
)
from remote.judge.identity.tracing.methods import METHODS
from remote.judge.identity.tracing.stacking import stack_operations

_FLOATS = "fV"
_RULES = RecordingRules(
    indexing.get_elements, indexing.put_elements, ufuncs.record_ufunc, functions.record_function, METHODS
)


def record_reference(
    reference: Callable[..., Any],
    inputs: Sequence[tuple[Shape, np.dtype[Any]]],
    outputs: Sequence[Shape],
    nonnegative: Collection[int] = (),
) -> ArrayExpression:
    """Return the expression that a reference computes from inputs of these shapes and types.

    `nonnegative` has the positions of inputs without numbers below zero. Such an index never counts from the
    end.

    Raises:
        UntraceableError: the reference cannot be traced, and why.
    """
    recorder = ArrayRecorder([shape for shape, _ in inputs], _RULES)
    try:
        arrays = [
            recorder.make_array(recorder.add("input", (), (number,)), dtype)
            for number, (_, dtype) in enumerate(inputs)
        ]
        recorder.nonnegative |= {arrays[position].number for position in nonnegative}
        with patched_creation(recorder), patched_vectorize(recorder):
            found = reference(*arrays)
        numbers = [recorder.number_of(item) for item in (found if isinstance(found, tuple) else (found,))]
    except (UntraceableError, InvalidExpressionError) as error:
        raise _locate(str(error), error, recorder) from error
    except Exception as error:
        text = f"following it raised {type(error).__name__}: {error}"
        raise _locate(text, error, recorder) from error
    if [recorder.table.nodes[number].shape for number in numbers] != list(outputs):
        raise UntraceableError("what it returns has other shapes when it is followed")
    recorded = ArrayExpression(recorder.table.nodes, recorder.table.arrays, numbers, recorder.lines)
    try:
        return stack_operations(recorded, recorder.table.inputs)
    except Exception as error:  # a fault of ours must not end the process that computes the outputs
        text = f"its loops could not be put together: {type(error).__name__}: {error}"
        raise UntraceableError(text) from error


def _locate(text: str, error: Exception, recorder: ArrayRecorder) -> UntraceableError:
    """The error with the line that raised it, and with the last result before it."""
    frames = [frame for frame, _ in walk_tb(error.__traceback__) if not is_internal(frame)]
    lines = [line for frame, line in walk_tb(error.__traceback__) if not is_internal(frame)]
    if frames:
        source = linecache.getline(frames[-1].f_code.co_filename, lines[-1]).strip()
        text += f" (line {lines[-1]}: {source})" if source else f" (line {lines[-1]})"
    found = UntraceableError(text)
    nodes = recorder.table.nodes
    computed = [at for at, node in enumerate(nodes) if node.kind not in {"input", "constant", "unknown"}]
    if computed:
        part = ArrayExpression(nodes, recorder.table.arrays, [computed[-1]], recorder.lines)
        found.part = stack_operations(part, recorder.table.inputs)
    return found


@contextmanager
def patched_creation(recorder: ArrayRecorder) -> Iterator[None]:
    """Make NumPy's functions that create float arrays create recording arrays."""
    own = {name: _make_creator(getattr(np, name), recorder, make) for name, make in _CREATORS.items()}
    own |= {name: _make_converter(getattr(np, name)) for name in _CONVERTERS}
    before = {name: getattr(np, name) for name in own}
    vars(np).update(own)
    try:
        yield
    finally:
        vars(np).update(before)


@contextmanager
def patched_vectorize(recorder: ArrayRecorder) -> Iterator[None]:
    """Make `np.vectorize(math.erf)`, which NumPy has no name for, record the function."""
    original = np.vectorize.__call__

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.pyfunc is math.erf and len(args) == 1 and isinstance(args[0], RecordedArray):
            return ufuncs.record_elementwise(recorder, "erf", args[0])
        return original(self, *args, **kwargs)

    np.vectorize.__call__ = call  # type: ignore[method-assign]
    try:
        yield
    finally:
        np.vectorize.__call__ = original  # type: ignore[method-assign]


def _make_creator(
    original: Any, recorder: ArrayRecorder, make: Callable[..., RecordedArray]
) -> Callable[..., Any]:
    def create(shape: Any, *args: Any, **kwargs: Any) -> Any:
        """Like NumPy's function, but float arrays are recorded."""
        small = original(1, *args, **kwargs)
        if small.dtype.kind not in _FLOATS or _is_internal_caller():
            return original(shape, *args, **kwargs)
        return make(recorder, shape, small)

    return create


def _make_converter(original: Any) -> Callable[..., Any]:
    copies, orders = original is np.array, original is np.ascontiguousarray  # before others stand there

    def convert(value: Any, dtype: Any = None, **kwargs: Any) -> Any:
        """Like NumPy's function; a recording array is converted as by `astype`."""
        if isinstance(value, RecordedArray):
            copied = kwargs.get("copy", copies) or (orders and not value.shadow.flags.c_contiguous)
            return value.astype(dtype or value.dtype) if copied or dtype is not None else value
        listed = isinstance(value, list | tuple) and any(isinstance(item, RecordedArray) for item in value)
        if listed and not _is_internal_caller():
            return np.stack(value).astype(dtype or np.float64)
        return original(value, dtype, **kwargs)

    return convert


def _is_internal_caller() -> bool:
    """Whether NumPy itself, or the recorder, is the caller: these need real arrays."""
    return is_internal(sys._getframe(2))  # noqa: SLF001  of the function that was called in NumPy's place


_CREATORS: dict[str, Callable[[ArrayRecorder, Any, Any], RecordedArray]] = {
    "empty": lambda recorder, shape, small: functions.empty(recorder, shape, small.dtype),
    "full": lambda recorder, shape, small: functions.full(recorder, shape, small[0], small.dtype),
    "ones": lambda recorder, shape, small: functions.full(recorder, shape, 1.0, small.dtype),
    "zeros": lambda recorder, shape, small: functions.full(recorder, shape, 0.0, small.dtype),
}
_CONVERTERS = ("array", "asarray", "asanyarray", "ascontiguousarray")
