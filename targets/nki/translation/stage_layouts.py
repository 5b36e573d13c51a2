"""The layouts of a stage: what may lie on the partitions, and how loops are split, paired or packed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from targets.base import UntranslatableError
from targets.nki.translation import convolution
from targets.nki.translation.access import Atom
from targets.nki.translation.layout import is_batch, rank_rows
from targets.nki.translation.merge import pair_rows, row_groups, row_pairs, split_rows
from targets.nki.translation.spread_sums import find_neighbours, spread_sums, with_own_loops
from targets.nki.translation.stage import Store
from targets.nki.translation.values import Assembled, Scan, TilePart, Value

_Makers = dict[str | None, Callable[[], "StageLayout"]]
"""Layouts by name, each as a function that makes it."""
_SPREAD = " spread"
"""What names of layouts have with sums that all partitions get."""
_CUT_LOOPS = 2
"""Loops inside a tile from which on the outermost may be cut: parts of single rows are short runs."""
_ITERATIONS_INSIDE = (2, 4)
"""Iterations of a loop of independent products that a tile may hold."""


@dataclass(frozen=True, slots=True)
class StageLayout:
    """What a stage writes, the loop on the partitions, and all its loops."""

    stores: Sequence[Store]
    row: Atom | None
    atoms: tuple[Atom, ...]
    inside: Atom | None = None
    """A loop of independent products that lies inside the partitions."""
    outside: tuple[Atom, ...] = ()
    """Loops that could lie inside the partitions, and are outside to save room."""
    grouped: Atom | None = None
    """The rows in each partition: outside, they would leave partitions empty for nothing."""
    is_plain: bool = True
    """Whether the loops of tiles are as they were. Shorter tiles are tried for such layouts only."""


def _split_layout(
    stores: Sequence[Store], atoms: tuple[Atom, ...], row: Atom, *, inner: int, outside: tuple[Atom, ...]
) -> StageLayout:
    """Several rows in each partition."""
    split, loops, outer = split_rows(stores, atoms, row, inner)
    grouped = loops[loops.index(outer) + 1]
    return StageLayout(split, outer, loops, outside=outside, grouped=grouped, is_plain=False)


def _paired_layout(stores: Sequence[Store], atoms: tuple[Atom, ...], pair: tuple[Atom, Atom]) -> StageLayout:
    """Two loops on the partitions."""
    paired, loops, both = pair_rows(stores, atoms, pair)
    return StageLayout(paired, both, loops, is_plain=False)


def _packed_layout(
    stores: Sequence[Store], atoms: tuple[Atom, ...], packing: convolution.Packing
) -> StageLayout:
    """A convolution in fewer products."""
    packed, loops, row = convolution.pack_rows(stores, atoms, packing)
    return StageLayout(packed, row, loops)


def _spread_layout(
    stores: Sequence[Store], atoms: tuple[Atom, ...], row: Atom, inner: int = 1
) -> StageLayout | None:
    """Sums over rows by products with ones; a partition may have several rows."""
    if inner == 1:
        spread = spread_sums(stores, row)
        return None if spread is None else StageLayout(spread, row, atoms)
    split, loops, outer = split_rows(stores, atoms, row, inner)
    spread = spread_sums(split, outer)
    if spread is None:
        return None
    return StageLayout(spread, outer, loops, grouped=loops[loops.index(outer) + 1], is_plain=False)


def _find_spread(
    stores: Sequence[Store], atoms: tuple[Atom, ...], row: Atom
) -> Iterator[tuple[str, StageLayout]]:
    """The layouts with sums over rows by products with ones: those with fewer tiles come first."""
    if any(row in find_neighbours(store.value) for store in stores):
        return
    stores = with_own_loops(stores, row)
    for inner, outside in [*row_groups(stores, row, atoms), (1, ())]:
        try:
            found = None if outside else _spread_layout(stores, atoms, row, inner)
        except UntranslatableError:
            continue  # something in the sums needs a loop as it is
        if found is not None:
            yield f"{row.name}{_SPREAD}" + (f" by {inner}" if inner > 1 else ""), found


def _inside_layout(
    stores: Sequence[Store], atoms: tuple[Atom, ...], row: Atom, *, batch: Atom, inner: int
) -> StageLayout:
    """Some iterations of a loop of independent products in each tile."""
    if batch.size == inner:
        return StageLayout(stores, row, atoms, batch, is_plain=False)
    split, loops, outer = split_rows(stores, atoms, batch, inner)
    inside = loops[loops.index(outer) + 1]
    return StageLayout(split, row, loops, inside, is_plain=False)


def find_layouts(stores: Sequence[Store], atoms: tuple[Atom, ...], *, spreads_first: bool) -> _Makers:
    """The layouts of a stage by name, the likely best first, each as a function that makes it."""
    values = [store.value for store in stores]
    rows = rank_rows(values, [store.access for store in stores], atoms)
    alone: _Makers = {_name(atom): partial(StageLayout, stores, atom, atoms) for atom in rows}
    grouped: _Makers = {
        f"{atom.name} by {inner}": partial(_split_layout, stores, atoms, atom, inner=inner, outside=outside)
        for atom in rows
        if atom is not None
        for inner, outside in row_groups(stores, atom, atoms)
    }
    batched: _Makers = {
        f"{atom.name} with {inner} of {batch.name}": partial(
            _inside_layout, stores, atoms, atom, batch=batch, inner=inner
        )
        for atom in rows[:1]
        if atom is not None
        for batch in atoms
        if batch != atom and is_batch(values, batch)
        for inner in _ITERATIONS_INSIDE
        if batch.size % inner == 0
    }
    paired: _Makers = {
        f"{pair[0].name} and {pair[1].name}": partial(_paired_layout, stores, atoms, pair)
        for pair in row_pairs(stores, atoms)
    }
    packed: _Makers = {
        packing.name: partial(_packed_layout, stores, atoms, packing)
        for packing in convolution.find_packings(stores)
    }
    spread: _Makers = {
        name: partial(_as_it_is, layout)
        for atom in rows
        if atom is not None
        for name, layout in _find_spread(stores, atoms, atom)
    }
    first, *others = alone
    same: _Makers = {name: made for name, made in grouped.items() if name and name.startswith(f"{first} by ")}
    likely = spread if spreads_first else {}
    likely |= {**packed, **paired, **(same or grouped), first: alone[first], **batched, **spread, **grouped}
    return likely | {name: alone[name] for name in others}


def find_bound(values: Iterable[Value]) -> frozenset[Atom]:
    """The loops of which operations need all steps at once, and those that parts of packed tiles walk."""
    items = {item for value in values for item in value.walk()}
    along = {item.along for item in items if isinstance(item, Scan)}
    parts = (part for item in items if isinstance(item, Assembled) for part in item.parts)
    boxes = {atom for part in parts for own, _, inner in part.box for atom in (own, inner)}
    packed = (item.atoms for item in items if isinstance(item, TilePart))
    return frozenset().union(along, boxes, *packed, *(item.bound for item in items))


def cut_tiles(layout: StageLayout, most: int) -> StageLayout:
    """A layout whose tiles are cut in at most so many parts, which follow each other in a loop.

    The engines then work on one part while another one is moved. The outermost loop inside the tiles is
    cut; the layout is as it was if its steps do not divide.
    """
    values = [store.value for store in layout.stores]
    fixed = {layout.row, layout.inside, layout.grouped, *layout.outside, *find_bound(values)}
    inside = [atom for atom in layout.atoms if atom not in fixed and not is_batch(values, atom)]
    count = max((n for n in range(2, most + 1) if inside and inside[0].size % n == 0), default=1)
    if count == 1 or len(inside) + (layout.grouped is not None) < _CUT_LOOPS:
        return layout
    first = inside[0]
    if count == first.size:
        return replace(layout, outside=(*layout.outside, first))
    stores, atoms, outer = split_rows(layout.stores, layout.atoms, first, first.size // count)
    return replace(layout, stores=stores, atoms=atoms, outside=(*layout.outside, outer))


def usual_layouts(choices: Mapping[str | None, object], *, spreads_first: bool) -> list[str | None]:
    """The layouts that are tried in turn if none is chosen: sums by ones only if they are to come first.

    Else what they would make in one stage is cut in two, and predictions decide which is faster.
    """
    return [name for name in choices if spreads_first or name is None or _SPREAD not in name]


def _as_it_is(layout: StageLayout) -> StageLayout:
    return layout


def _name(atom: Atom | None) -> str | None:
    return atom.name if atom else None
