"""Tiles that hold the same values: the legacy compiler makes each of them once and keeps it.

A tile has a value number when everything that is written to it is written before anything reads it: the
number stands for the instructions that write it, in order, and the numbers of what these read. HBM tensors
that nobody writes are numbers themselves. A tile with the number of an earlier one is dropped together with
the instructions that fill it: loads of the same data become one load, computation that does not change from
one iteration of a loop to the next leaves the loop.
"""

from __future__ import annotations

from collections.abc import Hashable

from nki_sim.compiler.draft import Draft, Step
from nki_sim.forms import HBM_BUFFERS

# What an instruction does beyond its operands' values: nothing may be dropped.
KEPT = frozenset({"rng", "rand", "dropout", "core_barrier", "sendrecv", "loop_begin", "loop_end"})


class Values:
    """Value numbers of all tiles of a draft; `twins[t]` is the earlier tile that equals tile t."""

    def __init__(self, draft: Draft) -> None:
        self._draft = draft
        self._written = self._late_writes()
        self._parts: dict[int, list[Hashable]] = {}
        self._numbers: dict[int, Hashable] = {}
        self._known: dict[Hashable, int] = {}
        self.twins: dict[int, int] = {}
        self.makers: dict[int, list[int]] = {}
        for at, step in enumerate(draft.steps):
            self._take(at, step)

    def _late_writes(self) -> set[int]:
        """Tensors that cannot be numbered: HBM that is written, tiles written after they have been read."""
        late: set[int] = set()
        seen: set[int] = set()
        for step in self._draft.steps:
            effects = self._draft.effects(step.form)
            written = {t for t, (write, _) in zip(step.tensors, effects, strict=True) if write}
            for tensor, (write, read) in zip(step.tensors, effects, strict=True):
                if write and (tensor in seen or self._draft.site(tensor).buffer in HBM_BUFFERS):
                    late.add(tensor)
                if read and tensor not in written:
                    seen.add(tensor)
        return late

    def _take(self, at: int, step: Step) -> None:
        effects = self._draft.effects(step.form)
        form = self._draft.forms[step.form]
        written = {t for t, (write, _) in zip(step.tensors, effects, strict=True) if write}
        reads: list[Hashable] = [
            ("itself" if tensor in written else self._number(tensor), offset)
            for tensor, offset, (write, read) in zip(step.tensors, step.offsets, effects, strict=True)
            if read and not write
        ]
        unique = form.op in KEPT or any(item.buffer == "register" for item in form.operands)
        for place, (tensor, offset, (write, _)) in enumerate(
            zip(step.tensors, step.offsets, effects, strict=True)
        ):
            if write:
                key = (step.form, place, offset, *reads, at if unique else -1)
                self._parts.setdefault(tensor, []).append(key)
                self.makers.setdefault(tensor, []).append(at)

    def _number(self, tensor: int) -> Hashable:
        """The value of a tile that is read now; everything that fills it has been seen."""
        found = self._numbers.get(tensor)
        if found is None:
            found = self._numbers[tensor] = self._new_number(tensor)
        return found

    def _new_number(self, tensor: int) -> Hashable:
        parts = self._parts.get(tensor)
        if tensor in self._written or parts is None:
            return tensor
        site = self._draft.site(tensor)
        if site.address is not None:
            return tensor
        first = self._known.setdefault((site.shape, site.dtype, site.buffer, *parts), tensor)
        if first != tensor:
            self.twins[tensor] = first
        return first
