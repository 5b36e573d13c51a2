"""Checks tiles that the kernel places itself: whether they fit, and reads after another tile overwrote them.

Kernels reuse memory by placing tiles over each other; reading a tile that another one has overwritten is a
mistake.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd

import numpy as np

from nki_sim.checks.violations import Violation
from nki_sim.dtypes import DTYPES
from nki_sim.flow import regions
from nki_sim.forms import Site
from nki_sim.operators.rules.shapes import start_step
from nki_sim.program.ir import Ints, Program
from nki_sim.targets import Target
from nki_sim.timing import memory
from nki_sim.timing.tile_placement import find_placed_tensors


def check(program: Program, target: Target) -> list[Violation]:
    """Return places out of bounds or unaligned, memories allocated in two ways, and reads of overwritten
    tiles.
    """
    if all(site.address is None for site in program.sites):
        return []
    numbers = np.unique(program.tensor_sites[np.unique(program.cells.tensor)]).tolist()
    found: list[Violation] = []
    for name in memory.MEMORIES:
        sites = [program.sites[number] for number in numbers if program.sites[number].buffer == name]
        found += _mixed_allocation(name, sites)
        found += [violation for site in sites for violation in _placement_bounds(site, target)]
    # The check of overwritten reads looks up writers by place, so places must be valid first.
    return found or list(_overwritten_reads(program, target))


def _mixed_allocation(name: str, sites: list[Site]) -> Iterator[Violation]:
    automatic = [site for site in sites if site.address is None]
    if automatic and len(automatic) < len(sites):
        site = automatic[0]
        yield Violation(
            "mixed_allocation",
            f"{site.name} leaves its place in {name.upper()} to the compiler, other tiles there say theirs",
            site.name, "all or none", f"{len(automatic)} of {len(sites)} without a place", site.line,
            f"place every {name.upper()} tile of the kernel, or none",
        )  # fmt: skip


def _placement_bounds(site: Site, target: Target) -> Iterator[Violation]:
    if site.address is None:
        return
    partition, byte = site.address
    size = target.sbuf_usable_bytes if site.buffer == "sbuf" else target.psum_banks * target.psum_bank_bytes
    ends = (
        ("partition", partition + site.shape[0], target.partitions),
        ("byte", byte + site.partition_bytes, size),
    )
    for what, value, limit in ends:
        if value > limit:
            yield Violation(
                "placement_bounds", f"{site.name} ends at {what} {value} of {site.buffer}, the limit is "
                f"{limit}", site.name, limit, value, site.line, "place it lower, or make it smaller",
            )  # fmt: skip
    align = DTYPES[site.dtype].itemsize if site.buffer == "sbuf" else target.psum_bank_bytes
    for what, value, step in (("partition", partition, start_step(site.shape[0])), ("byte", byte, align)):
        if value % step:
            yield Violation(
                "placement_alignment", f"{site.name} begins at {what} {value} of {site.buffer}, not at a "
                f"multiple of {step}", site.name, step, value, site.line,
                "PSUM tiles begin at a bank, all tiles at partition 0, 32, 64 or 96",
            )  # fmt: skip


# -- overwritten tiles -----------------------------------------------------------------------------


def _overwritten_reads(program: Program, target: Target) -> Iterator[Violation]:
    """Yield reads of elements that an overlapping tile has written since."""
    suspects = _overlapping_tensors(program)
    if not len(suspects):
        return
    seen: set[int] = set()
    for cell, other in _ByteOwners(program, suspects, target.partitions).reads_of_others():
        tensor = int(program.cells.tensor[cell])
        site = program.site(tensor)
        if int(program.tensor_sites[tensor]) in seen:
            continue
        seen.add(int(program.tensor_sites[tensor]))
        over = program.site(other)
        yield Violation(
            "overwritten_by_overlap",
            f"{site.name} at {site.address} is read after {over.name} at {over.address} was written over it",
            site.name, str(site.address), str(over.address),
            int(program.lines[program.cells.instruction[cell]]),
            f"place {over.name} elsewhere, or read {site.name} before {over.name} is written",
        )  # fmt: skip


def _overlapping_tensors(program: Program) -> Ints:
    """Placed tensors that overlap another one in place and in time."""
    tensors, places = find_placed_tensors(program)
    life = memory.tensor_lifetimes(program)
    found = []
    for memory_id in np.unique(places[:, 0]):
        mine = np.flatnonzero(places[:, 0] == memory_id)
        span = np.stack([life.first[tensors[mine]], life.last[tensors[mine]] + 1], axis=1)
        # Boxes have two axes, so compare time and partitions first, then bytes.
        near, _ = regions.find_overlaps(np.concatenate([span, places[mine, 3:]], axis=1))
        rows = places[mine, 1:3]
        for number, others in enumerate(near):
            close = np.array(others)
            apart = (rows[close, 0] >= rows[number, 1]) | (rows[close, 1] <= rows[number, 0])
            if np.count_nonzero(~apart) > 1:
                found.append(int(tensors[mine[number]]))
    return np.array(found, dtype=np.int64)


class _ByteOwners:
    """The tensor that wrote each byte last, in units that divide all addresses and elements."""

    def __init__(self, program: Program, tensors: Ints, partitions: int) -> None:
        self._program, self._partitions = program, partitions
        chosen = np.zeros(len(program.tensor_sites), dtype=bool)
        chosen[tensors] = True
        self._cells = np.flatnonzero(chosen[program.cells.tensor])
        sites = {program.site(int(tensor)) for tensor in tensors}
        widths = {program.operands[item].itemsize for item in program.cells.operand[self._cells].tolist()}
        self._unit = gcd(*widths, *(site.address[1] for site in sites if site.address is not None))
        ends = [site.address[1] + site.partition_bytes for site in sites if site.address is not None]
        self._row = -(-max(ends) // self._unit)
        self._owners: dict[int, Ints] = {}

    def reads_of_others(self) -> Iterator[tuple[int, int]]:
        """Yield (cell, tensor that owns an element of it)."""
        cells = self._program.cells
        # Within an instruction all reads come before the writes.
        order = np.lexsort((cells.writes[self._cells], cells.instruction[self._cells]))
        for cell in self._cells[order].tolist():
            item, tensor = self._program.operands[int(cells.operand[cell])], int(cells.tensor[cell])
            if item.index_step:
                continue
            view = self._owners_view(cell, tensor)
            if cells.reads[cell]:
                others = view[(view >= 0) & (view != tensor)]
                if len(others):
                    yield cell, int(others[0])
            if cells.writes[cell]:
                view[...] = tensor

    def _owners_view(self, cell: int, tensor: int) -> Ints:
        """The owners of the elements that a cell touches."""
        program, unit = self._program, self._unit
        site, item = program.site(tensor), program.operands[int(program.cells.operand[cell])]
        assert site.address is not None
        key = memory.MEMORIES.index(site.buffer) + len(memory.MEMORIES) * int(program.tensor_cores[tensor])
        owners = self._owners.get(key)
        if owners is None:
            owners = self._owners[key] = np.full(self._partitions * self._row, -1, dtype=np.int32)
        column = int(program.cells.offset[cell]) % item.row * item.itemsize
        start = (site.address[0] + item.start) * self._row + (site.address[1] + column) // unit
        size = item.itemsize // unit
        shape = (item.partitions, *(count for _, count in item.dims[1:]), size)
        steps = (self._row, *(step * size for step, _ in item.dims[1:]), 1)
        return np.ndarray(shape, owners.dtype, owners, start * 4, tuple(step * 4 for step in steps))
