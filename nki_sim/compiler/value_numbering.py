"""Tiles that hold the same values, by value numbers.

The number of a tile stands for its declaration, the instructions that write it, in order, and the numbers of
what these read: profiles show values leave their loops, but two statements that make the same value both
stay (rmsnorm_matmul loads 27 of 32 tiles twice) [C].
A tile has one when everything that is written to it is written before anything else reads it. Other memory,
HBM above all, is numbered by what it holds at the moment: the tensor, and how often it was written so far.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

import numpy as np

from nki_sim.compiler.program_draft import ProgramDraft
from nki_sim.forms import Form
from nki_sim.program.ir import Bools

# What an instruction does beyond its operands' values: nothing may be dropped.
SIDE_EFFECT_OPS = frozenset({"rng", "rand", "dropout", "core_barrier", "sendrecv", "loop_begin", "loop_end"})

_ITSELF = _NOTHING = -1


def has_side_effect(form: Form) -> bool:
    """Whether an instruction does more than write what follows from what it reads."""
    return form.op in SIDE_EFFECT_OPS or any(item.buffer == "register" for item in form.operands)


@dataclass(frozen=True, slots=True)
class _FormKind:
    """Places of a form's operands: written, read only; and whether its results depend on its outputs."""

    outs: tuple[int, ...]
    ins: tuple[int, ...]
    updates: bool
    unique: bool


class ValueNumbering:
    """Value numbers of the tiles of a draft.

    `numbers[t]` is the first tile of its declaration that holds what tile t holds (t itself, where it is the
    first), for tiles that some instruction reads and whose content is known.
    """

    def __init__(self, draft: ProgramDraft) -> None:
        self._sites = draft.tensor_sites
        self._changing: list[bool] = _changing_tensors(draft).tolist()
        self._placed = [site.address is not None for site in draft.sites]
        self._placed_writes = 0
        # By tensor a number for all that was written to it until now, in order.
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
        """What a tensor holds when it is read now."""
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
    """By tensor whether its content changes: HBM, and tiles written after another instruction reads them."""
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
