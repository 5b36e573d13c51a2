"""Loops, and reductions over them. Loops are unrolled; their variables are integers that know their loop."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any

from nki_sim.frontend.kernel_values import KernelValue
from nki_sim.frontend.legacy.index import LoopIndex
from nki_sim.frontend.legacy.masks import Box
from nki_sim.frontend.legacy.recorder import legacy_recorder
from nki_sim.frontend.legacy.tiles import Tile, assign_value, conform_shape, mask_boxes, to_operand
from nki_sim.frontend.tensor import fail
from nki_sim.operators import OPERATORS


def _loop_range(start: Any, stop: Any, step: Any) -> range:
    try:
        return range(start) if stop is None else range(start, stop, step)
    except TypeError:
        fail(
            "dynamic_control_flow_not_supported", f"a loop over ({start!r}, {stop!r}, {step!r})",
            "loop bounds are integers that are known while tracing",
        )  # fmt: skip


def sequential_range(
    start: Any, stop: Any = None, step: Any = 1, *, directives: Any = None
) -> Iterator[LoopIndex]:
    """Iterate in order; iterations may use earlier ones' writes. `directives` are for the compiler."""
    del directives
    around = legacy_recorder().current_iteration
    numbers = LocalNumbers(sys._getframe(1))
    for count, value in enumerate(_loop_range(start, stop, step)):
        if count:
            numbers.restore(sys._getframe(1))
        yield LoopIndex._create(value, around)


def affine_range(
    start: Any, stop: Any = None, step: Any = 1, *, directives: Any = None
) -> Iterator[LoopIndex]:
    """Iterate in any order; iterations depend on each other only by `+=` and reductions."""
    del directives
    recorder = legacy_recorder()
    loop, around = recorder.new_loop(), recorder.current_iteration
    numbers = LocalNumbers(sys._getframe(1))
    for count, value in enumerate(_loop_range(start, stop, step)):
        if count:
            numbers.restore(sys._getframe(1))
        recorder.enter_iteration(loop, count)
        try:
            yield LoopIndex._create(value, around)
        finally:
            recorder.leave_iteration()


def static_range(start: Any, stop: Any = None, step: Any = 1) -> range:
    """Unroll the iterations; the variable is a plain integer."""
    return _loop_range(start, stop, step)


class LoopReduction(KernelValue):
    """The result of `nl.loop_reduce`; assigning it to a tile reduces into the tile."""

    __slots__ = ("_around", "_boxes", "_op", "_value")

    def __init__(self, value: Tile, op: Any, indices: Sequence[Any], boxes: list[Box] | None) -> None:
        self._value = value
        self._op = op
        self._boxes = boxes
        self._around = min([getattr(index, "_around", 0) for index in indices], default=0)

    def _reduce_into(self, goal: Tile) -> None:
        """goal = goal op value; a tile that holds nothing yet takes the value."""
        goal = conform_shape(goal, self._value.shape)
        for box in [()] if self._boxes is None else self._boxes:
            part = tuple(slice(*span) for span in box)
            self._reduce_part(goal[part], self._value[part])

    def _reduce_part(self, goal: Tile, value: Tile) -> None:
        recorder = legacy_recorder()
        if recorder.begins_reduction(goal):
            # The first write of a reduction belongs outside its loops, not to their first iteration.
            with recorder.record_in_iteration(self._around):
                assign_value(goal, value, unshared=False)
        else:
            given = {"dst": goal, "data1": goal, "data2": value, "op": self._op}
            recorder.emit(OPERATORS["tensor_tensor"], given)


def loop_reduce(
    x: Any, op: Any, loop_indices: Any, *, dtype: Any = None, mask: Any = None, **_: object
) -> LoopReduction:
    """`t[...] = nl.loop_reduce(x, op, loop_indices)`: reduce every iteration's `x` into `t`, in place.

    The type is that of the destination; `dtype` must agree.
    """
    from nki_sim.frontend.legacy.isa import alu

    del dtype
    value = to_operand(x)
    indices = loop_indices if isinstance(loop_indices, Sequence) else (loop_indices,)
    boxes = value._kept if mask is None else mask_boxes(mask, value.shape)
    return LoopReduction(value, alu(op), indices, boxes)


_PLAIN = frozenset({int, float, bool})


class LocalNumbers:
    """The plain numbers among a function's local variables when its loop begins.

    The vendor traces a loop's body once, so a Python number that the body changes (`address += size`) has its
    first value in every iteration. The simulator unrolls loops, so before each iteration it restores these
    numbers. Loop variables and global variables are not included.
    """

    __slots__ = ("_before", "_code")

    def __init__(self, frame: FrameType) -> None:
        self._code = frame.f_code
        found = frame.f_locals if frame.f_code.co_flags & inspect.CO_OPTIMIZED else {}
        self._before = {name: value for name, value in found.items() if type(value) in _PLAIN}

    def restore(self, frame: FrameType) -> None:
        """Restore the variables that the body changed to their first values."""
        if not self._before or frame.f_code is not self._code:
            return
        found: dict[str, Any] = frame.f_locals
        changed = [
            name
            for name, value in self._before.items()
            if found.get(name) is not value and type(found.get(name)) in _PLAIN
        ]
        for name in changed:
            found[name] = self._before[name]
        if changed:
            _write_back(frame)


def _write_back(frame: FrameType) -> None:
    """Write changes back; before Python 3.13, `f_locals` of a function is a copy."""
    if sys.version_info < (3, 13):
        import ctypes

        ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(frame), ctypes.c_int(0))
