"""Models renaming: a tile that gets new contents while its old ones are still needed takes another place.

Today's compiler gives each value of a tile an address of its own while there is room (address rotation), so
it does not matter whether a kernel declares the tile inside a loop or outside it: a matmul kernel whose one
PSUM tile is reset for each block reaches 79 % of the tensor engine's peak [M]. A tile's contents end where no
later access reads anything that was written before. Accesses are compared as boxes.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from nki_sim.compiler.program_draft import ProgramDraft
from nki_sim.flow.regions import Box, access_boxes, fills_box, find_overlaps
from nki_sim.program.ir import Bools, Ints, Program

_Overlaps = tuple[list[list[int]], list[list[int]]]


def rename_values(draft: ProgramDraft) -> None:
    """Give each value of a tile in SBUF or PSUM a tensor of its own, unless the kernel places the tile."""
    program = draft.program
    cells = program.cells
    tensors = cells.tensor.copy()
    known: dict[tuple[Box, ...], _Overlaps] = {}
    for tensor, chosen in _rewritten_tensors(program, draft.tensors_in_memory("sbuf", "psum", placed=False)):
        cuts = _find_cuts(program, chosen, known)
        for first, last in pairwise([*cuts, len(chosen)]):
            tensors[chosen[first:last]] = draft.add_tensor_like(tensor)
    draft.replace_operands(tensors, cells.offset)


def _rewritten_tensors(program: Program, wanted: Bools) -> Iterator[tuple[int, Ints]]:
    """The wanted tensors that are written after they were read, each with its cells in program order."""
    cells = program.cells
    count = len(program.tensor_sites)
    first_read = np.full(count, len(program), dtype=np.int64)
    np.minimum.at(first_read, cells.tensor[cells.reads], cells.instruction[cells.reads])
    last_write = np.full(count, -1, dtype=np.int64)
    np.maximum.at(last_write, cells.tensor[cells.writes], cells.instruction[cells.writes])
    rewritten = wanted & (last_write > first_read)
    mine = np.flatnonzero(rewritten[cells.tensor])
    # An instruction reads before it writes.
    order = mine[np.lexsort((~cells.reads[mine], cells.instruction[mine], cells.tensor[mine]))]
    bounds = np.flatnonzero(np.diff(cells.tensor[order], prepend=-1)).tolist()
    for first, last in pairwise([*bounds, len(order)]):
        yield int(cells.tensor[order[first]]), order[first:last]


def _find_cuts(program: Program, chosen: Ints, known: dict[tuple[Box, ...], _Overlaps]) -> list[int]:
    """The accesses of a tensor with which new contents begin, without the first."""
    cells = program.cells
    boxes = access_boxes(program, chosen)
    full = fills_box(program, chosen, boxes).tolist()
    regions: dict[Box, int] = {}
    region = [regions.setdefault(tuple(box), len(regions)) for box in boxes.tolist()]
    key = tuple(regions)
    if key not in known:
        known[key] = find_overlaps(np.array(key, dtype=np.int64))
    near, inside = known[key]
    instruction = cells.instruction[chosen].tolist()
    writes, reads = cells.writes[chosen].tolist(), cells.reads[chosen].tolist()
    writer = [-1] * len(regions)
    # By access, the oldest instruction whose result it may read.
    oldest = instruction.copy()
    for place, at in enumerate(region):
        if reads[place]:
            sources = (writer[one] for one in near[at] if writer[one] >= 0)
            oldest[place] = min(sources, default=instruction[place])
        if writes[place]:
            if full[place]:
                for one in inside[at]:
                    writer[one] = -1
            writer[at] = instruction[place]
    needed = np.minimum.accumulate(np.array(oldest)[::-1])[::-1].tolist()
    return [
        place
        for place in range(1, len(chosen))
        if instruction[place] != instruction[place - 1] and needed[place] >= instruction[place]
    ]
