"""Operands of short products, two on top of each other: each half of the partitions feeds half of the array.

A sum over 64 elements leaves half of the tensor engine's rows idle. Two steps of a loop that the operands
share, such as two heads, then lie on the partitions together, and their products run side by side.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property

from targets.nki.translation.access import Atom
from targets.nki.translation.layout import PARTITIONS, blocker, is_scattered
from targets.nki.translation.stage import Box, Rows, StageContext, Tile
from targets.nki.translation.text import Lines, product_text, sum_text
from targets.nki.translation.transposes import enter_loop, make_stacked_transpose, other_partition
from targets.nki.translation.values import Load, Value

HALF = PARTITIONS // 2


@dataclass(frozen=True)
class Stack:
    """Two steps of a loop on top of each other on the partitions, above the loop of a sum."""

    loop: Atom
    inner: Atom

    @cached_property
    def outer(self) -> Atom:
        """The loop over pairs of steps."""
        return Atom(f"{self.loop.name}o", self.loop.size // 2)

    @cached_property
    def both(self) -> Atom:
        """The loop on the partitions: two steps, and the loop of the sum in each."""
        return Atom(f"{self.loop.name}+{self.inner.name}", 2 * self.inner.size)

    def tile(self, context: StageContext, value: Value) -> Tile:
        """Return an operand's tile with this loop on the partitions."""
        key = value, self.both
        if key not in context.tiles:
            source = other_partition(context, value, self.inner)
            own = [atom for atom in context.nest.free_atoms(value, self.inner) if atom != self.loop]
            free = ((self.outer,) if self.loop in value.atoms else ()) + tuple(own)
            context.tiles[key] = make_stacked_transpose(
                context, value, self.both, free, source=source, pair=(self.loop, self.outer, self.inner)
            )
        return context.tiles[key]

    def rows(self, half: int, limits: Box) -> Rows:
        """The partitions of one of both steps."""
        return Rows(self.inner.size, None, "0", first=half * self.inner.size, limits=limits)

    def enter(
        self, context: StageContext, stack: ExitStack, lines: Lines
    ) -> list[tuple[dict[Atom, str], int]]:
        """Go through the pairs of steps; the loops' places for each of both, and which it is."""
        outer = enter_loop(context, stack, lines, self.outer) if self.outer.size > 1 else "0"
        return [
            ({self.outer: outer, self.loop: sum_text(product_text(outer, 2), half)}, half) for half in (0, 1)
        ]


def find_stack(
    context: StageContext, products: Iterable[tuple[Value, Value, tuple[Atom, ...]]], looped: Sequence[Atom]
) -> Stack | None:
    """The innermost loop of products of which two steps may lie on top of each other, if there is one."""
    products = list(products)
    inners = {over for _, _, over in products}
    loops = [atom for atom in looped if atom.size % 2 == 0 and atom != context.nest.row]
    if len(inners) != 1 or not loops:
        return None
    (over,) = inners
    if len(over) != 1 or over[0].size != HALF:
        return None
    found = Stack(loops[-1], over[0])
    operands = [item for left, right, _ in products for item in (left, right)]
    return found if all(_can_stack(context, item, found) for item in operands) else None


def _can_stack(context: StageContext, value: Value, stack: Stack) -> bool:
    """Whether an operand is transposed anyway, from a tile in which the two steps are neighbours."""
    free = context.nest.free_atoms(value, stack.inner)
    is_turned = blocker(value, stack.inner) is not None
    if isinstance(value, Load):
        is_turned = is_scattered(value, stack.inner, free) and not value.access.backward
    if not is_turned or (value, stack.inner) in context.tiles or value in context.windows:
        return False
    data = context.tile(value, other_partition(context, value, stack.inner))
    return not data.places and not data.windows
