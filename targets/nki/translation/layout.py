"""Where values lie on the chip: which loop is on the partitions, which loops are free, and what is possible.

A loop nest has *outer* loops, and may have a *row* loop: its rows lie on the partitions and are walked in
tiles of 128. Every other loop of a value is free: it lies inside a partition. A value may be wanted with
another loop on the partitions, as operands of the tensor engine are. Then the partitions hold that loop's
first 128 elements, and further ones follow in chunks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

from targets.nki.translation.access import Access, Atom
from targets.nki.translation.text import write_sequence
from targets.nki.translation.values import (
    Assembled,
    Contract,
    Load,
    Moments,
    PairedLoad,
    Reduce,
    Scan,
    SpreadSum,
    Value,
)

PARTITIONS = 128
BANK = 512
"""float32 in one bank of PSUM."""
SHORT_RUN = 16
"""Neighbouring elements in HBM from which on a transfer takes them as a run."""
_SCATTERED = 4
"""What the transfer of a single element takes, in elements that an engine works on meanwhile."""
MOST_STEP = 8
"""Elements up to which those between wanted ones are loaded as well."""


@dataclass(frozen=True)
class Nest:
    """The loops of a stage: the outer ones in order, and the row loop, which may be one of them or none."""

    outer: tuple[Atom, ...]
    row: Atom | None
    order: tuple[Atom, ...]
    loads_again: bool = False
    """Whether what is the same in all tiles of rows is loaded for each of them."""
    is_even: bool = False
    """Whether all tiles of rows have as many, if that takes no more tiles."""

    @cached_property
    def row_tile(self) -> int:
        """Rows in a full tile."""
        if self.row is None:
            return 1
        tiles = -(-self.row.size // PARTITIONS)
        if self.is_even and self.row.size % tiles == 0:
            return self.row.size // tiles
        return min(PARTITIONS, self.row.size)

    @cached_property
    def row_tiles(self) -> int:
        """How many tiles the row loop has."""
        return -(-self.row.size // self.row_tile) if self.row else 1

    def is_ragged(self, atom: Atom) -> bool:
        """Whether a loop's last tile or chunk is shorter than the others."""
        tile = self.row_tile if atom == self.row else PARTITIONS
        return atom.size > tile and atom.size % tile != 0

    def free_atoms(self, value: Value, partition: Atom | None) -> tuple[Atom, ...]:
        """The loops inside a partition of a value, outermost first."""
        own = [atom for atom in value.atoms if atom != partition and atom not in self.outer]
        return tuple(sorted(own, key=self.rank))

    def rank(self, atom: Atom) -> tuple[int, str]:
        """The place of a loop in the order of free loops."""
        return (self.order.index(atom), "") if atom in self.order else (len(self.order), atom.name)

    def level(self, value: Value) -> int:
        """How many outer loops a value has to be inside of; the row loop is the innermost."""
        inside = [at + 1 for at, atom in enumerate(self.outer) if atom in value.atoms]
        if self.row_tiles > 1 and self.row in value.atoms and not self._is_same_in_tiles(value):
            inside.append(len(self.outer) + 1)
        return max(inside, default=0)

    def _is_same_in_tiles(self, value: Value) -> bool:
        """Whether all tiles of rows hold the same, as if the outer of two loops there does not matter."""
        if value not in self._same_in_tiles:
            self._same_in_tiles[value] = self._repeats(value)
        return self._same_in_tiles[value]

    def _repeats(self, value: Value) -> bool:
        if self.row not in value.atoms | value.bound:
            return True
        if self.loads_again:
            return False
        if isinstance(value, PairedLoad):
            return value.outer not in value.load.atoms and self.row_tile % value.inner.size == 0
        return bool(value.operands) and all(map(self._is_same_in_tiles, value.operands))

    @cached_property
    def _same_in_tiles(self) -> dict[Value, bool]:
        return {}

    def chunks(self, atom: Atom | None) -> int:
        """How many chunks a value has with that loop on the partitions: 1 for the row loop's present tile."""
        return 1 if atom is None or atom == self.row else -(-atom.size // PARTITIONS)

    def width(self, atom: Atom) -> int:
        """How many elements of a free loop a tile has."""
        return self.row_tile if atom == self.row else atom.size


@dataclass(frozen=True, slots=True)
class BlockRange:
    """The blocks of a loop that each tile of rows works on: the first, and the one after the last."""

    blocks: tuple[tuple[int, int], ...]

    @property
    def box(self) -> tuple[str, str | int]:
        """The first block and how many there are, as text in terms of the tile."""
        count = write_sequence([end - start for start, end in self.blocks])
        start = write_sequence([start for start, _ in self.blocks])
        return start, int(count) if count.isdigit() else count


def padded_width(size: int) -> int:
    """The elements that a loop in PSUM gets so that its steps fill banks evenly: a power of two."""
    return 1 << (size - 1).bit_length()


def rank_rows(values: Sequence[Value], written: Sequence[Access], atoms: Sequence[Atom]) -> list[Atom | None]:
    """The loops that may lie on the partitions, best first; None: a single partition is used."""
    loads = {item for value in values for item in value.walk() if isinstance(item, Load)}
    accesses = [*(item.access for item in loads), *written]
    work = count_elements(values)

    def cost(atom: Atom) -> tuple[bool, bool, float]:
        scattered = sum(prod(a.size for a in item.atoms) for item in accesses if item.stride(atom) == 1)
        is_blocked = any(blocker(value, atom) is not None for value in values)
        elements = work / min(atom.size, PARTITIONS) + _SCATTERED * scattered
        return is_blocked, is_batch(values, atom), elements

    return [*sorted(atoms, key=cost), None]


def count_elements(values: Sequence[Value]) -> int:
    """The elements of the largest operation."""
    return max(prod(atom.size for atom in item.atoms) for value in values for item in value.walk())


def is_batch(values: Sequence[Value], atom: Atom) -> bool:
    """Whether both operands of a product depend on a loop that is not summed over."""
    return any(
        atom in left.atoms and atom in right.atoms and atom not in over
        for value in values
        for item in value.walk()
        if isinstance(item, Contract)
        for (left, right), over in zip(item.pairs, item.over, strict=True)
    )


def is_summed_by_vector(values: Sequence[Value], atom: Atom) -> bool:
    """Whether a product of a matrix and a vector sums over a loop.

    The loop lies on the partitions of both, and turning the matrix takes as long as the product.
    """
    return any(
        atom in over and (left.atoms < right.atoms or right.atoms < left.atoms)
        for value in values
        for item in value.walk()
        if isinstance(item, Contract)
        for (left, right), over in zip(item.pairs, item.over, strict=True)
    )


def partition_of_sum(over: Sequence[Atom]) -> Atom:
    """Return the loop of a sum of products that lies on the partitions of both operands."""
    return max(over, key=lambda atom: (min(atom.size, PARTITIONS), atom.name))


def blocker(value: Value, partition: Atom | None) -> Value | None:
    """Return the operation that keeps a value from being computed with this loop on the partitions.

    A result that is the same for every place of the loop, but that no engine computes in every partition at
    once, would have to be spread over the partitions first.
    """
    if partition is None or isinstance(value, SpreadSum):
        return None
    if isinstance(value, Contract):
        return None if partition in value.atoms else value
    if isinstance(value, Reduce | Scan | Moments) and partition not in value.atoms:
        return value
    if isinstance(value, Scan) and value.along == partition:
        return value
    if isinstance(value, Assembled) and any(
        atom == partition for part in value.parts for atom, _, _ in part.box
    ):
        return value
    return next((found for item in value.operands if (found := blocker(item, partition)) is not None), None)


def is_scattered(load: Load, partition: Atom | None, free: Sequence[Atom]) -> bool:
    """Whether a load would fetch short runs that lie apart, though long ones are there, or go backwards.

    The partitions' loop goes on where a run ends, or a few elements further on: with that loop inside a
    partition, the runs would be longer.
    """
    if partition in load.access.backward:
        return True
    if partition is None:
        return False
    run = _run_length(load, free)
    step = load.access.stride(partition)
    if run >= SHORT_RUN or not 0 < step <= max(run, MOST_STEP):
        return False
    return any(load.access.stride(atom) > step for atom in free)


def _run_length(load: Load, free: Sequence[Atom]) -> int:
    """How many neighbouring elements the free loops walk one after the other."""
    run = 1
    for atom in sorted(free, key=load.access.stride):
        if load.access.stride(atom) == run:
            run *= atom.size
    return run
