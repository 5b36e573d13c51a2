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

from targets.nki.translation.access import Atom
from targets.nki.translation.values import (
    Assembled,
    Contract,
    Load,
    Moments,
    Reduce,
    Scan,
    Value,
)

PARTITIONS = 128
BANK = 512
"""float32 in one bank of PSUM."""


@dataclass(frozen=True)
class Nest:
    """The loops of a stage: the outer ones in order, and the row loop, which may be one of them or none."""

    outer: tuple[Atom, ...]
    row: Atom | None
    order: tuple[Atom, ...]

    @cached_property
    def row_tile(self) -> int:
        """Rows in a full tile."""
        return min(PARTITIONS, self.row.size) if self.row else 1

    @cached_property
    def row_tiles(self) -> int:
        """How many tiles the row loop has."""
        return -(-self.row.size // self.row_tile) if self.row else 1

    def is_ragged(self, atom: Atom) -> bool:
        """Whether a loop's last tile or chunk is shorter than the others."""
        return atom.size > PARTITIONS and atom.size % PARTITIONS != 0

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
        if self.row is not None and self.row_tiles > 1 and self.row in value.atoms:
            inside.append(len(self.outer) + 1)
        return max(inside, default=0)

    def chunks(self, atom: Atom | None) -> int:
        """How many chunks a value has with that loop on the partitions: 1 for the row loop's present tile."""
        return 1 if atom is None or atom == self.row else -(-atom.size // PARTITIONS)

    def width(self, atom: Atom) -> int:
        """How many elements of a free loop a tile has."""
        return self.row_tile if atom == self.row else atom.size


def blocker(value: Value, partition: Atom | None) -> Value | None:
    """Return the operation that keeps a value from being computed with this loop on the partitions.

    A result that is the same for every place of the loop, but that no engine computes in every partition at
    once, would have to be spread over the partitions first.
    """
    if partition is None:
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
    """Whether a load would fetch single elements that lie apart, though runs are there, or go backwards."""
    if partition in load.access.backward:
        return True
    if partition is None or load.access.stride(partition) != 1:
        return False
    return any(load.access.stride(atom) > 1 for atom in free)
