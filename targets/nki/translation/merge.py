"""Merges loops that always move together, and splits loops whose rows are short.

Merged loops make tiles of fewer dimensions and longer runs. Of a split loop the outer part lies on the
partitions and the inner one in each of them, so that a tile holds several rows in each partition.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from math import prod

import numpy as np

from targets.base import UntranslatableError
from targets.nki.translation.access import Access, Atom, make_access
from targets.nki.translation.layout import PARTITIONS
from targets.nki.translation.stage import RowPair, Store
from targets.nki.translation.values import (
    Assembled,
    Binary,
    Contract,
    KeptRows,
    Load,
    PairedLoad,
    Part,
    Reduce,
    Scan,
    Select,
    SpreadSum,
    Table,
    Unary,
    Value,
)

_LONG_RUN = 256
"""Elements in a run from which longer ones are hardly faster."""
_ROW_GROUPS = (2048, 8192)
"""float32 per partition up to which rows are put together in a partition; both are tried."""
_SMALLER_GROUPS = 2
"""Smaller groups of rows that are tried too."""
_EMPTIER = 2
"""How many times the work of the fullest partitions makes groups of rows useless."""


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
    pairs = list(pairwise(atoms)) if len(atoms) > 2 and not _is_in_slices(items, atoms) else []
    for item in items:
        if isinstance(item, Reduce):
            pairs += pairwise(item.over)
        elif isinstance(item, Contract):
            pairs += [pair for own in item.over for pair in pairwise(own)]
    accesses = [store.access for store in stores] + [item.access for item in items if isinstance(item, Load)]
    fits = (
        (outer, inner)
        for outer, inner in sorted(set(pairs), key=lambda pair: pair[0].name)
        if all(_walks_as_one(access, outer, inner) for access in accesses)
        and not any(_keeps_apart(item, {outer, inner}) for item in items)
    )
    return next(fits, None)


def _is_in_slices(items: Collection[Value], atoms: Sequence[Atom]) -> bool:
    """Whether rows fill partitions as they are, and their tiles are slices of them, which rewrites can read.

    Merged with parts of a row, rows would be those of another array. This is not worth it for long parts.
    """
    if len(atoms) != 3 or any(isinstance(item, Reduce | Contract | Scan) for item in items):
        return False
    row, outer, inner = atoms
    return row.size % PARTITIONS == 0 and inner.size >= _LONG_RUN and outer.is_split_with(inner)


def _keeps_apart(item: Value, pair: set[Atom]) -> bool:
    """Whether an operation treats the two loops differently."""
    match item:
        case Table() | KeptRows():
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


def _merged_access(access: Access, outer: Atom, inner: Atom, *, both: Atom) -> Access:
    terms = [(both if atom == inner else atom, stride) for atom, stride in access.terms if atom != outer]
    return make_access(access.offset, terms)


class ValueChange:
    """Puts other loops or values in the place of some, in a value; what was used twice still is."""

    def __init__(self, changed: frozenset[Atom], kept: Mapping[Value, Value] | None = None) -> None:
        self._changed = changed
        self._done: dict[Value, Value] = dict(kept or {})

    def is_changed(self, value: Value) -> bool:
        """Whether a value has other loops afterwards."""
        return bool(self._changed & {atom for item in value.walk() for atom in (*item.atoms, *item.bound)})

    def access(self, access: Access) -> Access:
        """Return an access with the new loops."""
        return access

    def loops(self, atoms: Sequence[Atom]) -> tuple[Atom, ...]:
        """Return the new loops for some."""
        return tuple(atoms)

    def table(self, table: Table) -> Table:
        """Return known numbers over the new loops."""
        return table

    def load(self, load: Load) -> Value:
        """Return a load over the new loops."""
        return replace(load, access=self.access(load.access))

    def part(self, part: Part) -> Part:
        """Return a box of an assembled value over the new loops."""
        return replace(part, value=self.value(part.value))

    def loop(self, atom: Atom) -> Atom:
        """Return the new loop in the place of one that has to stay a single one.

        Raises:
            UntranslatableError: it does not.
        """
        loops = self.loops((atom,))
        if len(loops) != 1:
            raise UntranslatableError(f"a loop that stays whole, {atom.name}, is to be split or merged")
        return loops[0]

    def store(self, store: Store) -> Store:
        """Return a store over the new loops."""
        return replace(store, value=self.value(store.value), access=self.access(store.access))

    def value(self, value: Value) -> Value:
        """Return a value over the new loops."""
        if value not in self._done:
            self._done[value] = self._change(value)
        return self._done[value]

    def _change(self, value: Value) -> Value:
        if not self.is_changed(value):
            return value
        match value:
            case Table() | Load() | PairedLoad() | KeptRows():
                return self._change_source(value)
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
            case SpreadSum():
                return replace(value, value=self.value(value.value), along=self.loop(value.along))
            case Contract():
                pairs = tuple((self.value(left), self.value(right)) for left, right in value.pairs)
                return replace(value, pairs=pairs, over=tuple(self.loops(own) for own in value.over))
            case Scan():
                return replace(
                    value,
                    factor=self.value(value.factor),
                    term=self.value(value.term),
                    initial=self.value(value.initial),
                    along=self.loop(value.along),
                )
            case Assembled():
                parts = tuple(map(self.part, value.parts))
                return replace(value, parts=parts, loops=self.loops(value.loops))
        raise AssertionError(value)

    def _change_source(self, value: Table | Load | PairedLoad | KeptRows) -> Value:
        """What has no operands, over the new loops."""
        match value:
            case Table():
                return self.table(value)
            case Load():
                return self.load(value)
            case PairedLoad():
                load = replace(value.load, access=self.access(value.load.access))
                return replace(value, load=load, both=self.loop(value.both))
            case KeptRows():
                return replace(value, loops=tuple(map(self.loop, value.loops)))


class _Merger(ValueChange):
    """Replaces two loops by one."""

    def __init__(
        self, outer: Atom, inner: Atom, both: Atom, *, kept: Mapping[Value, Value] | None = None
    ) -> None:
        super().__init__(frozenset({outer, inner}), kept)
        self.outer, self.inner, self.both = outer, inner, both

    def access(self, access: Access) -> Access:
        return _merged_access(access, self.outer, self.inner, both=self.both)

    def loops(self, atoms: Sequence[Atom]) -> tuple[Atom, ...]:
        return tuple(self.both if atom == self.outer else atom for atom in atoms if atom != self.inner)


class LoopRenaming(ValueChange):
    """Replaces loops by others of the same sizes."""

    def __init__(self, names: Mapping[Atom, Atom]) -> None:
        super().__init__(frozenset(names))
        self._names = names

    def access(self, access: Access) -> Access:
        return make_access(access.offset, [(self._names.get(atom, atom), by) for atom, by in access.terms])

    def loops(self, atoms: Sequence[Atom]) -> tuple[Atom, ...]:
        return tuple(self._names.get(atom, atom) for atom in atoms)

    def table(self, table: Table) -> Table:
        return replace(table, loops=self.loops(table.loops))

    def part(self, part: Part) -> Part:
        box = tuple((self.loop(atom), start, self.loop(own)) for atom, start, own in part.box)
        return Part(self.value(part.value), box)


class _Pairing(_Merger):
    """Puts two loops on the partitions as one, also for arrays that do not lie that way."""

    def load(self, load: Load) -> Value:
        if _walks_as_one(load.access, self.outer, self.inner):
            return replace(load, access=self.access(load.access))
        return PairedLoad(load.node, load, self.outer, self.inner, self.both)

    def table(self, table: Table) -> Table:
        """Known numbers over both loops: repeated along the one that the table lacks."""
        rest = tuple(atom for atom in table.loops if atom not in {self.outer, self.inner})
        numbers, loops = table.numbers, [*table.loops]
        for missing in {self.outer, self.inner} - set(loops):
            numbers, loops = numbers[None], [missing, *loops]
        order = [loops.index(atom) for atom in (self.outer, self.inner, *rest)]
        sizes = (self.outer.size, self.inner.size, *(atom.size for atom in rest))
        whole = np.broadcast_to(numbers.transpose(order), sizes)
        joined = whole.reshape(self.both.size, *sizes[2:])
        return replace(table, numbers=np.array(joined), loops=(self.both, *rest))


def _walks_as_one(access: Access, outer: Atom, inner: Atom) -> bool:
    return access.stride(outer) == access.stride(inner) * inner.size


def row_pairs(stores: Sequence[Store], atoms: Sequence[Atom]) -> list[tuple[Atom, Atom]]:
    """Return neighbouring loops that may share the partitions: one of them leaves most of them empty."""
    items = {item for store in stores for item in store.value.walk()}
    walked = {
        atom for item in items for atom in (*item.bound, *([item.along] if isinstance(item, Scan) else []))
    }
    walked |= {
        atom
        for item in items
        if isinstance(item, Assembled)
        for part in item.parts
        for own in part.box
        for atom in (own[0], own[2])
    }
    if any(isinstance(item, Contract) for item in items):
        return []
    scattered = {
        atom
        for item in items
        if isinstance(item, Load)
        for atom, stride in item.access.terms
        if stride == 1 and any(other > 1 for _, other in item.access.terms)
    }
    return [
        (outer, inner)
        for outer, inner in pairwise(atoms)
        if not (walked | scattered) & {outer, inner}
        and inner.size < PARTITIONS
        and all(_walks_as_one(store.access, outer, inner) for store in stores)
        and _fills_partitions(outer.size * inner.size, inner.size)
    ]


def _fills_partitions(size: int, inner: int) -> bool:
    return size <= PARTITIONS or (size % PARTITIONS == 0 and PARTITIONS % inner == 0)


def pair_rows(
    stores: Sequence[Store], atoms: Sequence[Atom], pair: tuple[Atom, Atom]
) -> tuple[list[Store], tuple[Atom, ...], Atom]:
    """Return the stores with two loops as one, the loops of the nest, and that one."""
    outer, inner = pair
    both = Atom(f"{outer.name}+{inner.name}", outer.size * inner.size)
    pairing = _Pairing(outer, inner, both)
    return [pairing.store(store) for store in stores], pairing.loops(atoms), both


def can_pair(stores: Sequence[Store], outer: Atom, inner: Atom, *, without: Collection[Value]) -> bool:
    """Whether two loops of all results may share the partitions; some operations do not count."""
    if not all({outer, inner} <= store.access.atoms for store in stores):
        return False
    for item in _walk_around([store.value for store in stores], without):
        along = {item.along} if isinstance(item, Scan) else set()
        boxes = {
            atom
            for part in (item.parts if isinstance(item, Assembled) else ())
            for own in part.box
            for atom in (own[0], own[2])
        }
        if {outer, inner} & (item.bound | along | boxes):
            return False
    return True


def _walk_around(values: Sequence[Value], without: Collection[Value]) -> Iterator[Value]:
    """All operations that values need, but not some of them and what only those need."""
    seen, todo = set[Value](), [*values]
    while todo:
        item = todo.pop()
        if item not in seen and item not in without:
            seen.add(item)
            todo += item.operands
            yield item


def pair_loops(
    stores: Sequence[Store], atoms: Sequence[Atom], pair: RowPair, *, kept: Mapping[Value, Value]
) -> tuple[list[Store], tuple[Atom, ...], Atom]:
    """Return the stores with two loops as one on the partitions, wherever arrays have them, and the loops."""
    pairing = _Pairing(pair.outer, pair.inner, pair.both, kept=kept)
    found = [
        pairing.store(store)
        if _walks_as_one(store.access, pair.outer, pair.inner)
        else replace(store, value=pairing.value(store.value), pair=pair)
        for store in stores
    ]
    return found, pairing.loops(atoms), pair.both


def group_sums(stores: Sequence[Store], atoms: Sequence[Atom]) -> list[Store]:
    """Return the stores with long sums of products split where that makes longer runs of an array.

    Rows of a matrix that are summed over lie on the partitions, 128 at a time. With neighbouring rows in one
    partition, instead of rows that are 128 apart, each partition has one run of all of them.
    """
    found = list(stores)
    for loop, inner in _sum_groups(stores, atoms).items():
        found, _, _ = split_rows(found, (), loop, inner)
    return found


def _sum_groups(stores: Sequence[Store], atoms: Sequence[Atom]) -> dict[Atom, int]:
    """The loops of sums to split, and how many neighbouring rows a partition then has."""
    items = {item for store in stores for item in store.value.walk()}
    summed = {atom for item in items if isinstance(item, Contract) for own in item.over for atom in own}
    short = {
        atom
        for item in items
        if isinstance(item, Load)
        for atom, stride in item.access.terms
        if 1 < stride < _LONG_RUN and not item.access.backward
    }
    apart = {item.along for item in items if isinstance(item, Scan)}
    apart |= {
        atom
        for item in items
        if isinstance(item, Assembled)
        for part in item.parts
        for own in part.box
        for atom in (own[0], own[2])
    }
    found = {}
    for atom in sorted((summed & short) - apart - {*atoms}, key=lambda atom: atom.name):
        inner = -(-atom.size // PARTITIONS)
        if inner > 1 and atom.size % inner == 0:
            found[atom] = inner
    return found


class _Splitter(ValueChange):
    """Replaces a loop by two."""

    def __init__(self, atom: Atom, inner: int, kept: Mapping[Value, Value] | None = None) -> None:
        super().__init__(frozenset({atom}), kept)
        self.atom = atom
        self.outer, self.inner = atom.split(inner)
        self._in_boxes: dict[Atom, _Splitter] = {}

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

    def part(self, part: Part) -> Part:
        value, box = self.value(part.value), list[tuple[Atom, int, Atom]]()
        for atom, start, own in part.box:
            if atom != self.atom:
                box.append((atom, start, self.loop(own)))
                continue
            first, rest = divmod(start, self.inner.size)
            if own.size == 1:  # one step of the inner loop, in one of the outer one
                box += [(self.outer, first, own), (self.inner, rest, Atom(f"{own.name}i", 1))]
                continue
            if rest or own.size % self.inner.size:
                raise UntranslatableError(f"a box of {own.size} from {start} on, in a loop that is split")
            splitter = self._in_boxes.setdefault(own, _Splitter(own, self.inner.size))
            value = splitter.value(value)
            box += [(self.outer, first, splitter.outer), (self.inner, 0, splitter.inner)]
        return Part(value, tuple(box))


def split_rows(
    stores: Sequence[Store],
    atoms: Sequence[Atom],
    atom: Atom,
    inner: int,
    *,
    kept: Mapping[Value, Value] | None = None,
) -> tuple[list[Store], tuple[Atom, ...], Atom]:
    """Return the stores with a loop split, the loops of the nest, and the outer part of the split one.

    `kept` has values that are put in the place of others instead.

    Raises:
        UntranslatableError: an operation needs the loop whole, or a box begins or ends inside a step.
    """
    splitter = _Splitter(atom, inner, kept)
    return [splitter.store(store) for store in stores], splitter.loops(atoms), splitter.outer


def _summed(item: Value) -> frozenset[Atom]:
    """The loops over which an operation needs all elements of its operand at once."""
    return frozenset() if isinstance(item, Assembled) else item.bound


def row_groups(
    stores: Sequence[Store], atom: Atom, atoms: Sequence[Atom]
) -> list[tuple[int, tuple[Atom, ...]]]:
    """Return how many rows a partition may hold, for a loop on the partitions; empty if only one.

    Each comes with the loops that are outside then, because a partition has no room for all of their rows.
    """
    items = {item for store in stores for item in store.value.walk()}
    is_walked = any(
        (isinstance(item, Scan) and item.along == atom)
        or (isinstance(item, Assembled) and any(atom == own for part in item.parts for own, _, _ in part.box))
        or atom in item.bound
        for item in items
    )
    if is_walked or any(isinstance(item, Contract) for item in items):
        return []
    loops = [(item.atoms | _summed(item)) - {atom} for item in items if atom in item.atoms]
    if not loops:
        return []

    def width(outside: Sequence[Atom]) -> int:
        return max(prod(one.size for one in own - {*outside}) for own in loops)

    fits = [
        inner
        for inner in range(2, atom.size // 64 + 1)
        if atom.size % inner == 0
        and (atom.size // inner % PARTITIONS == 0 or 64 <= atom.size // inner <= PARTITIONS)
    ]
    whole = width(())
    found = _group_sizes(atom, [inner for inner in fits if inner * whole <= _ROW_GROUPS[-1]], whole)
    if found or not fits:
        return [(inner, ()) for inner in found]
    others = [one for one in atoms if one != atom]
    fullest = min(fits, key=lambda inner: (_count_steps(atom, inner), -inner))
    found_sides = []
    for inner in dict.fromkeys((max(fits), fullest)):
        sides = (tuple(others[:count]) for count in range(1, len(others) + 1))
        found_sides += [(inner, side) for side in sides if inner * width(side) <= _ROW_GROUPS[-1]][:1]
    return found_sides


def _count_steps(atom: Atom, inner: int) -> int:
    """How many rows of a loop each partition has in all tiles, with so many of them in a partition."""
    return inner * -(-atom.size // inner // PARTITIONS)


def _group_sizes(atom: Atom, fits: Sequence[int], width: int) -> list[int]:
    """The numbers of rows in a partition that are tried, of those that fit: the likely best comes first.

    Those that fill the partitions best come first, large ones before smaller ones. With several
    tiles, engines work during transfers.
    """
    if not fits:
        return []

    work = partial(_count_steps, atom)
    least = min(map(work, fits))
    largest = [max((one for one in fits if one * width <= room), default=0) for room in _ROW_GROUPS]
    fuller = [inner for inner in fits if work(inner) == least]
    smaller = [inner for inner in fuller if inner < largest[0]] or fuller[:1]
    found = [inner for inner in largest if inner and work(inner) < _EMPTIER * least]
    return sorted(dict.fromkeys([*found, *smaller[: -1 - _SMALLER_GROUPS : -1]]), key=work)
