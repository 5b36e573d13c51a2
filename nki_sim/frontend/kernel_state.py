"""Describes what a kernel's file keeps from call to call, so that a change of it is seen.

Python keeps state in many places: lists and dictionaries of the module, attributes of its classes, functions
and objects, default arguments, closures, suspended generators, counters. The description covers what the
module's own names lead to. Of objects from elsewhere it has their attributes and the arguments of errors. An
iterator that nothing can look into is described as another each time: it may be what counts.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import operator
from collections import deque
from collections.abc import Iterator, Mapping
from types import CellType, ModuleType
from typing import Any

_PLAIN = (bool, int, float, complex, str, bytes, type(None), type(Ellipsis), range, slice)
_SEQUENCES = (list, tuple, set, frozenset, deque)
_COUNTERS = (itertools.count, itertools.repeat)


_UNSEEN = itertools.count()
"""Numbers for what cannot be looked into, so that no description of it is ever equal to another."""


def describe_state(namespace: Mapping[str, Any]) -> list[str]:
    """Return a description of a module's own state; equal lists mean that nothing was seen to change."""
    return [*_Walk(str(namespace.get("__name__"))).describe(dict(namespace))]


class _Walk:
    """One walk over a module; every object is described once, and named by its number from then on."""

    def __init__(self, module: str) -> None:
        self._module = module
        self._numbers: dict[int, int] = {}
        self._alive: list[Any] = []  # so that no identity is used again during the walk

    def describe(self, value: Any) -> Iterator[str]:
        """Yield the description of a value, and of what it leads to."""
        kind = type(value)
        if kind in _PLAIN:
            yield repr(value)
            return
        if id(value) in self._numbers:
            yield f"#{self._numbers[id(value)]}"
            return
        self._numbers[id(value)] = len(self._numbers)
        self._alive.append(value)
        yield kind.__name__
        for part in self._parts(value):
            yield from self.describe(part)
        yield "end"

    def _parts(self, value: Any) -> Iterator[Any]:
        """Yield what a value keeps, as far as it belongs to the module."""
        if isinstance(value, _COUNTERS):
            yield repr(value)
        elif isinstance(value, Mapping) and not isinstance(value, ModuleType):
            yield from itertools.chain.from_iterable(value.items())
        elif isinstance(value, _SEQUENCES):
            yield from value
        elif isinstance(value, CellType):
            yield from _cell_contents(value)
        elif isinstance(value, functools.partial):
            yield from (value.func, value.args, value.keywords, value.__dict__)
        elif inspect.isgenerator(value):
            frame = value.gi_frame
            yield from () if frame is None else (frame.f_lasti, frame.f_locals)
        elif inspect.isfunction(value):
            yield from self._function_parts(value)
        elif type(value).__name__ == "ndarray":
            yield value.tobytes()
        elif hasattr(value, "cache_info"):
            yield repr(value.cache_info())
        elif hasattr(value, "__length_hint__"):
            yield operator.length_hint(value)
        elif self._is_own(value):
            yield from self._attributes(value)
        elif not isinstance(value, type | ModuleType):
            yield from _foreign_parts(value)

    def _function_parts(self, value: Any) -> Iterator[Any]:
        if value.__module__ == self._module:
            yield from (value.__defaults__, value.__kwdefaults__, value.__closure__, value.__dict__)

    def _is_own(self, value: Any) -> bool:
        owner = value if isinstance(value, type) else type(value)
        return getattr(owner, "__module__", None) == self._module or hasattr(value, "__wrapped__")

    def _attributes(self, value: Any) -> Iterator[Any]:
        yield {name: part for name, part in getattr(value, "__dict__", {}).items() if name != "__dict__"}
        for owner in type(value).__mro__:
            for name in getattr(owner, "__slots__", ()):
                yield getattr(value, name, None)


def _cell_contents(cell: CellType) -> Iterator[Any]:
    try:
        yield cell.cell_contents
    except ValueError:  # nothing is bound to it yet
        return


def _foreign_parts(value: Any) -> Iterator[Any]:
    """Yield what is seen of an object whose class is not the module's own."""
    yield getattr(value, "__dict__", None)
    if isinstance(value, BaseException):
        yield value.args
    if isinstance(value, Iterator):
        yield next(_UNSEEN)
