"""The values of a kernel's expressions, computed by reading the source without running it.

Integers are affine forms over loop iterations, so that addresses stay exact; tensors are views with the box
of elements they touch. The kernel's Python is never executed. Anything that these values cannot express
raises `UnreadableSyntax`, and every rewrite leaves that statement alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import prod

AffineTerms = tuple[tuple[str, int], ...]


class UnreadableSyntax(Exception):  # noqa: N818  it marks a limit of the reader, not a fault of the kernel
    """The reader cannot express a construct; the message says which."""


class UndecidedMinMax(UnreadableSyntax):
    """The result of min or max is one of two values, depending on the iteration.

    `difference` is zero or less in some iterations and zero or more in the others.
    """

    def __init__(self, message: str, difference: Affine) -> None:
        super().__init__(message)
        self.difference = difference


@dataclass(frozen=True, slots=True)
class Affine:
    """const + sum(coefficient * iteration); an iteration counts 0, 1, ... of one loop, named by its id."""

    const: int
    terms: AffineTerms = ()

    @property
    def is_const(self) -> bool:
        return not self.terms

    @property
    def loops(self) -> frozenset[str]:
        """Ids of the loops that the value depends on."""
        return frozenset(name for name, _ in self.terms)

    def coefficient(self, loop: str) -> int:
        return dict(self.terms).get(loop, 0)

    def __add__(self, other: Affine) -> Affine:
        return make_affine(self.const + other.const, _sum_terms(self.terms + other.terms))

    def __sub__(self, other: Affine) -> Affine:
        return self + other.scale_by(-1)

    def scale_by(self, factor: int) -> Affine:
        return make_affine(self.const * factor, {name: value * factor for name, value in self.terms})

    def value_range(self, trips: Mapping[str, int]) -> tuple[int, int]:
        """Smallest and largest value over all iterations."""
        ends = [(value * (trips[name] - 1)) for name, value in self.terms]
        return self.const + sum(min(0, end) for end in ends), self.const + sum(max(0, end) for end in ends)


def make_affine(const: int, terms: Mapping[str, int] | None = None) -> Affine:
    """The canonical form: zero coefficients dropped, terms sorted."""
    return Affine(const, tuple(sorted((name, value) for name, value in (terms or {}).items() if value)))


def _sum_terms(terms: AffineTerms) -> dict[str, int]:
    total: dict[str, int] = {}
    for name, value in terms:
        total[name] = total.get(name, 0) + value
    return total


@dataclass(frozen=True, slots=True)
class LibrarySymbol:
    """A name of the language or of a library, such as `nl.float32` (aliases resolved)."""

    path: str

    @property
    def leaf(self) -> str:
        return self.path.rpartition(".")[2]


@dataclass(frozen=True, slots=True)
class Slice:
    """start : start + size * step : step; None for an open end."""

    start: Affine | None
    size: int | None
    step: int = 1


@dataclass(frozen=True, slots=True)
class Tensor:
    """A declaration: `copies` are the sizes of the Python lists around it, () for a plain tensor.

    `home` holds the ids of the loops around the declaration, outermost first. On chip `shape[0]` is the
    partition dimension.
    """

    id: int
    name: str
    shape: tuple[int, ...]
    dtype: str
    buffer: str
    home: tuple[str, ...] = ()
    copies: tuple[int, ...] = ()

    @property
    def is_on_chip(self) -> bool:
        return self.buffer in {"sbuf", "psum"}

    @property
    def row_elements(self) -> int:
        return prod(self.shape[1:]) if self.is_on_chip else self.shape[-1]


@dataclass(frozen=True, slots=True)
class DimensionRange:
    """`size` elements from `start` along one dimension of a declaration, `step` apart."""

    start: Affine
    size: int
    step: int = 1

    @property
    def extent(self) -> int:
        return (self.size - 1) * self.step + 1


@dataclass(frozen=True, slots=True)
class ViewAxis:
    """A dimension of a view: element step, count, and the declared dimension it walks (None: mixed)."""

    step: int
    count: int
    source: int | None


@dataclass(frozen=True, slots=True)
class TensorView:
    """Part of a tensor: which copy, the box it touches, and the access pattern as axes."""

    tensor: Tensor
    picks: tuple[Affine, ...]
    box: tuple[DimensionRange, ...]
    axes: tuple[ViewAxis, ...]
    plain: bool = field(default=True)
    """Whether only indexing led here (no reshape, permute or broadcast)."""
    within: tuple[Affine, ...] = ()
    """Where the view begins along axes without a declared dimension; the box is whole there."""

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(axis.count for axis in self.axes)

    @property
    def loops(self) -> frozenset[str]:
        """Ids of the loops that the region depends on."""
        starts = [item.start.loops for item in self.box]
        return frozenset().union(*starts, *(place.loops for place in (*self.picks, *self.within)))

    @property
    def is_whole(self) -> bool:
        """Whether the view covers its tensor (one copy of it)."""
        sizes = zip(self.box, self.tensor.shape, strict=True)
        return all(item.size == count and item.start == Affine(0) for item, count in sizes)


Value = Affine | float | str | bool | LibrarySymbol | Slice | TensorView | Tensor | tuple["Value", ...] | None


@lru_cache(maxsize=1000)
def whole_view(tensor: Tensor, picks: tuple[Affine, ...] = ()) -> TensorView:
    """All of a tensor."""
    box = tuple(DimensionRange(Affine(0), count) for count in tensor.shape)
    steps = [prod(tensor.shape[axis + 1 :]) for axis in range(len(tensor.shape))]
    axes = tuple(
        ViewAxis(step, count, i) for i, (step, count) in enumerate(zip(steps, tensor.shape, strict=True))
    )
    return TensorView(tensor, picks, box, axes)


def index_view(view: TensorView, keys: tuple[Value, ...], trips: Mapping[str, int]) -> TensorView:
    """`view[keys]`: integers drop their axis, except the partition axis on chip."""
    if len(keys) > len(view.axes):
        raise UnreadableSyntax(f"{len(keys)} indices on {view.tensor.name} of {len(view.axes)} dimensions")
    box, within = list(view.box), list(view.within)
    axes: list[ViewAxis] = []
    for position, (axis, key) in enumerate(zip(view.axes, keys, strict=False)):
        bounds = _key_bounds(key, axis.count)
        if _is_outside(*bounds, axis.count):
            raise UnreadableSyntax(f"an index beyond the {axis.count} elements of {view.tensor.name}")
        _check_not_negative(view.tensor, bounds[0], trips)
        kept = _narrow_axis(axis, bounds, box, within=within)
        if isinstance(key, Slice) or (position == 0 and view.tensor.is_on_chip):
            axes.append(kept)
    axes.extend(view.axes[len(keys) :])
    return replace(view, box=tuple(box), axes=tuple(axes) or (ViewAxis(1, 1, None),), within=tuple(within))


def pick_view(view: TensorView, key: Value, trips: Mapping[str, int]) -> TensorView:
    """`view[key]` of nested lists of tiles: one more index; the last one gives the whole tile."""
    tensor = view.tensor
    if not isinstance(key, Affine):
        raise UnreadableSyntax(f"an index into the list {tensor.name} that is not an integer")
    start, _, _ = _key_bounds(key, tensor.copies[len(view.picks)])
    _check_not_negative(tensor, start, trips)
    picks = (*view.picks, start)
    return (
        whole_view(tensor, picks) if len(picks) == len(tensor.copies) else TensorView(tensor, picks, (), ())
    )


def _check_not_negative(tensor: Tensor, start: Affine, trips: Mapping[str, int]) -> None:
    """Refuse a negative index: Python counts it from the end, unlike the arithmetic here.

    Raises:
        UnreadableSyntax: the index is negative in some iterations.
    """
    if start.value_range(trips)[0] < 0:
        raise UnreadableSyntax(f"an index of {tensor.name} that is negative in some iterations")


def _is_outside(start: Affine, size: int, step: int, count: int) -> bool:
    """Whether a window that is the same in every iteration reaches beyond `count` elements."""
    return start.is_const and not 0 <= start.const <= count - 1 - (size - 1) * step


def _narrow_axis(
    axis: ViewAxis, bounds: tuple[Affine, int, int], box: list[DimensionRange], *, within: list[Affine]
) -> ViewAxis:
    """Narrow `box` along the axis' declared dimension; an axis without one leaves the box whole."""
    start, size, step = bounds
    if axis.source is None:
        within.append(start.scale_by(axis.step))
    else:
        old = box[axis.source]
        box[axis.source] = DimensionRange(old.start + start.scale_by(old.step), size, old.step * step)
    return ViewAxis(axis.step * step, size, axis.source)


