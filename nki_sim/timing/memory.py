"""Allocates on-chip memory to tiles in program order, and tracks how much is in use.

SBUF is counted in bytes per partition, PSUM in banks. A tile lives from its first access to its last. In SBUF
a tile is a rectangle of partitions and bytes, so tiles of few partitions can lie above one another.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush

import numpy as np

from nki_sim.flow.chip_memory import MEMORIES, memory_capacity, tile_footprint
from nki_sim.program.ir import Ints, Program
from nki_sim.targets import Target

__all__ = [
    "MEMORIES",
    "Lifetimes",
    "MemoryPool",
    "MemoryPools",
    "PooledTile",
    "ReplayedPool",
    "build_pools",
    "memory_capacity",
    "tensor_lifetimes",
    "tile_footprint",
]


@dataclass(frozen=True, eq=False)
class Lifetimes:
    """First and last instruction of each tensor; -1 for tensors that nothing touches."""

    first: Ints
    last: Ints


def tensor_lifetimes(program: Program) -> Lifetimes:
    """Lifetimes of all tensors in program order."""
    cells = program.cells
    last = np.full(len(program.tensor_sites), -1, dtype=np.int64)
    np.maximum.at(last, cells.tensor, cells.instruction)
    first = np.full(len(program.tensor_sites), len(program), dtype=np.int64)
    np.minimum.at(first, cells.tensor, cells.instruction)
    return Lifetimes(np.where(last < 0, -1, first), last)


@dataclass(slots=True, eq=False)
class PooledTile:
    """A tile that waits for or holds memory of a pool.

    `entries` are those accesses of the tile that can run first.
    """

    size: int
    pool: MemoryPool
    first: int
    entries: list[int]
    accesses: int = 0
    end_ns: float = 0.0
    last: int = -1
    number: int = -1

    def end_access(self, end_ns: float, number: int) -> bool:
        """Count an access as done; true if it was the last."""
        self.accesses -= 1
        if end_ns > self.end_ns:
            self.end_ns, self.last = end_ns, number
        return self.accesses == 0


@dataclass(slots=True, eq=False)
class MemoryPool:
    """One memory of one core; its tiles get room in program order."""

    free: int
    waiting: list[PooledTile] = field(default_factory=list)
    next: int = 0

    def admit_waiting(self) -> Iterator[PooledTile]:
        """Give room to the next tiles while there is room."""
        while self.next < len(self.waiting) and self.waiting[self.next].size <= self.free:
            yield self.force_next()

    def force_next(self) -> PooledTile:
        """Give room to the next tile even if there is none."""
        tile = self.waiting[self.next]
        self.free -= tile.size
        self.next += 1
        return tile

    @property
    def has_waiting(self) -> bool:
        """Whether a tile waits for room."""
        return self.next < len(self.waiting)


@dataclass(slots=True, eq=False)
class ReplayedPool:
    """The room of a pool in a replayed order, by when it came free and after which instruction.

    Tiles take the room that came free first. At every moment it grants as much as the pool does, and an
    earlier release never makes a grant later.
    """

    pool: MemoryPool
    freed: list[tuple[float, int, int]] = field(default_factory=list)
    granted: dict[int, tuple[float, int]] = field(default_factory=dict)
    latest: tuple[float, int] = (0.0, -1)

    def __post_init__(self) -> None:
        self.freed.append((0.0, -1, self.pool.free))

    def release_tile(self, tile: PooledTile) -> None:
        """Return a tile's room after its last access."""
        heappush(self.freed, (tile.end_ns, tile.last, tile.size))

    def grant_room(self, tile: PooledTile) -> tuple[float, int]:
        """When the tile gets room, and whose end made it; earlier tiles in program order get theirs first.

        If the program was given more memory than exists, tiles may take room that nothing has released yet.
        """
        while tile.number not in self.granted:
            taken = self.pool.force_next()
            self._take_room(taken.size)
            self.granted[taken.number] = self.latest
        return self.granted[tile.number]

    def _take_room(self, size: int) -> None:
        while size > 0 and self.freed:
            end_ns, source, room = heappop(self.freed)
            self.latest = max(self.latest, (end_ns, source))
            size -= room
            if size < 0:
                heappush(self.freed, (end_ns, source, -size))


@dataclass(frozen=True, slots=True, eq=False)
class MemoryPools:
    """The memories of a launch: their pools, the tiles that each instruction touches, and all tiles."""

    pools: list[MemoryPool]
    touched: list[list[PooledTile]]
    tiles: list[PooledTile]


def build_pools(program: Program, target: Target, entries: dict[int, list[int]]) -> MemoryPools:
    """Build pools with all tiles that the compiler places; `entries` come from the dependences."""
    cores = program.tensor_cores.tolist()
    pools = {
        (memory, core): MemoryPool(memory_capacity(memory, target))
        for core in sorted(set(cores))
        for memory in MEMORIES
    }
    first = tensor_lifetimes(program).first.tolist()
    sizes = [tile_footprint(site, target) if site.buffer in MEMORIES else 0 for site in program.sites]
    tiles: dict[int, PooledTile] = {}
    for tensor, number in enumerate(program.tensor_sites.tolist()):
        site = program.sites[number]
        if site.buffer in MEMORIES and site.address is None and first[tensor] >= 0:
            pool = pools[site.buffer, cores[tensor]]
            tiles[tensor] = PooledTile(
                sizes[number], pool, first[tensor], entries.get(tensor, []), number=tensor
            )
            pool.waiting.append(tiles[tensor])
    for pool in pools.values():
        pool.waiting.sort(key=lambda tile: tile.first)
    return MemoryPools(list(pools.values()), _tiles_by_instruction(program, tiles), list(tiles.values()))


def _tiles_by_instruction(program: Program, tiles: dict[int, PooledTile]) -> list[list[PooledTile]]:
    """The tiles of each instruction, one per operand; tiles that nothing writes may be read in any order."""
    touched: list[list[PooledTile]] = [[] for _ in range(len(program))]
    unwritten = {tensor for tensor, tile in tiles.items() if not tile.entries}
    cells = program.cells
    for number, tensor in zip(cells.instruction.tolist(), cells.tensor.tolist(), strict=True):
        if tensor in tiles:
            tile = tiles[tensor]
            tile.accesses += 1
            touched[number].append(tile)
            if tensor in unwritten:
                tile.entries.append(number)
    return touched
