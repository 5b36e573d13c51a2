"""Which instruction must wait for which: RAW, WAR and WAW at the granularity of boxes of elements.

An access pattern is enclosed in a box of its tensor's storage (`regions`), or of the memory where the kernel
places its tiles itself. Two accesses conflict when their
boxes overlap and one of them writes. Tensors that nobody writes conflict with nothing. Loops whose bounds
depend on data are walled off: nothing moves into them, out of them or past them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nki_sim.errors import LimitError
from nki_sim.flow.regions import Box, boxes, neighbours
from nki_sim.program.ir import LOOP_MARKS, MAX_CORES, Program
from nki_sim.timing.places import shift, spaces

_ALONE = ([[0]], [[0]])

MAX_WAITS = 1 << 24
"""Pairs of instructions of which one waits for the other because of one tensor."""


@dataclass(frozen=True, eq=False)
class Dependences:
    """`predecessors[i]` are the instructions that i waits for, each once, all before i."""

    predecessors: list[list[int]]


def dependences(program: Program) -> Dependences:
    """All conflicts of a program, except those that follow from others on the same region."""
    found: list[set[int]] = [set() for _ in range(len(program))]
    if not found:
        return Dependences([])
    cells = program.cells
    space = spaces(program)[cells.tensor]
    written = np.zeros(len(program.tensor_sites), dtype=bool)
    written[space[cells.writes]] = True
    chosen = np.flatnonzero(written[space])
    order = chosen[np.argsort(space[chosen], kind="stable")]
    found_boxes = boxes(program, order)
    shift(program, order, found_boxes)
    areas = [tuple(box) for box in found_boxes.tolist()]
    bounds = np.flatnonzero(np.diff(space[order], prepend=-1)).tolist()
    numbers = cells.instruction[order].tolist()
    writes, reads = cells.writes[order].tolist(), cells.reads[order].tolist()
    for first, last in zip(bounds, [*bounds[1:], len(order)], strict=True):
        part = slice(first, last)
        _sweep(found, areas[part], numbers[part], writes[part], reads[part])
    _fence(program, found)
    return Dependences([sorted(items) for items in found])


def _fence(program: Program, found: list[set[int]]) -> None:
    """Walls wait for all that was issued before, and all that is issued behind them waits for them.

    Loop markers are walls of the cores that run the loop, barriers of all cores.
    """
    walls = np.array(
        [form.op in LOOP_MARKS or form.op == "core_barrier" for form in program.forms], dtype=bool
    )
    if not walls.any():
        return
    is_wall, all_cores = walls[program.form_ids].tolist(), range(MAX_CORES)
    pairs = {
        number for number in program.partners if len(program.forms[program.form_ids[number]].operands) > 1
    }
    since: list[list[int]] = [[] for _ in all_cores]
    last: list[set[int]] = [set() for _ in all_cores]
    for number, core in enumerate(program.cores.tolist()):
        if is_wall[number]:
            own = number in program.partners and number not in pairs
            for other in (core,) if own else all_cores:
                found[number].update(since[other])
            for other in all_cores if number in pairs else (core,):
                since[other], last[other] = [number], {number}
        else:
            found[number].update(last[core])
            since[core].append(number)


def _sweep(
    found: list[set[int]], areas: list[Box], numbers: list[int], writes: list[bool], reads: list[bool]
) -> None:
    """Conflicts within one tensor, its accesses in program order."""
    regions: dict[Box, int] = {}
    region = [regions.setdefault(box, len(regions)) for box in areas]
    near, inside = _ALONE if len(regions) == 1 else neighbours(np.array(list(regions), dtype=np.int64))
    writer = [-1] * len(regions)
    readers: list[list[int]] = [[] for _ in regions]
    # How many of them nobody need wait for: all do already, or all writers of a region do.
    settled = [0] * len(regions)
    waited: list[dict[int, int]] = [{} for _ in regions]
    total = 0
    for at, number, write, read in zip(region, numbers, writes, reads, strict=True):
        waits = found[number]
        for other in near[at]:
            if writer[other] >= 0:
                waits.add(writer[other])
            if write:
                waits.update(readers[other][max(settled[other], waited[at].get(other, 0)) :])
                waited[at][other] = len(readers[other])
        if write:
            for other in inside[at]:
                writer[other] = -1
                settled[other] = len(readers[other])
            writer[at] = number
        elif read:
            readers[at].append(number)
        waits.discard(number)
        total += len(waits)
        if total > MAX_WAITS:
            raise LimitError(
                "limit_work", f"instructions wait for each other in more than {MAX_WAITS} pairs",
                hint="access tensors in tiles that are the same each time",
            )  # fmt: skip
