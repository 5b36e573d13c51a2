"""Removes instructions whose results nothing reads."""

from __future__ import annotations

import numpy as np

from nki_sim.compiler.program_draft import ProgramDraft
from nki_sim.compiler.value_numbering import has_side_effect
from nki_sim.program.ir import Bools


def drop_dead_instructions(draft: ProgramDraft) -> None:
    """Drop instructions that only write tiles which no remaining instruction reads later."""
    alive = _has_lasting_effect(draft)
    cells = draft.cells
    last_read = np.full(len(draft.tensor_sites), -1)
    last_read[cells.tensor[cells.reads]] = cells.instruction[cells.reads]
    used = alive.copy()
    used[cells.instruction[cells.writes & (last_read[cells.tensor] > cells.instruction)]] = True
    if not used.all():
        draft.keep_instructions(_live_instructions(draft, alive))


def _has_lasting_effect(draft: ProgramDraft) -> Bools:
    """Per instruction, whether it stays whatever is read, because it changes more than tiles of its own.

    Tiles that the kernel places itself may be read by another name.
    """
    cells = draft.cells
    needed = np.array([has_side_effect(form) for form in draft.forms], dtype=bool)[draft.form_ids]
    silent = np.ones(len(draft), dtype=bool)
    silent[cells.instruction[cells.writes]] = False
    lasting = ~draft.tensors_in_memory("sbuf", "psum", placed=False)
    needed[cells.instruction[cells.writes & lasting[cells.tensor]]] = True
    return np.asarray(needed | silent, dtype=bool)


def _live_instructions(draft: ProgramDraft, needed: Bools) -> Bools:
    """Per instruction, whether it is needed or a live instruction reads its results; works backwards."""
    cells = draft.cells
    first, tensors = cells.first.tolist(), cells.tensor.tolist()
    writes, reads, alive = cells.writes.tolist(), cells.reads.tolist(), needed.tolist()
    read: set[int] = set()
    for at in range(len(draft) - 1, -1, -1):
        mine = range(first[at], first[at + 1])
        if alive[at] or any(writes[cell] and tensors[cell] in read for cell in mine):
            alive[at] = True
            read.update(tensors[cell] for cell in mine if reads[cell])
    return np.array(alive, dtype=bool)
