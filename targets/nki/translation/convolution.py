"""Convolutions as few products: rows of the input on top of each other, several rows of results at once.

A convolution is a sum of products, one for each tap, of weights and a shifted window. With few channels each
product uses few rows of the tensor engine. So the partitions hold the channels of several neighbouring rows
(`StackedRows`), and the weights of all taps that join one of these rows with one of a few neighbouring rows
of the result lie in one operand (`BandedWeights`), zero elsewhere. Taps along the other axes are shifted
views.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import gcd

from targets.base import UntranslatableError
from targets.nki.translation.access import Atom
from targets.nki.translation.layout import PARTITIONS
from targets.nki.translation.merge import LoopRenaming, can_pair, pair_loops, split_rows
from targets.nki.translation.patterns import Substitution
from targets.nki.translation.stage import RowPair, Store
from targets.nki.translation.taps import unroll_taps
from targets.nki.translation.values import (
    Assembled,
    Band,
    BandedWeights,
    Binary,
    Contract,
    Load,
    Number,
    StackedRows,
    TilePart,
    Unary,
    Value,
)
from targets.nki.translation.windows import Hull, Window, find_windows

_MOST_PACKINGS = 3
_PRODUCT_NS = 1.7
"""What a column of a float32 product takes, about."""
_BYTES_PER_NS = 180.0
"""Bytes that are loaded meanwhile, about."""


@dataclass(frozen=True, slots=True)
class _Tap:
    """One product of a convolution: its weights, and where its window begins along each axis of the hull."""

    weights: Value
    window: Window


@dataclass(frozen=True)
class Packing:
    """A way to pack convolutions of the same windows.

    It says along which axis, how many rows the stack has, and how many rows of the result a product gives.
    """

    products: tuple[tuple[Contract, tuple[_Tap, ...]], ...]
    hull: Hull
    axis: int
    inner: Atom
    outer: Atom
    height: int
    results: int

    @property
    def taps(self) -> tuple[_Tap, ...]:
        """The taps of the first convolution: its windows are those of all."""
        return self.products[0][1]

    @property
    def name(self) -> str:
        """What a layout calls it."""
        return f"{self.outer.name} packed {self.height} by {self.results} along {self.loop.name}"

    @cached_property
    def loop(self) -> Atom:
        """The result's loop along the axis."""
        loop = self.taps[0].window.axes[self.axis][1]
        assert loop is not None
        return loop

    @property
    def step(self) -> int:
        """How many rows of the input a row of the result moves."""
        return self.taps[0].window.axes[self.axis][3]

    @cached_property
    def starts(self) -> list[int]:
        """Where the windows begin along the axis."""
        return sorted({tap.window.axes[self.axis][2] for tap in self.taps})

    @cached_property
    def places(self) -> list[tuple[int, ...]]:
        """Where the windows begin along the other axes."""
        return sorted({_other_starts(tap, self.axis) for tap in self.taps})

    @cached_property
    def spacing(self) -> int:
        """Rows of the input from one row of the stack to the next."""
        moved = [start - self.starts[0] for start in self.starts]
        moved += [self.step] if self.results > 1 else []
        return gcd(*moved) or 1

    @property
    def depth(self) -> int:
        """Rows that the results need."""
        reach = self.starts[-1] - self.starts[0] + self.step * (self.results - 1)
        return reach // self.spacing + 1

    @property
    def passes(self) -> int:
        """How many times the stack, shifted, has the rows that the results need."""
        return -(-self.depth // self.height)

    @property
    def shift(self) -> int:
        """Steps from a pass to the next."""
        return self.height * self.spacing // (self.step * self.results)

    @property
    def fits(self) -> bool:
        """Whether each product of it has its operands."""
        moved = self.height * self.spacing
        is_even = self.passes == 1 or moved % (self.step * self.results) == 0
        return is_even and self.height <= self.depth and self.loop.size % self.results == 0

    @property
    def cost(self) -> float:
        """About how many ns an element of a row of the result takes, to choose which packings to predict."""
        products = self.passes * len(self.places) / self.results
        loaded = 4 * self.inner.size * self.height / (self.step * self.results)
        return _PRODUCT_NS * products + loaded / _BYTES_PER_NS


def _other_starts(tap: _Tap, axis: int) -> tuple[int, ...]:
    return tuple(start for at, (_, _, start, _) in enumerate(tap.window.axes) if at != axis)


def find_packings(stores: Sequence[Store]) -> list[Packing]:
    """Return ways to pack the convolution that stores need, the likely best first; none if it is full."""
    items = {item for store in stores for item in store.value.walk() if isinstance(item, Contract)}
    products = sorted(items, key=lambda item: item.node)
    convolutions = _match_convolutions(products)
    if convolutions is None:
        return []
    (inner,), taps = convolutions[0][0].over[0], [tap for _, own in convolutions for tap in own]
    hull = taps[0].window.hull
    if len({tuple(axis[1::2] for axis in tap.window.axes) for tap in taps}) != 1:
        return []  # windows that move differently
    outers = {atom for tap in taps for atom in tap.weights.atoms - hull.common - {inner}}
    if len(outers) != 1 or not _are_simple([tap.weights for tap in taps]):
        return []
    (outer,) = outers
    known = tuple((product, own) for product, (_, own) in zip(products, convolutions, strict=True))
    found = [
        packing
        for axis in range(len(taps[0].window.axes))
        for packing in _along_axis(Packing(known, hull, axis, inner, outer, 1, 1), stores)
    ]
    return sorted(found, key=lambda packing: packing.cost)[:_MOST_PACKINGS]


def _along_axis(packing: Packing, stores: Sequence[Store]) -> Iterator[Packing]:
    """The ways to pack along one axis."""
    span, own, _, _ = packing.taps[0].window.axes[packing.axis]
    if own is None:
        return
    loop, load = packing.loop, _hull_load(packing.hull)
    row_stride = load.access.stride(_inside(packing.hull, span))
    most = min(PARTITIONS // packing.outer.size, loop.size) if row_stride > 1 else 1
    if not can_pair(stores, loop, packing.outer, without=[product for product, _ in packing.products]):
        most = 1
    for results in range(1, max(1, most) + 1):
        wide = replace(packing, results=results, height=1)
        height = min(wide.depth, PARTITIONS // packing.inner.size)
        if not height:
            return
        passes = -(-wide.depth // height)
        found = replace(wide, height=-(-wide.depth // passes))
        if found.fits and (found.height > 1 or found.results > 1):
            yield found


def _are_simple(weights: Sequence[Value]) -> bool:
    return all(isinstance(item, Load | Number | Unary | Binary) for one in weights for item in one.walk())


def _match_convolutions(products: Sequence[Contract]) -> list[tuple[Contract, tuple[_Tap, ...]]] | None:
    """The convolutions that products are, with single taps and the same loop to add up, or None.

    All have the same windows of one array.
    """
    found = list[Contract]()
    for product in map(unroll_taps, products):
        if len(product.pairs) < 2 or len({*product.over}) != 1 or len(product.over[0]) != 1:
            return None
        own, first = product.over[0][0], (found or [product])[0].over[0][0]
        if own.size != first.size:
            return None
        renamed = product if own == first else LoopRenaming({own: first}).value(product)
        assert isinstance(renamed, Contract)
        found.append(renamed)
    windows = find_windows([side for item in found for pair in item.pairs for side in pair], frozenset())
    matched = [(item, _find_taps(item, windows)) for item in found]
    known = [(item, taps) for item, taps in matched if taps is not None]
    shared = {(tap.window.hull, frozenset(_places_of(taps))) for _, taps in known for tap in taps}
    return known if known and len(known) == len(products) and len(shared) == 1 else None


def _places_of(taps: Sequence[_Tap]) -> list[tuple[tuple[Atom, Atom | None, int, int], ...]]:
    return [tap.window.axes for tap in taps]


def _find_taps(product: Contract, windows: Mapping[Value, Window]) -> tuple[_Tap, ...] | None:
    """The products of a convolution: windows of one hull, all with the same loop to add up."""
    for at in (0, 1):
        moved = [windows.get(pair[at]) for pair in product.pairs]
        hulls = {None if window is None else window.hull for window in moved}
        if len(hulls) != 1 or None in hulls:
            continue
        hull = hulls.pop()
        is_input = hull is not None and any(
            atom is not None and atom not in pair[1 - at].atoms
            for window, pair in zip(moved, product.pairs, strict=True)
            if window is not None
            for _, atom, _, _ in window.axes
        )
        if is_input and product.over[0][0] in (hull.common if hull else ()):
            return tuple(
                _Tap(pair[1 - at], window)
                for pair, window in zip(product.pairs, moved, strict=True)
                if window is not None
            )
    return None


def pack_rows(
    stores: Sequence[Store], atoms: tuple[Atom, ...], packing: Packing
) -> tuple[list[Store], tuple[Atom, ...], Atom]:
    """Return the stores with the convolution packed, the loops of the nest, and that on the partitions."""
    loop, outer, results = packing.loop, packing.outer, packing.results
    if results == 1:
        change = Substitution(_pack(packing, loop, outer))
        return [change.store(store) for store in stores], atoms, outer
    steps, inside = Atom(f"{loop.name}o", loop.size // results), Atom(f"{loop.name}i", results)
    both = Atom(f"{inside.name}+{outer.name}", results * outer.size)
    packed = _pack(packing, steps, both)
    kept = packed | {product: product for product in packed.values()}
    found, loops, _ = split_rows(stores, atoms, loop, results, kept=kept)
    return pair_loops(found, loops, RowPair(inside, outer, both), kept=kept)


def _hull_load(hull: Hull) -> Load:
    if isinstance(hull.value, Load):
        return hull.value
    load = hull.value.parts[0].value
    assert isinstance(load, Load)
    return load


def _inside(hull: Hull, span: Atom) -> Atom:
    """The loop of the hull's load along an axis."""
    if isinstance(hull.value, Load):
        return span
    return next((own for atom, _, own in hull.value.parts[0].box if atom == span), span)


def _pack(packing: Packing, steps: Atom, result: Atom) -> dict[Value, Value]:
    """The packed products, over stacked rows and channels, with `result` on the partitions."""
    hull, axis, node = packing.hull, packing.axis, packing.products[0][0].node
    window = packing.taps[0].window
    span = window.axes[axis][0]
    border = hull.value.parts[0].box if isinstance(hull.value, Assembled) else ()
    begin = next((start for atom, start, _ in border if atom == span), 0)
    both = Atom(f"{packing.inner.name}+{packing.height}", packing.inner.size * packing.height)
    whole = Atom(f"{steps.name}_steps", steps.size + (packing.passes - 1) * packing.shift)
    rows = StackedRows(
        node,
        load=_hull_load(hull),
        inner=packing.inner,
        rows=_inside(hull, span),
        both=both,
        steps=whole,
        first=packing.starts[0] - begin,
        stride=packing.step * packing.results,
        spacing=packing.spacing,
        base=(hull.value.base or 0.0) if isinstance(hull.value, Assembled) else 0.0,
        box=tuple(one for one in border if one[0] != span),
    )
    parts = []
    for at in range(packing.passes):
        for group, starts in enumerate(packing.places):
            others = [one for place, one in enumerate(window.axes) if place != axis]
            moved = [(one[0], one[1], start, one[3]) for one, start in zip(others, starts, strict=True)]
            windows = [(span, own, start, step) for span, own, start, step in moved if own is not None]
            places = [(span, start) for span, own, start, _ in moved if own is None]
            windows.append((whole, steps, at * packing.shift, 1))
            part = TilePart(node, rows, tuple(places), tuple(windows))
            parts.append((at * len(packing.places) + group, part))
    packed: dict[Value, Value] = {}
    for product, taps in packing.products:
        weights = _band_weights(packing, taps, both, result=result)
        pairs = tuple(
            (TilePart(product.node, weights, ((weights.groups, group),)), part) for group, part in parts
        )
        packed[product] = Contract(product.node, pairs, ((both,),) * len(pairs))
    return packed


def _band_weights(packing: Packing, own: Sequence[_Tap], both: Atom, *, result: Atom) -> BandedWeights:
    taps = {(tap.window.axes[packing.axis][2], _other_starts(tap, packing.axis)): tap.weights for tap in own}
    if len(taps) != len(own):
        raise UntranslatableError("several weights for one window")
    bands = []
    for start in packing.starts:
        places = []
        for step in range(packing.results):
            at = (start - packing.starts[0] + packing.step * step) // packing.spacing
            first, row = divmod(at, packing.height)
            places.append(Band(row, step, first * len(packing.places)))
        bands.append(tuple(places))
    return BandedWeights(
        own[0].weights.node,
        taps=tuple(tuple(taps.get((start, place)) for place in packing.places) for start in packing.starts),
        bands=tuple(bands),
        inner=packing.inner,
        outer=packing.outer,
        both=both,
        result=result,
        groups=Atom(f"{both.name}_groups", packing.passes * len(packing.places)),
    )
