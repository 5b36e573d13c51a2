"""Finds waits for a place rather than for a result: a tile is overwritten while its old contents are in use.

An instruction waits for another one either because it reads what that one wrote (read after write), or
because it overwrites what that one read or wrote (write after read, write after write). The second kind
transfers no data; a fresh tile would remove it. The test looks at whole tensors, not parts of them, and if
both kinds apply it counts as a wait for the result.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from nki_sim.compiler.compiled_program import CompiledProgram
from nki_sim.program.ir import Bools, Ints, Program
from nki_sim.timing.timeline import DEPENDENCE, Timeline

_ON_CHIP = frozenset({"sbuf", "psum"})


@dataclass(frozen=True, slots=True)
class ReusedTile:
    """A tile of source line `line` that later iterations of a loop overwrite, at line `written_at`.

    `waits` counts the instructions on the critical path that wait until its old contents are no longer
    needed. If `declared`, the kernel itself uses one tile for all iterations; else the compiler made it so.
    """

    name: str
    line: int
    written_at: int
    waits: int
    declared: bool


def reused_tensors(program: Program, waiters: Ints, blockers: Ints) -> Ints:
    """For each pair, the tensor that the first instruction waits to write; -1 if it waits for a result."""
    cells, count = program.cells, len(program.tensor_sites)
    pair, rows = _instruction_cells(program, waiters)
    keys = blockers[pair] * count + cells.tensor[rows]
    touched = cells.instruction * count + cells.tensor
    result = cells.reads[rows] & np.isin(keys, touched[cells.writes])
    place = cells.writes[rows] & np.isin(keys, touched)
    found = np.full(len(waiters), -1, dtype=np.int64)
    found[pair[place]] = cells.tensor[rows[place]]
    found[pair[result]] = -1
    return found


def _instruction_cells(program: Program, chosen: Ints) -> tuple[Ints, Ints]:
    """The cells of some instructions, and for each cell the position of its instruction."""
    first = program.cells.first
    counts = np.diff(first)[chosen]
    pair = np.repeat(np.arange(len(chosen)), counts)
    within = np.arange(len(pair)) - np.repeat(np.cumsum(counts) - counts, counts)
    return pair, first[chosen][pair] + within


def waits_for_place(program: Program, cause: Ints, blocker: Ints) -> Bools:
    """Which instructions wait only for a place and for no result."""
    found = np.zeros(len(program), dtype=bool)
    mine = np.flatnonzero((cause == DEPENDENCE) & (blocker >= 0))
    found[mine] = reused_tensors(program, mine, blocker[mine]) >= 0
    return found


def find_reused_tiles(compiled: CompiledProgram, traced: Program, timeline: Timeline) -> list[ReusedTile]:
    """Return on-chip tiles that make loop iterations wait on the critical path, most waits first.

    The waiting instruction stands before the one it waits for, or on the same line, so it belongs to a later
    iteration. For a transfer the wait before its issue counts, even if the DMA engines delay it further.
    """
    program, held = compiled.program, timeline.issued or timeline
    lines = program.lines
    pairs = [
        (number, int(held.blocker[number]))
        for number in {step.number for step in timeline.critical_path()}
        if held.cause[number] == DEPENDENCE and lines[number] <= lines[held.blocker[number]]
    ]
    if not pairs:
        return []
    waiters, blockers = np.array(pairs, dtype=np.int64).T
    tensors = reused_tensors(program, waiters, blockers)
    declared = reused_tensors(traced, compiled.sources[waiters], compiled.sources[blockers]) >= 0
    counted: Counter[tuple[int, int, bool]] = Counter()
    for waiter, tensor, own in zip(waiters.tolist(), tensors.tolist(), declared.tolist(), strict=True):
        if tensor >= 0 and program.site(tensor).buffer in _ON_CHIP:
            counted[int(program.tensor_sites[tensor]), int(program.lines[waiter]), own] += 1
    return [
        ReusedTile(program.sites[site].name, program.sites[site].line, line, waits, own)
        for (site, line, own), waits in sorted(counted.items(), key=lambda item: (-item[1], item[0]))
    ]
