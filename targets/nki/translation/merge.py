"""Merges loops that always move together, so that tiles have fewer dimensions and longer runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from targets.nki.translation.access import Access, Atom, make_access
from targets.nki.translation.stage import Store
from targets.nki.translation.values import (
    Assembled,
    Binary,
    Contract,
    Load,
    Part,
    Reduce,
    Scan,
    Select,
    Table,
    Unary,
    Value,
)


def merge_loops(stores: Sequence[Store], atoms: Sequence[Atom]) -> tuple[list[Store], tuple[Atom, ...]]:
    """Return the same stores with loops merged where every access walks them as one."""
    found, atoms = list(stores), tuple(atoms)
    # A result needs a loop for the partitions and one inside them, so its last two loops stay apart.
    while (pair := _find_pair(found, atoms)) is not None:
        outer, inner = pair
        both = Atom(f"{outer.name}_{inner.name}", outer.size * inner.size)
        merger = _Merger(outer, inner, both)
        found = [
            replace(
                store,
                value=merger.merged(store.value),
                access=_merged_access(store.access, outer, inner, both),
            )
            for store in found
        ]
        atoms = tuple(both if atom == outer else atom for atom in atoms if atom != inner)
    return found, atoms


def _find_pair(stores: Sequence[Store], atoms: Sequence[Atom]) -> tuple[Atom, Atom] | None:
    items = {item for store in stores for item in store.value.walk()}
    pairs = list(pairwise(atoms)) if len(atoms) > 2 else []
    for item in items:
        if isinstance(item, Reduce):
            pairs += pairwise(item.over)
        elif isinstance(item, Contract):
            pairs += [pair for own in item.over for pair in pairwise(own)]
    accesses = [store.access for store in stores] + [item.access for item in items if isinstance(item, Load)]
    fits = (
        (outer, inner)
        for outer, inner in sorted(set(pairs), key=lambda pair: pair[0].name)
        if all(access.stride(outer) == access.stride(inner) * inner.size for access in accesses)
        and not any(_keeps_apart(item, {outer, inner}) for item in items)
    )
    return next(fits, None)


def _keeps_apart(item: Value, pair: set[Atom]) -> bool:
    """Whether an operation treats the two loops differently."""
    match item:
        case Table():
            return bool(pair & set(item.loops))
        case Scan():
            return item.along in pair
        case Assembled():
            return any(pair & {atom, own} for part in item.parts for atom, _, own in part.box)
        case Reduce():
            return len(pair & set(item.over)) == 1
        case Contract():
            return any(len(pair & set(own)) == 1 for own in item.over)
    return False


def _merged_access(access: Access, outer: Atom, inner: Atom, both: Atom) -> Access:
    terms = [(both if atom == inner else atom, stride) for atom, stride in access.terms if atom != outer]
    return make_access(access.offset, terms)


class _Merger:
    """Replaces two loops by one in a value; what was used twice still is."""

    def __init__(self, outer: Atom, inner: Atom, both: Atom) -> None:
        self.outer, self.inner, self.both = outer, inner, both
        self._done: dict[Value, Value] = {}

    def merged(self, value: Value) -> Value:
        if value not in self._done:
            self._done[value] = self._merged(value)
        return self._done[value]

    def _merged(self, value: Value) -> Value:
        if not {self.outer, self.inner} & {
            atom for item in value.walk() for atom in (*item.atoms, *item.bound)
        }:
            return value
        match value:
            case Load():
                access = _merged_access(value.access, self.outer, self.inner, self.both)
                return replace(value, access=access)
            case Unary():
                return replace(value, value=self.merged(value.value))
            case Binary():
                return replace(value, left=self.merged(value.left), right=self.merged(value.right))
            case Select():
                return Select(
                    value.node,
                    self.merged(value.condition),
                    self.merged(value.left),
                    self.merged(value.right),
                )
            case Reduce():
                return replace(value, value=self.merged(value.value), over=self._loops(value.over))
            case Contract():
                pairs = tuple((self.merged(left), self.merged(right)) for left, right in value.pairs)
                return replace(value, pairs=pairs, over=tuple(self._loops(own) for own in value.over))
            case Scan():
                return replace(
                    value,
                    factor=self.merged(value.factor),
                    term=self.merged(value.term),
                    initial=self.merged(value.initial),
                )
            case Assembled():
                parts = tuple(Part(self.merged(part.value), part.box) for part in value.parts)
                return replace(value, parts=parts, loops=self._loops(value.loops))
        raise AssertionError(value)

    def _loops(self, atoms: Sequence[Atom]) -> tuple[Atom, ...]:
        return tuple(self.both if atom == self.outer else atom for atom in atoms if atom != self.inner)
