"""Sums of products over taps as single products, for whichever way a reference takes windows of an array."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import gcd

from targets.base import UntranslatableError
from targets.nki.translation.access import Atom, make_access
from targets.nki.translation.merge import ValueChange
from targets.nki.translation.values import Assembled, Contract, Load, Number, Part, Value

_MOST_TAPS = 64


def unroll_taps(product: Contract) -> Contract:
    """Return the product with loops over taps as single products; loops over channels stay."""
    loops = dict.fromkeys(loop for over in product.over for loop in over)
    sides = [side for pair in product.pairs for side in pair]
    for loop in loops:
        if any(_walks_taps(side, loop) for side in sides):
            try:
                return unroll_taps(_unroll(product, loop))
            except UntranslatableError:
                return product
    return product


def _walks_taps(value: Value, loop: Atom) -> bool:
    """Whether a loop goes through windows: through parts of one array, or along an axis with another loop."""
    if isinstance(value, Assembled):
        return len(value.parts) > 1 and loop in value.loops
    if not isinstance(value, Load) or loop not in value.access.atoms or value.access.backward:
        return False
    stride = value.access.stride(loop)
    return any(
        other // gcd(stride, other) < loop.size and stride // gcd(stride, other) < atom.size
        for atom, other in value.access.terms
        if atom != loop
    )


def _unroll(product: Contract, loop: Atom) -> Contract:
    pairs, overs = list[tuple[Value, Value]](), list[tuple[Atom, ...]]()
    for (left, right), over in zip(product.pairs, product.over, strict=True):
        if loop not in over:
            pairs.append((left, right))
            overs.append(over)
            continue
        for place in range(loop.size):
            placing = _Placing(loop, place)
            pairs.append((placing.value(left), placing.value(right)))
            overs.append(tuple(atom for atom in over if atom != loop))
    if len(pairs) > _MOST_TAPS or not all(overs):
        raise UntranslatableError("too many taps")
    return Contract(product.node, tuple(pairs), tuple(overs))


class _Placing(ValueChange):
    """Fixes one loop at a place."""

    def __init__(self, loop: Atom, place: int) -> None:
        super().__init__(frozenset({loop}))
        self._loop, self._place = loop, place

    def load(self, load: Load) -> Value:
        access = load.access
        offset = access.offset + self._place * access.stride(self._loop)
        return replace(
            load, access=make_access(offset, [term for term in access.terms if term[0] != self._loop])
        )

    def loops(self, atoms: Sequence[Atom]) -> tuple[Atom, ...]:
        return tuple(atom for atom in atoms if atom != self._loop)

    def _change(self, value: Value) -> Value:
        if not isinstance(value, Assembled) or self._loop not in value.loops:
            return super()._change(value)
        parts = [part for part in map(self._part, value.parts) if part is not None]
        if not parts and value.base is not None:
            return Number(value.node, value.base)
        if not parts or any(not part.box for part in parts[1:]):
            raise UntranslatableError("a place that several parts have, or none")
        loops = tuple(dict.fromkeys(atom for part in parts for atom, _, _ in part.box))
        return replace(value, parts=tuple(parts), loops=loops) if loops else parts[0].value

    def _part(self, part: Part) -> Part | None:
        """What a part has at the place; None if it is elsewhere."""
        box = []
        value = part.value
        for atom, start, own in part.box:
            if atom != self._loop:
                box.append((atom, start, own))
            elif start <= self._place < start + own.size:
                value = _Placing(own, self._place - start).value(value)
            else:
                return None
        return Part(self.value(value), tuple(box))