def _key_bounds(key: Value, count: int) -> tuple[Affine, int, int]:
    if isinstance(key, Affine):
        return (key if not key.is_const or key.const >= 0 else Affine(count + key.const)), 1, 1
    if isinstance(key, Slice):
        start = key.start or Affine(0)
        if start.is_const and start.const < 0:
            start = Affine(count + start.const)
        left = count - start.const if start.is_const else None
        size = key.size if key.size is not None else left
        if size is None:
            raise UnreadableSyntax("an open slice from a loop-dependent start")
        return start, size, key.step
    raise UnreadableSyntax("an index that is neither an integer nor a slice")


def permute_view(view: TensorView, order: tuple[int, ...]) -> TensorView:
    """The axes in another order."""
    if sorted(order) != list(range(len(view.axes))):
        raise UnreadableSyntax(f"permute({order}) of {len(view.axes)} dimensions")
    return replace(view, axes=tuple(view.axes[i] for i in order), plain=False)


def split_axis(view: TensorView, dim: int, shape: tuple[int, ...]) -> TensorView:
    """`reshape_dim`: one axis as several; the box stays, the new axes walk no single dimension."""
    axis = view.axes[dim]
    if prod(shape) != axis.count:
        raise UnreadableSyntax(f"reshape_dim of {axis.count} elements into {shape}")
    parts = [ViewAxis(axis.step * prod(shape[i + 1 :]), size, None) for i, size in enumerate(shape)]
    return replace(view, axes=(*view.axes[:dim], *parts, *view.axes[dim + 1 :]), plain=False)


def broadcast_view(view: TensorView, dim: int, size: int) -> TensorView:
    """Expand an axis of one element to `size` elements, all of them the same."""
    if not 0 <= dim < len(view.axes) or view.axes[dim].count != 1:
        raise UnreadableSyntax(f"broadcast of dimension {dim} of {view.tensor.name}")
    repeated = ViewAxis(0, size, None)
    return replace(view, axes=(*view.axes[:dim], repeated, *view.axes[dim + 1 :]), plain=False)


def reshape_view(view: TensorView, shape: tuple[int, ...]) -> TensorView:
    """`reshape` of a whole tensor; the partitions of a tile stay its first axis."""
    if not view.is_whole or prod(shape) != prod(view.shape):
        raise UnreadableSyntax(f"reshape of part of {view.tensor.name}")
    rows = view.tensor.is_on_chip and view.plain and shape[0] == view.tensor.shape[0]
    axes = tuple(
        ViewAxis(prod(shape[i + 1 :]), size, 0 if rows and i == 0 else None) for i, size in enumerate(shape)
    )
    return replace(view, axes=axes, plain=False)
