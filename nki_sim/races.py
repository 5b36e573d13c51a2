"""Two cores of a launch that touch the same element of HBM, one writing, without having met in between.

Cores meet at `core_barrier` and `sendrecv`. Between two meetings nothing orders them.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from nki_sim.conflicts import READ, WRITE, Accesses, Clash, clashes
from nki_sim.forms import HBM_BUFFERS
from nki_sim.ir import MEETINGS, Ints, Program
from nki_sim.violations import Violation


def check(program: Program) -> Iterator[Violation]:
    """At most one violation per declaration."""
    if not program.cores.any():
        return
    cells = program.cells
    shared = np.array([site.buffer in HBM_BUFFERS for site in program.sites], dtype=bool)
    fixed = np.array([item.index_step == 0 for item in program.operands], dtype=bool)
    chosen = np.flatnonzero(shared[program.tensor_sites[cells.tensor]] & fixed[cells.operand])
    numbers = cells.instruction[chosen]
    kinds = np.where(cells.writes[chosen] & ~cells.reads[chosen], WRITE, READ)
    accesses = Accesses(chosen, program.cores[numbers], _epochs(program)[numbers], kinds)
    for clash in clashes(program, accesses, set()):
        yield _violation(program, clash)


def _epochs(program: Program) -> Ints:
    """How often the core of each instruction has met the other one before it."""
    meets = np.array([form.op in MEETINGS for form in program.forms], dtype=bool)[program.form_ids]
    found = np.zeros(len(program), dtype=np.int64)
    for core in np.unique(program.cores).tolist():
        mine = program.cores == core
        found[mine] = np.cumsum(meets[mine])
    return found


def _violation(program: Program, clash: Clash) -> Violation:
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
