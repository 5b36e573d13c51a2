"""Models renaming: a tile that gets new contents while its old ones are still needed takes another place.

Today's compiler gives each value of a tile an address of its own while there is room (address rotation), so
it does not matter whether a kernel declares the tile inside a loop or outside it: a matmul kernel whose one
PSUM tile is reset for each block reaches 79 % of the tensor engine's peak [M]. A tile's contents end where no
later access reads anything that was written before. Accesses are compared as boxes.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from nki_sim.compiler.program_draft import ProgramDraft
from nki_sim.flow.regions import Box, access_boxes, fills_box, find_overlaps
from nki_sim.program.ir import Bools, Ints, Program
from nki_sim.targets import Target

_Overlaps = tuple[list[list[int]], list[list[int]]]

_Access = tuple[int, Box, bool, bool, bool]
"""The instruction, the box, whether the access fills it, whether it writes, whether it reads."""


def rename_values(draft: ProgramDraft) -> None:
    """Give each value of a tile in SBUF or PSUM a tensor of its own, unless the kernel places the tile."""
    program = draft.program
    cells = program.cells
    order = _rewritten_cells(program, draft.tensors_in_memory("sbuf", "psum", placed=False))
    if not len(order):
        return
    boxes = access_boxes(program, order)
    full = fills_box(program, order, boxes).tolist()
    accesses = list(
        zip(
            cells.instruction[order].tolist(), map(tuple, boxes.tolist()), full,
            cells.writes[order].tolist(), cells.reads[order].tolist(), strict=True,
        )
    )  # fmt: skip
    tensors = cells.tensor.copy()
    known: dict[tuple[Box, ...], _Overlaps] = {}
    bounds = np.flatnonzero(np.diff(tensors[order], prepend=-1)).tolist()
    for first, last in pairwise([*bounds, len(order)]):
        cuts = [first + cut for cut in _find_cuts(accesses[first:last], known)]
        for begin, end in pairwise([*cuts, last]):
            tensors[order[begin:end]] = draft.add_tensor_like(int(tensors[order[first]]))
    if len(draft.tensor_sites) > len(program.tensor_sites):
        draft.replace_operands(tensors, cells.offset)


def rotates_addresses(program: Program, target: Target) -> bool:
    """Whether the compiler renames: as the kernel says, else as the target's compiler does by default."""
    chosen = program.address_rotation
    return (target.address_rotation if chosen is None else chosen) and not program.loops


def rename_program(program: Program, target: Target) -> Program:
    """The program with a tensor for each value of a tile, where the target's compiler renames."""
    draft = ProgramDraft(program)
    if rotates_addresses(program, target):
        rename_values(draft)
    return draft.build_program().program if draft.is_changed else program


def _rewritten_cells(program: Program, wanted: Bools) -> Ints:
    """The cells of the wanted tensors that are written after a read, by tensor and in program order."""
    cells = program.cells
    count = len(program.tensor_sites)
    first_read = np.full(count, len(program), dtype=np.int64)
    read = np.flatnonzero(cells.reads)[::-1]
    first_read[cells.tensor[read]] = cells.instruction[read]
    last_write = np.full(count, -1, dtype=np.int64)
    last_write[cells.tensor[cells.writes]] = cells.instruction[cells.writes]
    rewritten = wanted & (last_write > first_read)
    mine = np.flatnonzero(rewritten[cells.tensor])
    # An instruction reads before it writes.
    return mine[np.lexsort((~cells.reads[mine], cells.instruction[mine], cells.tensor[mine]))]


def _find_cuts(accesses: list[_Access], known: dict[tuple[Box, ...], _Overlaps]) -> list[int]:
    """The accesses of a tensor with which new contents begin, without the first."""
    regions: dict[Box, int] = {}
    region = [regions.setdefault(box, len(regions)) for _, box, _, _, _ in accesses]
    key = tuple(regions)
    if key not in known:
        known[key] = find_overlaps(np.array(key, dtype=np.int64))
    near, inside = known[key]
    writer = [-1] * len(regions)
    # By access, the oldest instruction whose result it may read.
    oldest = []
    for at, (instruction, _, is_full, writes, reads) in zip(region, accesses, strict=True):
        found = instruction
        if reads:
            found = min((writer[one] for one in near[at] if writer[one] >= 0), default=instruction)
        oldest.append(found)
        if writes:
            if is_full:
                for one in inside[at]:
                    writer[one] = -1
            writer[at] = instruction
    cuts = []
    needed = accesses[-1][0]
    for place in range(len(accesses) - 1, 0, -1):
        needed = min(needed, oldest[place])
        instruction = accesses[place][0]
        if needed >= instruction != accesses[place - 1][0]:
            cuts.append(place)
    return cuts[::-1]
