"""Merges loops that always move together, and splits loops whose rows are short.

Merged loops make tiles of fewer dimensions and longer runs. Of a split loop the outer part lies on the
partitions and the inner one in each of them, so that a tile holds several rows in each partition.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from math import prod

from targets.nki.translation.access import Access, Atom, make_access
from targets.nki.translation.layout import PARTITIONS
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

_ROW_GROUPS = (2048, 8192)
"""float32 per partition up to which rows are put together in a partition; both are tried."""


def merge_loops(stores: Sequence[Store], atoms: Sequence[Atom]) -> tuple[list[Store], tuple[Atom, ...]]:
    """Return the same stores with loops merged where every access walks them as one."""
    found, atoms = list(stores), tuple(atoms)
    # A result needs a loop for the partitions and one inside them, so its last two loops stay apart.
    while (pair := _find_pair(found, atoms)) is not None:
        outer, inner = pair
        both = Atom(f"{outer.name}_{inner.name}", outer.size * inner.size)
        merger = _Merger(outer, inner, both)
        found = [merger.store(store) for store in found]
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


class _LoopChange:
    """Puts other loops in the place of some, in a value; what was used twice still is."""

    def __init__(self, changed: frozenset[Atom]) -> None:
        self._changed = changed
        self._done: dict[Value, Value] = {}

    def access(self, access: Access) -> Access:
        """Return an access with the new loops."""
        raise NotImplementedError

    def loops(self, atoms: Sequence[Atom]) -> tuple[Atom, ...]:
        """Return the new loops for some."""
        raise NotImplementedError

    def table(self, table: Table) -> Table:
        """Return known numbers over the new loops."""
        raise NotImplementedError

    def store(self, store: Store) -> Store:
        """Return a store over the new loops."""
        return replace(store, value=self.value(store.value), access=self.access(store.access))

    def value(self, value: Value) -> Value:
        """Return a value over the new loops."""
        if value not in self._done:
            self._done[value] = self._change(value)
        return self._done[value]

    def _change(self, value: Value) -> Value:
        if not self._changed & {atom for item in value.walk() for atom in (*item.atoms, *item.bound)}:
            return value
        match value:
            case Table():
                return self.table(value)
            case Load():
                return replace(value, access=self.access(value.access))
            case Unary():
                return replace(value, value=self.value(value.value))
            case Binary():
                left = self.value(value.left)
                same = value.left is value.right
                return replace(value, left=left, right=left if same else self.value(value.right))
            case Select():
                return Select(
                    value.node, self.value(value.condition), self.value(value.left), self.value(value.right)
                )
            case Reduce():
                return replace(value, value=self.value(value.value), over=self.loops(value.over))
            case Contract():
                pairs = tuple((self.value(left), self.value(right)) for left, right in value.pairs)
                return replace(value, pairs=pairs, over=tuple(self.loops(own) for own in value.over))
            case Scan():
                return replace(
                    value,
                    factor=self.value(value.factor),
                    term=self.value(value.term),
                    initial=self.value(value.initial),
                )
            case Assembled():
                parts = tuple(Part(self.value(part.value), part.box) for part in value.parts)
                return replace(value, parts=parts, loops=self.loops(value.loops))
        raise AssertionError(value)


class _Merger(_LoopChange):
    """Replaces two loops by one."""

    def __init__(self, outer: Atom, inner: Atom, both: Atom) -> None:
        super().__init__(frozenset({outer, inner}))
        self.outer, self.inner, self.both = outer, inner, both

    def access(self, access: Access) -> Access:
        return _merged_access(access, self.outer, self.inner, self.both)

    def loops(self, atoms: Sequence[Atom]) -> tuple[Atom, ...]:
        return tuple(self.both if atom == self.outer else atom for atom in atoms if atom != self.inner)


class _Splitter(_LoopChange):
    """Replaces a loop by two."""

    def __init__(self, atom: Atom, inner: int) -> None:
        super().__init__(frozenset({atom}))
        self.atom = atom
        self.outer = Atom(f"{atom.name}o", atom.size // inner)
        self.inner = Atom(f"{atom.name}i", inner)

    def access(self, access: Access) -> Access:
        terms: list[tuple[Atom, int]] = []
        for atom, stride in access.terms:
            is_split = atom == self.atom
            own = [(self.outer, stride * self.inner.size), (self.inner, stride)]
            terms += own if is_split else [(atom, stride)]
        return make_access(access.offset, terms)

    def loops(self, atoms: Sequence[Atom]) -> tuple[Atom, ...]:
        return tuple(
            one for atom in atoms for one in ((self.outer, self.inner) if atom == self.atom else (atom,))
        )

    def table(self, table: Table) -> Table:
        loops = self.loops(table.loops)
        return replace(table, numbers=table.numbers.reshape([atom.size for atom in loops]), loops=loops)


def split_rows(
    stores: Sequence[Store], atoms: Sequence[Atom], atom: Atom, inner: int
) -> tuple[list[Store], tuple[Atom, ...], Atom]:
    """Return the stores with a loop split, the loops of the nest, and the outer part of the split one."""
    splitter = _Splitter(atom, inner)
    return [splitter.store(store) for store in stores], splitter.loops(atoms), splitter.outer


def row_groups(stores: Sequence[Store], atom: Atom) -> list[int]:
    """Return how many rows a partition may hold, for a loop on the partitions; empty if only one."""
    items = {item for store in stores for item in store.value.walk()}
    is_walked = any(
        (isinstance(item, Scan) and item.along == atom)
        or (isinstance(item, Assembled) and any(atom == own for part in item.parts for own, _, _ in part.box))
        or atom in item.bound
        for item in items
    )
    if is_walked or any(isinstance(item, Contract) for item in items):
        return []
    width = max(
        prod(one.size for one in (item.atoms | item.bound) - {atom})
        for item in items | {s.value for s in stores}
    )
    fits = [
        inner
        for inner in range(2, atom.size // 64 + 1)
        if atom.size % inner == 0
        and (atom.size // inner % PARTITIONS == 0 or 64 <= atom.size // inner <= PARTITIONS)
    ]
    best = [max((one for one in fits if one * width <= room), default=0) for room in _ROW_GROUPS]
    return [inner for inner in dict.fromkeys(best) if inner]
