"""On-chip memory as a stream of tiles in program order: who gets room when, and how much is in use.

SBUF is counted in bytes per partition, PSUM in banks. A tile lives from its first access to its last. In SBUF
a tile is a rectangle of partitions and bytes: those of few partitions lie above one another.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from nki_sim.flow.room import MEMORIES, capacity, size
from nki_sim.program.ir import Ints, Program
from nki_sim.targets import Target

__all__ = ["MEMORIES", "Lifetimes", "Pool", "Tile", "capacity", "lifetimes", "pools", "size"]


@dataclass(frozen=True, eq=False)
class Lifetimes:
    """First and last instruction of each tensor; -1 for tensors that nothing touches."""

    first: Ints
    last: Ints


def lifetimes(program: Program) -> Lifetimes:
    """Program-order lifetimes of all tensors."""
    cells = program.cells
    last = np.full(len(program.tensor_sites), -1, dtype=np.int64)
    np.maximum.at(last, cells.tensor, cells.instruction)
    first = np.full(len(program.tensor_sites), len(program), dtype=np.int64)
    np.minimum.at(first, cells.tensor, cells.instruction)
    return Lifetimes(np.where(last < 0, -1, first), last)


@dataclass(slots=True, eq=False)
class Tile:
    """A tensor on its way through a pool."""

    number: int
    size: int
    pool: Pool
    accesses: int = 0
    end_ns: float = 0.0
    last: int = -1


@dataclass(slots=True, eq=False)
class Pool:
    """Free room, and the tiles waiting for it: (instruction that touches it first, tile)."""

    free: int
    waiting: list[tuple[int, Tile]] = field(default_factory=list)
    tiles: dict[int, Tile] = field(default_factory=dict)
    next: int = 0

    def gated(self) -> list[int]:
        """One entry per tile: the instruction that cannot start before the tile has room."""
        return [number for number, _ in self.waiting]

    def hand_out(self) -> Iterator[int]:
        """Give room to the next tiles while it lasts; yields the instructions that gain by it."""
        while self.next < len(self.waiting):
            number, tile = self.waiting[self.next]
            if tile.size > self.free:
                return
            self.free -= tile.size
            self.next += 1
            yield number

    def force(self) -> int:
        """Give room to the next tile whether there is any or not; the instruction that gains by it."""
        number, tile = self.waiting[self.next]
        self.free -= tile.size
        self.next += 1
        return number

    def access_ended(self, tile: Tile, end_ns: float, number: int) -> bool:
        """Count down a tile's accesses; true when that was the last."""
        tile.accesses -= 1
        if end_ns > tile.end_ns:
            tile.end_ns, tile.last = end_ns, number
        return tile.accesses == 0

    def release(self, number: int) -> int:
        """Take a tile's room back; the instruction that ended last on it."""
        tile = self.tiles[number]
        self.free += tile.size
        return tile.last


def pools(program: Program, target: Target) -> tuple[list[Pool], list[list[Tile]]]:
    """The two memories of each core, and the tiles that each instruction touches."""
    cores = program.tensor_cores.tolist()
    made = {
        (memory, core): Pool(capacity(memory, target)) for core in sorted(set(cores)) for memory in MEMORIES
    }
    first = lifetimes(program).first.tolist()
    tiles: dict[int, Tile] = {}
    for number, site_number in enumerate(program.tensor_sites.tolist()):
        site = program.sites[site_number]
        if site.buffer in MEMORIES and site.address is None and first[number] >= 0:
            pool = made[site.buffer, cores[number]]
            tile = tiles[number] = pool.tiles[number] = Tile(number, size(site, target), pool)
            pool.waiting.append((first[number], tile))
    for pool in made.values():
        pool.waiting.sort(key=lambda entry: entry[0])
    touched: list[list[Tile]] = [[] for _ in range(len(program))]
    cells = program.cells
    for number, tensor in zip(cells.instruction.tolist(), cells.tensor.tolist(), strict=True):
        if tensor in tiles:
            tiles[tensor].accesses += 1
            touched[number].append(tiles[tensor])
    return list(made.values()), touched
