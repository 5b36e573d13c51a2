"""Where the tiles lie that the kernel places itself, and which of them overlap.

A placement is a box of partitions and bytes in each partition of SBUF or PSUM. Tiles whose boxes overlap form
one *space*: their accesses conflict wherever they touch the same bytes, whatever tile they use.
"""

from __future__ import annotations

import numpy as np

from nki_sim.dtypes import DTYPES
from nki_sim.flow import regions
from nki_sim.forms import Site
from nki_sim.program.ir import Ints, Program
from nki_sim.timing import memory


def overlap_spaces(program: Program) -> Ints:
    """For each tensor, a number that overlapping placed tensors share; all others have their own number."""
    found = np.arange(len(program.tensor_sites))
    tensors, places = find_placed_tensors(program)
    if not len(tensors):
        return found
    unique, which = np.unique(places, axis=0, return_inverse=True)
    which = which.reshape(-1)
    group = np.full(len(unique), -1, dtype=np.int64)
    for memory_id in np.unique(unique[:, 0]):
        mine = np.flatnonzero(unique[:, 0] == memory_id)
        near, _ = regions.find_overlaps(unique[mine, 1:])
        _connect_boxes(near, mine, group)
    leaders = np.full(len(unique), len(found), dtype=np.int64)
    np.minimum.at(leaders, group[which], tensors)
    found[tensors] = leaders[group[which]]
    return found


def _connect_boxes(near: list[list[int]], numbers: Ints, group: Ints) -> None:
    """Give boxes that overlap, directly or through others, the same number."""
    for start in range(len(near)):
        waiting = [start] if group[numbers[start]] < 0 else []
        while waiting:
            box = waiting.pop()
            if group[numbers[box]] < 0:
                group[numbers[box]] = numbers[start]
                waiting.extend(near[box])


def find_placed_tensors(program: Program) -> tuple[Ints, Ints]:
    """Placed tensors in use, and their boxes: (memory of a core, partition, end, byte, end)."""
    boxes = np.array([_site_place(site) for site in program.sites], dtype=np.int64).reshape(-1, 5)
    tensors = np.unique(program.cells.tensor)
    tensors = tensors[boxes[program.tensor_sites[tensors], 0] >= 0]
    places = boxes[program.tensor_sites[tensors]]
    places[:, 0] += len(memory.MEMORIES) * program.tensor_cores[tensors]
    return tensors, places


def _site_place(site: Site) -> tuple[int, int, int, int, int]:
    if site.address is None or site.buffer not in memory.MEMORIES:
        return -1, 0, 0, 0, 0
    partition, byte = site.address
    end = byte + site.partition_bytes
    return memory.MEMORIES.index(site.buffer), partition, partition + site.shape[0], byte, end


def shift_to_places(program: Program, order: Ints, boxes: Ints) -> None:
    """Shift the boxes of placed tensors to their partitions and bytes, in place."""
    if all(site.address is None for site in program.sites):
        return
    sites = program.tensor_sites[program.cells.tensor[order]]
    address = np.array([site.address or (0, 0) for site in program.sites], dtype=np.int64)[sites]
    widths = np.array(
        [1 if site.address is None else DTYPES[site.dtype].itemsize for site in program.sites], dtype=np.int64
    )[sites]
    boxes[:, :2] += address[:, :1]
    boxes[:, 2:] = boxes[:, 2:] * widths[:, None] + address[:, 1:]
