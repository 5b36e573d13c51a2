"""Loops and reductions over them. Loops are unrolled; their variables are integers that know their loop."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from nki_sim.frontend.legacy.index import LoopIndex
from nki_sim.frontend.legacy.recorder import legacy
from nki_sim.frontend.legacy.tiles import Tile, conform, operand, store
from nki_sim.frontend.tensor import Tensor, fail
from nki_sim.operators import OPERATORS


def _bounds(start: Any, stop: Any, step: Any) -> range:
    try:
        return range(start) if stop is None else range(start, stop, step)
    except TypeError:
        fail(
            "dynamic_control_flow_not_supported", f"a loop over ({start!r}, {stop!r}, {step!r})",
            "loop bounds are integers that are known while tracing",
        )  # fmt: skip


def sequential_range(start: Any, stop: Any = None, step: Any = 1) -> Iterator[LoopIndex]:
    """Iterations in order; what one leaves in memory the next may use."""
    around = legacy().iteration
    for count, value in enumerate(_bounds(start, stop, step)):
        yield LoopIndex.of(value, first=count == 0, around=around)


def affine_range(start: Any, stop: Any = None, step: Any = 1) -> Iterator[LoopIndex]:
    """Iterations that may run in any order: they depend on each other by `+=` and reductions only."""
    recorder = legacy()
    loop, around = recorder.new_loop(), recorder.iteration
    for count, value in enumerate(_bounds(start, stop, step)):
        recorder.enter_iteration(loop, count)
        try:
            yield LoopIndex.of(value, first=count == 0, around=around)
        finally:
            recorder.leave_iteration()


def static_range(start: Any, stop: Any = None, step: Any = 1) -> range:
    """Unrolled iterations; the variable is a plain integer."""
    return _bounds(start, stop, step)


class LoopReduction:
    """What `nl.loop_reduce` gives: assigned to a tile it reduces into it."""

    __slots__ = ("_around", "_first", "_op", "_value")

    def __init__(self, value: Tensor, op: Any, indices: Sequence[Any]) -> None:
        self._value = value
        self._op = op
        self._first = all(getattr(index, "first", index == 0) for index in indices)
        self._around = min([getattr(index, "around", 0) for index in indices], default=0)

    def reduce_into(self, goal: Tile) -> None:
        """goal = goal op value; in the first iteration a tile that holds nothing yet takes the value."""
        recorder = legacy()
        if self._first and recorder.is_fresh(goal):
            # What begins a reduction belongs to what is around its loops, not to their first iteration.
            with recorder.inside(self._around):
                store(goal, self._value, unshared=False)
            return
        goal = conform(goal, self._value.shape)
        recorder.emit(
            OPERATORS["tensor_tensor"], {"dst": goal, "data1": goal, "data2": self._value, "op": self._op}
        )


def loop_reduce(
    x: Any, op: Any, loop_indices: Any, *, dtype: Any = None, mask: Any = None, **_: object
) -> LoopReduction:
    """`t[...] = nl.loop_reduce(x, op, loop_indices)`: `t` reduced with every iteration's `x`, in place.

    The type is that of the destination; `dtype` says the same.
    """
    from nki_sim.frontend.legacy.isa import alu

    del dtype
    if mask is not None:
        fail("unsupported_argument", "not supported: nl.loop_reduce(mask=)", "mask what makes its operand")
    indices = loop_indices if isinstance(loop_indices, Sequence) else (loop_indices,)
    return LoopReduction(operand(x), alu(op), indices)
