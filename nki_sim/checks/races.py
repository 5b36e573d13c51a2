"""Finds races: two cores touch the same HBM element, one writes, and they have not synchronised in between.

Cores synchronise at `core_barrier` and `sendrecv`; between two such points nothing orders them. A kernel that
does not divide its work lets both cores store the same result. The run compares such writes of one line
(`find_twin_writes`): their order matters only if the values differ.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from nki_sim.checks.conflicts import READ, WRITE, AccessConflict, PartyAccesses, find_conflicts
from nki_sim.checks.violations import Violation
from nki_sim.forms import HBM_BUFFERS
from nki_sim.program.ir import SYNC_OPERATORS, Bools, Ints, Program


def check(program: Program) -> Iterator[Violation]:
    """Yield at most one violation per declaration."""
    if not program.cores.any():
        return
    cells = program.cells
    chosen = np.setdiff1d(np.flatnonzero(_shared_cells(program)), find_twin_writes(program))
    seen: set[int] = set()
    for begin, end, scopes in _unordered_stretches(program):
        part = chosen[(cells.instruction[chosen] >= begin) & (cells.instruction[chosen] < end)]
        numbers = cells.instruction[part]
        kinds = np.where(cells.writes[part] & ~cells.reads[part], WRITE, READ)
        accesses = PartyAccesses(part, program.cores[numbers], scopes[numbers], kinds)
        for clash in find_conflicts(program, accesses, seen):
            yield _race_violation(program, clash)


def find_twin_writes(program: Program) -> Ints:
    """Pairs [n, 2] of cells in program order: writes of one line to one place, one on each core.

    Data-dependent loops contain none, because it is unknown how often a line is executed.
    """
    cells = program.cells
    if not program.cores.any():
        return np.zeros((0, 2), dtype=np.int64)
    chosen = np.flatnonzero(cells.writes & ~cells.reads & _shared_cells(program))
    looping = np.zeros(len(program), dtype=bool)
    for begin, end in program.loops:
        looping[begin : end + 1] = True
    chosen = chosen[~looping[cells.instruction[chosen]]]
    numbers = cells.instruction[chosen]
    cores = program.cores[numbers]
    keys = (cells.tensor, cells.offset, cells.operand)
    table = np.stack(
        [*(key[chosen] for key in keys), program.lines[numbers], _meeting_epochs(program)[numbers]], axis=1
    )
    order = np.lexsort((numbers, *table.T))
    table, cores, chosen = table[order], cores[order], chosen[order]
    same = np.concatenate([[False], np.all(table[1:] == table[:-1], axis=1), [False]])
    # Only pairs of one write per core: a core that writes there again may write another value each time.
    first = np.flatnonzero(same[1:-1] & ~same[:-2] & ~same[2:] & (cores[1:] != cores[:-1]))
    return np.stack([chosen[first], chosen[first + 1]], axis=1)


def _shared_cells(program: Program) -> Bools:
    """Cells in memory that both cores see, at addresses that do not depend on data."""
    cells = program.cells
    hbm = np.array([site.buffer in HBM_BUFFERS for site in program.sites], dtype=bool)
    fixed = np.array([item.index_step == 0 for item in program.operands], dtype=bool)
    found: Bools = hbm[program.tensor_sites[cells.tensor]] & fixed[cells.operand]
    return found


def find_agreeing_writes(program: Program) -> dict[int, tuple[int, int]]:
    """Map each instruction with a twin to the cell that it writes and the twin's number."""
    pairs = find_twin_writes(program)
    numbers = program.cells.instruction[pairs].tolist()
    return {
        mine: (cell, other)
        for cells, pair in zip(pairs.tolist(), numbers, strict=True)
        for cell, mine, other in zip(cells, pair, reversed(pair), strict=True)
    }


def _unordered_stretches(program: Program) -> Iterator[tuple[int, int, Ints]]:
    """First instruction, end and scopes of the program and of each loop in which cores synchronise.

    What follows the last meeting of an iteration is unordered with what precedes the first meeting of the
    next.
    """
    epochs = _meeting_epochs(program)
    yield 0, len(program), epochs
    for begin, end in program.loops:
        inside = epochs[begin : end + 1]
        if inside.min() < inside.max():
            yield begin, end, np.where(epochs == inside.max(), inside.min(), epochs)


def _meeting_epochs(program: Program) -> Ints:
    """How often each instruction's core has synchronised with the other one before it."""
    meets = np.array([form.op in SYNC_OPERATORS for form in program.forms], dtype=bool)[program.form_ids]
    found = np.zeros(len(program), dtype=np.int64)
    for core in np.unique(program.cores).tolist():
        mine = program.cores == core
        found[mine] = np.cumsum(meets[mine])
    return found


def _race_violation(program: Program, clash: AccessConflict) -> Violation:
    cells = program.cells
    name = program.site(int(cells.tensor[clash.cell])).name
    writes = bool(cells.writes[clash.cell])
    return Violation(
        "write_write_race" if writes else "read_write_race",
        f"core {clash.party} {'writes' if writes else 'reads'} elements of {name} that core {clash.other} "
        "writes, and nothing says which comes first", name, "one core, or a barrier in between",
        f"cores {clash.party} and {clash.other}", int(program.lines[cells.instruction[clash.cell]]),
        "put nisa.core_barrier between the two, or give each core its own part",
    )  # fmt: skip
