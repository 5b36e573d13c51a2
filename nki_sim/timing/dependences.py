"""Which instruction must wait for which: RAW, WAR and WAW between boxes of elements.

A box encloses an access pattern in its tensor's storage (`flow/regions.py`), or in memory if the kernel
places the tile itself. Two accesses conflict if their boxes overlap and one of them writes. Tensors that
nothing writes conflict with nothing. Loops whose bounds depend on data act as walls: nothing moves into them,
out of them or past them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from weakref import WeakKeyDictionary

import numpy as np

from nki_sim.errors import LimitError
from nki_sim.flow.regions import Box, access_boxes, find_overlaps
from nki_sim.program.ir import LOOP_MARKS, MAX_CORES, Program
from nki_sim.timing.tile_placement import overlap_spaces, shift_to_places

_Overlaps = tuple[list[list[int]], list[list[int]]]

_RegionAccess = tuple[Box, int, bool, bool]
"""The region, the instruction, whether it writes, whether it reads."""

MAX_WAITS = 1 << 24
"""Limit on pairs of instructions that wait for each other because of one tensor."""

MAX_STEPS = 1 << 27
"""Limit on regions of one tensor that all its accesses visit together."""


@dataclass(frozen=True, eq=False)
class Dependences:
    """`predecessors[i]` are the instructions that i waits for, each once, all before i.

    `entries[t]` are the instructions that touch tensor t and do not wait for another one that does. Tensors
    that nothing writes are left out. Of placed tensors that overlap, only one is listed.
    """

    predecessors: list[list[int]]
    entries: dict[int, list[int]]

    @cached_property
    def followers(self) -> list[list[int]]:
        """For each instruction, the instructions that wait for it."""
        found: list[list[int]] = [[] for _ in self.predecessors]
        for number, items in enumerate(self.predecessors):
            for item in items:
                found[item].append(number)
        return found


_DEPENDENCES_CACHE: WeakKeyDictionary[Program, Dependences] = WeakKeyDictionary()


def find_dependences(program: Program) -> Dependences:
    """Return all conflicts of a program, except those implied by others on the same region.

    The result is cached for the program's lifetime, because schedules for many targets share it.
    """
    found = _DEPENDENCES_CACHE.get(program)
    if found is None:
        found = _DEPENDENCES_CACHE[program] = _compute_dependences(program)
    return found


def _compute_dependences(program: Program) -> Dependences:
    found: list[set[int]] = [set() for _ in range(len(program))]
    if not found:
        return Dependences([], {})
    cells = program.cells
    space = overlap_spaces(program)[cells.tensor]
    written = np.zeros(len(program.tensor_sites), dtype=bool)
    written[space[cells.writes]] = True
    chosen = np.flatnonzero(written[space])
    order = chosen[np.argsort(space[chosen], kind="stable")]
    found_boxes = access_boxes(program, order)
    shift_to_places(program, order, found_boxes)
    columns = (cells.instruction[order], cells.writes[order], cells.reads[order])
    accesses = list(
        zip(map(tuple, found_boxes.tolist()), *(column.tolist() for column in columns), strict=True)
    )
    bounds = np.flatnonzero(np.diff(space[order], prepend=-1)).tolist()
    owners, entries = space[order].tolist(), {}
    known: dict[tuple[Box, ...], _Overlaps] = {}
    for first, last in zip(bounds, [*bounds[1:], len(order)], strict=True):
        entries[owners[first]] = _sweep_tensor(found, accesses[first:last], known)
    if program.dialect == "neuronxcc":
        _separate_stages(program, found)
    _wall_off_loops(program, found)
    return Dependences([sorted(items) for items in found], entries)


def _separate_stages(program: Program, found: list[set[int]]) -> None:
    """Let loads of a tensor that the kernel wrote wait for all stores before the load's first execution.

    The legacy compiler orders loops that hand data on through HBM as a whole: attention whose stages do so
    takes a third longer than if each tile were passed on alone [I].
    """
    cells = program.cells
    in_hbm = np.array([site.buffer.endswith("hbm") for site in program.sites], dtype=bool)
    rows = np.flatnonzero(in_hbm[program.tensor_sites[cells.tensor]])
    stored: dict[int, int] = {}
    before: dict[tuple[int, int], int] = {}
    columns = (cells.instruction[rows], cells.tensor[rows], cells.writes[rows])
    for number, tensor, write in zip(*(column.tolist() for column in columns), strict=True):
        if write:
            stored[tensor] = number
        elif tensor in stored:
            last = before.setdefault((tensor, int(program.lines[number])), stored[tensor])
            found[number].add(last)


def _wall_off_loops(program: Program, found: list[set[int]]) -> None:
    """Make walls wait for everything issued before them, and everything issued after them wait for them.

    Loop markers are walls of the cores that run the loop, barriers are walls of all cores.
    """
    walls = np.array(
        [form.op in LOOP_MARKS or form.op == "core_barrier" for form in program.forms], dtype=bool
    )
    if not walls.any():
        return
    is_wall, all_cores = walls[program.form_ids].tolist(), range(MAX_CORES)
    pairs = {
        number
        for number in program.loop_partners
        if len(program.forms[program.form_ids[number]].operands) > 1
    }
    # Per core and other core: instructions the other one issued that no wall of this core waits for yet.
    since: list[list[list[int]]] = [[[] for _ in all_cores] for _ in all_cores]
    last = [-1 for _ in all_cores]
    for number, core in enumerate(program.cores.tolist()):
        if is_wall[number]:
            own = number in program.loop_partners and number not in pairs
            seen = (core,) if own else all_cores
            for builder in all_cores if number in pairs else (core,):
                if last[builder] >= 0:
                    found[number].add(last[builder])
                for other in seen:
                    found[number].update(since[builder][other])
                    since[builder][other] = []
                last[builder] = number
        elif last[core] >= 0:
            found[number].add(last[core])
        for pending in since:
            pending[core].append(number)


def _sweep_tensor(
    found: list[set[int]], accesses: list[_RegionAccess], known: dict[tuple[Box, ...], _Overlaps]
) -> list[int]:
    """Add the conflicts within one tensor; return the accesses without earlier conflicts.

    `accesses` are in program order. `known` caches overlaps of regions: tensors of one site have the same
    regions.
    """
    only = accesses[0][0]
    if all(access[0] == only for access in accesses):
        return _sweep_region(found, accesses)
    regions: dict[Box, int] = {}
    region = [regions.setdefault(access[0], len(regions)) for access in accesses]
    near, inside = _cached_overlaps(tuple(regions), known)
    if sum(len(near[at]) for at in region) > MAX_STEPS:
        raise _limit_error(f"regions of a tensor are looked at more than {MAX_STEPS} times")
    writer = [-1] * len(regions)
    readers: list[list[int]] = [[] for _ in regions]
    # How many readers need no wait: everything waits for them already, or all writers of a region do.
    settled = [0] * len(regions)
    waited: list[dict[int, int]] = [{} for _ in regions]
    entries: list[int] = []
    total = 0
    for at, (_, number, write, read) in zip(region, accesses, strict=True):
        waits, entry = found[number], True
        for other in near[at]:
            if writer[other] >= 0:
                waits.add(writer[other])
                entry = False
            if write and readers[other]:
                waits.update(readers[other][max(settled[other], waited[at].get(other, 0)) :])
                waited[at][other] = len(readers[other])
                entry = False
        if write:
            for other in inside[at]:
                writer[other] = -1
                settled[other] = len(readers[other])
            writer[at] = number
        elif read:
            readers[at].append(number)
        if entry:
            entries.append(number)
        waits.discard(number)
        total += len(waits)
        if total > MAX_WAITS:
            raise _limit_error(f"instructions wait for each other in more than {MAX_WAITS} pairs")
    return entries


def _sweep_region(found: list[set[int]], accesses: list[_RegionAccess]) -> list[int]:
    """The same for a tensor that all its accesses touch in one region."""
    writer, total = -1, 0
    readers: list[int] = []
    entries: list[int] = []
    for _, number, write, read in accesses:
        waits = found[number]
        if writer >= 0:
            waits.add(writer)
        elif not (write and readers):
            entries.append(number)
        if write:
            waits.update(readers)
            writer, readers = number, []
        elif read:
            readers.append(number)
        waits.discard(number)
        total += len(waits)
        if total > MAX_WAITS:
            raise _limit_error(f"instructions wait for each other in more than {MAX_WAITS} pairs")
    return entries


def _limit_error(message: str) -> LimitError:
    return LimitError("limit_work", message, hint="access tensors in tiles that are the same each time")


def _cached_overlaps(regions: tuple[Box, ...], known: dict[tuple[Box, ...], _Overlaps]) -> _Overlaps:
    found = known.get(regions)
    if found is None:
        found = known[regions] = find_overlaps(np.array(regions, dtype=np.int64))
    return found
