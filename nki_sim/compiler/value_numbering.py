"""Finds tiles that hold the same values, by value numbering.

A tile's number stands for its declaration, the instructions that write it, in order, and the numbers of what
these read. Profiles show values hoisted out of loops, but two statements that make the same value both stay
(rmsnorm_matmul loads 27 of 32 tiles twice) [C]. A tile has a number if all writes to it come before anything
else reads it. Other memory, above all HBM, is numbered by its current contents: the tensor and how often it
has been written.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

import numpy as np

from nki_sim.compiler.program_draft import ProgramDraft
from nki_sim.forms import Form
from nki_sim.program.ir import Bools

# Instructions with effects beyond their operands' values, which must not be dropped.
SIDE_EFFECT_OPS = frozenset({"rng", "rand", "dropout", "core_barrier", "sendrecv", "loop_begin", "loop_end"})

_ITSELF = _NOTHING = -1


def has_side_effect(form: Form) -> bool:
    """Whether an instruction does more than write a function of what it reads."""
    return form.op in SIDE_EFFECT_OPS or any(item.buffer == "register" for item in form.operands)


@dataclass(frozen=True, slots=True)
class _FormKind:
    """Positions of a form's operands: written, only read; and whether its results depend on its outputs."""

    outs: tuple[int, ...]
    ins: tuple[int, ...]
    updates: bool
    unique: bool


class ValueNumbering:
    """Value numbers of the tiles of a draft.

    `numbers[t]` is the first tile of its declaration with the same contents as tile t (t itself if it is the
    first), for tiles that some instruction reads and whose contents are known.
    """

    def __init__(self, draft: ProgramDraft) -> None:
        self._sites = draft.tensor_sites
        self._changing: list[bool] = _changing_tensors(draft).tolist()
        self._placed = [site.address is not None for site in draft.sites]
        self._placed_writes = 0
        # By tensor, a number for everything written to it so far, in order.
        self._states: dict[int, int] = {}
        self._first: dict[tuple[int, int], int] = {}
        self.numbers: dict[int, int] = {}
        self._number_values(draft)

    def _number_values(self, draft: ProgramDraft) -> None:
        cells, states = draft.cells, self._states
        first, tensors, offsets = cells.first.tolist(), cells.tensor.tolist(), cells.offset.tolist()
        kinds = [_form_kind(draft, number) for number in range(len(draft.forms))]
        known: dict[Hashable, int] = {}
        cores = draft.issuing_cores().tolist()
        for at, form in enumerate(draft.form_ids.tolist()):
            base, kind = first[at], kinds[form]
            outs = [tensors[base + place] for place in kind.outs]
            key: list[Hashable] = [form, cores[at]]
            for place in kind.ins if outs else ():
                tensor = tensors[base + place]
                key += (_ITSELF if tensor in outs else self._content_number(tensor), offsets[base + place])
            if kind.unique or (len(outs) > 1 and (kind.updates or _ITSELF in key)):
                key.append((at,))
            for place, tensor in zip(kind.outs, outs, strict=True):
                write = (states.get(tensor, _NOTHING), place, offsets[base + place], *key)
                states[tensor] = known.setdefault(write, len(known))
                self._placed_writes += self._placed[self._sites[tensor]]

    def _content_number(self, tensor: int) -> Hashable:
        """The current contents of a tensor, as a key."""
        found = self.numbers.get(tensor)
        if found is not None:
            return found
        state, site = self._states.get(tensor, _NOTHING), self._sites[tensor]
        if self._placed[site]:
            # Another tile may lie in the same place.
            return tensor, self._placed_writes
        if self._changing[tensor] or state == _NOTHING:
            return tensor, state
        number = self.numbers[tensor] = self._first.setdefault((site, state), tensor)
        return number


def _form_kind(draft: ProgramDraft, number: int) -> _FormKind:
    effects = draft.form_effects(number)
    return _FormKind(
        outs=tuple(place for place, (write, _) in enumerate(effects) if write),
        ins=tuple(place for place, (write, read) in enumerate(effects) if read and not write),
        updates=any(write and read for write, read in effects),
        unique=has_side_effect(draft.forms[number]),
    )


def _changing_tensors(draft: ProgramDraft) -> Bools:
    """Per tensor, whether its contents change: HBM, and tiles written after something else reads them."""
    cells, count = draft.cells, len(draft.tensor_sites)
    own = np.zeros(len(cells.tensor), dtype=bool)
    for place in range(int(cells.operand.max(initial=0)) + 1):
        rows = np.flatnonzero(cells.writes & (cells.operand == place))
        outs = np.full(len(draft), -1)
        outs[cells.instruction[rows]] = cells.tensor[rows]
        own |= outs[cells.instruction] == cells.tensor
    read, written = np.full(count, len(draft)), np.full(count, -1)
    rows = np.flatnonzero(cells.reads & ~own)[::-1]
    read[cells.tensor[rows]] = cells.instruction[rows]
    rows = np.flatnonzero(cells.writes)
    written[cells.tensor[rows]] = cells.instruction[rows]
    return np.asarray((written > read) | ~draft.tensors_in_memory("sbuf", "psum"), dtype=bool)
