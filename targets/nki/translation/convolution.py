"""Convolutions as few products: rows of the input on top of each other, several rows of results at once.

A convolution is a sum of products, one for each tap, of weights and a shifted window. With few channels each
product uses few rows of the tensor engine. So the partitions hold the channels of several neighbouring rows
(`StackedRows`), and the weights of all taps that join one of these rows with one of a few neighbouring rows
of the result lie in one operand (`BandedWeights`), zero elsewhere. Taps along the other axes are shifted
views.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import gcd

from targets.base import UntranslatableError
from targets.nki.translation.access import Atom
from targets.nki.translation.layout import PARTITIONS
from targets.nki.translation.merge import can_pair, pair_loops, split_rows
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
    """A way to pack a convolution: along which axis, rows of the stack, rows of the result in a product."""

    product: Contract
    taps: tuple[_Tap, ...]
    hull: Hull
    axis: int
    inner: Atom
    outer: Atom
    height: int
    results: int

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
    products = {item for store in stores for item in store.value.walk() if isinstance(item, Contract)}
    if len(products) != 1:
        return []
    (product,) = products
    unrolled = unroll_taps(product)
    taps = _find_taps(unrolled)
    if taps is None:
        return []
    hull = taps[0].window.hull
    if len({tuple(axis[1::2] for axis in tap.window.axes) for tap in taps}) != 1:
        return []  # windows that move differently
    (inner,) = unrolled.over[0]
    outers = {atom for tap in taps for atom in tap.weights.atoms - hull.common - {inner}}
    if len(outers) != 1 or not _are_simple([tap.weights for tap in taps]):
        return []
    (outer,) = outers
    found = [
        packing
        for axis in range(len(taps[0].window.axes))
        for packing in _along_axis(Packing(product, taps, hull, axis, inner, outer, 1, 1), stores)
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
    if not can_pair(stores, loop, packing.outer, without=packing.product):
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


def _find_taps(product: Contract) -> tuple[_Tap, ...] | None:
    """The products of a convolution: windows of one hull, all with the same loop to add up."""
    if len(product.pairs) < 2 or len({*product.over}) != 1 or len(product.over[0]) != 1:
        return None
    sides = [side for pair in product.pairs for side in pair]
    windows = find_windows(sides, frozenset())
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
        packed = _pack(packing, loop, outer)
        change = Substitution({packing.product: packed})
        return [change.store(store) for store in stores], atoms, outer
    steps, inside = Atom(f"{loop.name}o", loop.size // results), Atom(f"{loop.name}i", results)
    both = Atom(f"{inside.name}+{outer.name}", results * outer.size)
    packed = _pack(packing, steps, both)
    kept: dict[Value, Value] = {packing.product: packed, packed: packed}
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


def _pack(packing: Packing, steps: Atom, result: Atom) -> Contract:
    """The packed product: over stacked rows and channels, for these steps and this loop on the partitions."""
    hull, axis, node = packing.hull, packing.axis, packing.product.node
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
    weights = _band_weights(packing, both, result)
    pairs = []
    for at in range(packing.passes):
        for group, starts in enumerate(packing.places):
            others = [one for place, one in enumerate(window.axes) if place != axis]
            moved = [(one[0], one[1], start, one[3]) for one, start in zip(others, starts, strict=True)]
            windows = [(span, own, start, step) for span, own, start, step in moved if own is not None]
            places = [(span, start) for span, own, start, _ in moved if own is None]
            windows.append((whole, steps, at * packing.shift, 1))
            part = TilePart(node, rows, tuple(places), tuple(windows))
            place = (weights.groups, at * len(packing.places) + group)
            pairs.append((TilePart(node, weights, (place,)), part))
    return Contract(node, tuple(pairs), ((both,),) * len(pairs))


def _band_weights(packing: Packing, both: Atom, result: Atom) -> BandedWeights:
    taps = {
        (tap.window.axes[packing.axis][2], _other_starts(tap, packing.axis)): tap.weights
        for tap in packing.taps
    }
    if len(taps) != len(packing.taps):
        raise UntranslatableError("several weights for one window")
    bands = []
    for start in packing.starts:
        own = []
        for step in range(packing.results):
            at = (start - packing.starts[0] + packing.step * step) // packing.spacing
            first, row = divmod(at, packing.height)
            own.append(Band(row, step, first * len(packing.places)))
        bands.append(tuple(own))
    return BandedWeights(
        packing.product.node,
        taps=tuple(tuple(taps.get((start, place)) for place in packing.places) for start in packing.starts),
        bands=tuple(bands),
        inner=packing.inner,
        outer=packing.outer,
        both=both,
        result=result,
        groups=Atom(f"{both.name}_groups", packing.passes * len(packing.places)),
    )
