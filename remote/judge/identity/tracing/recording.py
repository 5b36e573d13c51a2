"""Runs a reference once on arrays that record, and returns the expression of what it computes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from remote.judge.identity.expression import Expression, ExpressionError, Shape
from remote.judge.identity.tracing import functions, indexing, ufuncs
from remote.judge.identity.tracing.arrays import Recorder, Recording, Rules, UntraceableError
from remote.judge.identity.tracing.methods import METHODS
from remote.judge.identity.tracing.stacking import stacked

_FLOATS = "fV"
_RULES = Rules(indexing.get, indexing.put, ufuncs.apply, functions.apply, METHODS)


def record(
    reference: Callable[..., Any], inputs: Sequence[tuple[Shape, np.dtype[Any]]], outputs: Sequence[Shape]
) -> Expression:
    """Return what a reference computes from inputs of these shapes and types.

    Raises:
        UntraceableError: it cannot be followed; why.
    """
    try:
        recorder = Recorder([shape for shape, _ in inputs], _RULES)
        arrays = [
            recorder.result(recorder.add("input", (), (number,)), dtype)
            for number, (_, dtype) in enumerate(inputs)
        ]
        with creating(recorder):
            found = reference(*arrays)
        numbers = [recorder.number_of(item) for item in (found if isinstance(found, tuple) else (found,))]
    except (UntraceableError, ExpressionError) as error:
        raise UntraceableError(str(error)) from error
    except Exception as error:
        raise UntraceableError(f"following it raised {type(error).__name__}: {error}") from error
    if [recorder.table.nodes[number].shape for number in numbers] != list(outputs):
        raise UntraceableError("what it returns has other shapes when it is followed")
    recorded = Expression(recorder.table.nodes, recorder.table.arrays, numbers)
    return stacked(recorded, recorder.table.inputs)


@contextmanager
def creating(recorder: Recorder) -> Iterator[None]:
    """Let NumPy's functions that make arrays of floats make arrays that record."""
    own = {name: _creator(getattr(np, name), recorder, make) for name, make in _CREATORS.items()}
    own |= {name: _converter(getattr(np, name)) for name in _CONVERTERS}
    before = {name: getattr(np, name) for name in own}
    vars(np).update(own)
    try:
        yield
    finally:
        vars(np).update(before)


def _creator(original: Any, recorder: Recorder, make: Callable[..., Recording]) -> Callable[..., Any]:
    def create(shape: Any, *args: Any, **kwargs: Any) -> Any:
        """As NumPy's, but floats are recorded."""
        small = original(1, *args, **kwargs)
        if small.dtype.kind not in _FLOATS or _is_ours():
            return original(shape, *args, **kwargs)
        return make(recorder, shape, small)

    return create


def _converter(original: Any) -> Callable[..., Any]:
    def convert(value: Any, dtype: Any = None, **kwargs: Any) -> Any:
        """As NumPy's; an array that records is converted as by `astype`."""
        if isinstance(value, Recording):
            copied = kwargs.get("copy", original is np.array)
            return value.astype(dtype or value.dtype) if copied or dtype is not None else value
        listed = isinstance(value, list | tuple) and any(isinstance(item, Recording) for item in value)
        if listed and not _is_ours():
            return np.stack(value).astype(dtype or np.float64)
        return original(value, dtype, **kwargs)

    return convert


def _is_ours() -> bool:
    """Whether NumPy itself, or the recorder, asks for an array: these need real ones."""
    asking = sys._getframe(2)  # noqa: SLF001  of the function that was called in NumPy's place
    return str(asking.f_globals.get("__name__")).partition(".")[0] in {"numpy", "remote"}


_CREATORS: dict[str, Callable[[Recorder, Any, Any], Recording]] = {
    "empty": lambda recorder, shape, small: functions.empty(recorder, shape, small.dtype),
    "full": lambda recorder, shape, small: functions.full(recorder, shape, small[0], small.dtype),
    "ones": lambda recorder, shape, small: functions.full(recorder, shape, 1.0, small.dtype),
    "zeros": lambda recorder, shape, small: functions.full(recorder, shape, 0.0, small.dtype),
}
_CONVERTERS = ("array", "asarray", "asanyarray", "ascontiguousarray")
