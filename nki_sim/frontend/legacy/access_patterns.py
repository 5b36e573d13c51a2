"""Turns index keys into access patterns: which elements `tensor[key]` means.

Basic keys (integers, slices, None, Ellipsis) give views as in NumPy; on chip the partition dimension stays.
Affine keys (integers and index expressions) give one dimension per axis of the shape they broadcast to. The
two cannot be mixed. Results that depend only on dimensions and linear parts are cached.
"""

from __future__ import annotations

from functools import lru_cache
from operator import index as to_int
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from nki_sim.forms import Dims, reach_below
from nki_sim.frontend.legacy.divided_index import DividedIndex, refuse_division, resolve_divided
from nki_sim.frontend.legacy.index import (
    INTEGERS,
    Index,
    LinearForm,
    ShiftedIndex,
    broadcast_shapes,
    intern_linear,
)
from nki_sim.frontend.tensor import DynamicSlice, Lookup, fail
from nki_sim.frontend.views import View

if TYPE_CHECKING:
    from nki_sim.frontend.legacy.tiles import Tile

ResolvedAccess = tuple[int, Dims, Lookup | None, "OutOfBoundsAccess | None"]
"""Offset, dimensions, data-dependent part, and where the access leaves the tensor."""

_MATRIX = 2
"""Keys of an access to a matrix."""


class OutOfBoundsAccess:
    """Where a pattern leaves its tensor: dimensions as (size, first index, step per axis), none off chip.

    A mask that removes the outside part leaves a pattern that is not out of bounds.
    """

    __slots__ = ("counts", "spans")

    def __init__(
        self, counts: tuple[int, ...], spans: tuple[tuple[int, int, int, tuple[int, ...]], ...]
    ) -> None:
        self.counts = counts
        self.spans = spans

    def clip_axes(self, starts: list[int], counts: tuple[int, ...]) -> OutOfBoundsAccess | None:
        """Clip each axis to `counts` positions from `starts`; None if nothing is out of bounds any more."""
        spans = tuple(
            (dim, size, first + sum(k * at for k, at in zip(steps, starts, strict=True)), steps)
            for dim, size, first, steps in self.spans
        )
        made = OutOfBoundsAccess(counts, spans)
        return made if any(True for _ in made.outside_dims()) else None

    def outside_dims(self) -> Any:
        """(dimension, size, lowest index, highest index) of each dimension that is still out of bounds."""
        for dim, size, first, steps in self.spans:
            ends = [k * (count - 1) for k, count in zip(steps, self.counts, strict=True)]
            low, high = first + sum(min(0, end) for end in ends), first + sum(max(0, end) for end in ends)
            if low < 0 or high >= size:
                yield dim, size, low, high

    def refuse(self, name: str) -> NoReturn:
        dim, size, low, high = next(self.outside_dims())
        fail(
            "tensor_access_out_of_bound",
            f"indices {low}..{high} of dimension {dim} of {name} are outside its {size} elements",
            "pass mask= to the instruction where the last tile is smaller, or check the loop bounds",
        )  # fmt: skip


def resolve_access(tile: Tile, key: Any) -> ResolvedAccess:
    """Return offset, dimensions, lookup and out-of-bounds part of `tile[key]`."""
    keys = key if type(key) is tuple else tuple(key) if isinstance(key, tuple) else (key,)
    if len(keys) == _MATRIX and type(keys[0]) is Index is type(keys[1]) and tile._patterns:
        # The common case: a cached pattern that stays inside its tensor.
        (one, two), known = keys, tile._patterns.get((keys[0]._linear, keys[1]._linear))
        if known is not None and tile._reach is None:
            (step, low, high), (stride, least, most) = known.spans
            if low <= one._constant <= high and least <= two._constant <= most:
                return tile._offset + step * one._constant + stride * two._constant, known.dims, None, None
    linears: list[LinearForm | None] = []
    constants: list[int] = []
    for item in keys:
        kind = type(item)
        if kind is Index:
            linears.append(item._linear)
            constants.append(item._constant)
        elif kind in INTEGERS:
            linears.append(None)
            constants.append(item)
        else:
            return _resolve_general(tile, keys)
    pattern = _cached_pattern(tile, tuple(linears))
    if pattern is None:
        return _resolve_general(tile, keys)
    offset, left = tile._offset, tile._reach is not None
    for constant, (step, low, high) in zip(constants, pattern.spans, strict=True):
        offset += step * constant
        if not low <= constant <= high:
            left = True
    return offset, pattern.dims, None, _build_reach(tile, pattern, constants) if left else None


class AffinePattern(NamedTuple):
    """The pattern of an affine key; per dimension (step, lowest, highest constant that stays inside)."""

    dims: Dims
    spans: tuple[tuple[int, int, int], ...]
    over: tuple[tuple[int, ...], ...]
    """Per dimension the step of its index along each axis."""


def _cached_pattern(tile: Tile, linears: tuple[LinearForm | None, ...]) -> AffinePattern | None:
    """The pattern of index expressions on a tile; None for keys of only integers, and for short keys."""
    if tile._patterns is None:
        tile._patterns = {}
    found = tile._patterns.get(linears)
    if found is None:
        if len(linears) != len(tile._dims) or all(item is None for item in linears):
            return None
        storage = tile._storage
        found = _affine_pattern(tile._dims, linears, storage.on_chip, storage.row, storage.site.name)
        tile._patterns[linears] = found
    return found


def _build_reach(tile: Tile, pattern: AffinePattern, constants: list[int]) -> OutOfBoundsAccess:
    if tile._reach is not None:
        tile._reach.refuse(tile.name)
    spans = [
        (dim, count, constant, over)
        for dim, ((_, count), constant, over) in enumerate(
            zip(tile._dims, constants, pattern.over, strict=True)
        )
    ]
    return OutOfBoundsAccess(tuple(count for _, count in pattern.dims), tuple(spans))


@lru_cache(maxsize=4096)
def _affine_pattern(
    dims: Dims, linears: tuple[LinearForm | None, ...], on_chip: bool, row: int, name: str
) -> AffinePattern:
    shape: tuple[int, ...] = ()
    for item in linears:
        if item is not None:
            shape = broadcast_shapes(shape, item.shape)
    if len(shape) < 2:
        fail(
            "1d_arange_not_supported", f"indexing {name} with a 1D arange is not supported",
            "give it two axes: nl.arange(n)[:, None], or use slices",
        )  # fmt: skip
    over = tuple((0,) * len(shape) if item is None else item.coefficients_over(shape) for item in linears)
    made = []
    for axis, count in enumerate(shape):
        step = sum(stride * steps[axis] for (stride, _), steps in zip(dims, over, strict=True))
        made.append((step if count > 1 else 1, count))
    if on_chip:
        made[0] = _partition_axis(made[0], over, row, name=name)
    if not on_chip and reach_below(tuple(made)):
        fail(
            "access_pattern", f"{name} is walked backwards",
            "free dimensions on chip can be walked backwards; load first, then reverse",
        )  # fmt: skip
    spans = tuple(
        (stride, -item.low if item else 0, count - 1 - (item.high if item else 0))
        for (stride, count), item in zip(dims, linears, strict=True)
    )
    return AffinePattern(tuple(made), spans, over)


def _partition_axis(
    first: tuple[int, int], steps: tuple[tuple[int, ...], ...], row: int, *, name: str
) -> tuple[int, int]:
    """Check the partition axis: it must be the tile's first axis and walk neighbouring partitions."""
    own, others = steps[0], steps[1:]
    if any(own[1:]) or any(over[0] for over in others):
        fail(
            "failed_to_infer_tile_from_local_tensor",
            f"the first axis of the index of {name} must walk its partitions, and no other axis may",
            "nl.arange(n)[:, None] for the partition dimension, [None, :] for the others",
        )  # fmt: skip
    if first[1] > 1 and own[0] != 1:
        fail(
            "partition_step", f"partitions of {name} indexed with step {own[0]}",
            "an access walks neighbouring partitions; strides are for the free dimensions",
        )  # fmt: skip
    return row, first[1]


def _resolve_divided(tile: Tile, keys: tuple[Any, ...]) -> ResolvedAccess:
    """Resolve a key with quotients and remainders of index expressions."""
    if not all(isinstance(item, Index | DividedIndex) or hasattr(item, "__index__") for item in keys):
        fail(
            "unsupported_mixing_basic_advanced_tensor_indexing",
            f"quotients of index expressions are mixed with other keys of {tile.name}",
            "use nl.arange and integers for all dimensions",
        )  # fmt: skip
    if tile._reach is not None or tile._lookup is not None:
        refuse_division(f"a part of {tile.name} that a mask or an index of data changes")
    plain = tuple(to_int(item) if hasattr(item, "__index__") else item for item in keys)
    start, dims = resolve_divided(tile.name, tile._dims, plain)
    if tile._storage.on_chip:
        own = keys[0]
        if not isinstance(own, Index) or any(own._linear.coefficients_over(own.shape)[1:]):
            refuse_division(f"the partition index of {tile.name}")
        if dims[0][1] > 1 and dims[0][0] != tile._storage.row:
            fail("partition_step", f"partitions of {tile.name} are walked by {dims[0][0]} elements")
        dims = ((tile._storage.row, dims[0][1]), *dims[1:])
    return tile._offset + start, dims, None, None


# -- basic keys ----------------------------------------------------------------------------------


def _resolve_general(tile: Tile, keys: tuple[Any, ...]) -> ResolvedAccess:
    """Resolve keys with other items than integers and index expressions, or fewer items than dimensions."""
    if any(type(item) is DividedIndex for item in keys):
        return _resolve_divided(tile, keys)
    if any(type(item) not in INTEGERS and hasattr(item, "__index__") for item in keys):
        return resolve_access(
            tile, tuple(to_int(item) if hasattr(item, "__index__") else item for item in keys)
        )
    if len(keys) > len(tile._dims) and not any(item is None or item is Ellipsis for item in keys):
        fail(
            "too_many_indices", f"{len(keys)} indices on {tile.name}, which has {len(tile._dims)} dimensions"
        )
    looked_up = any(isinstance(item, View) for item in keys) and any(type(item) is Index for item in keys)
    if looked_up or any(type(item) is ShiftedIndex for item in keys):
        return resolve_gather(tile, keys)
    if any(type(item) is Index for item in keys):
        fail(
            "unsupported_mixing_basic_advanced_tensor_indexing",
            f"slices and index expressions are mixed in one key of {tile.name}",
            "use nl.arange for every dimension, or slices for all",
        )  # fmt: skip
    return _resolve_basic(tile, keys)


def _resolve_basic(tile: Tile, keys: tuple[Any, ...]) -> ResolvedAccess:
    keys = expand_keys(keys, len(tile._dims), tile.name)
    offset, at = tile._offset, 0
    dims: list[tuple[int, int]] = []
    starts: list[int] = []
    lookup = tile._lookup
    past: list[tuple[int, int, int, int]] = []
    for item in keys:
        if item is None:
            dims.append((1, 1))
            continue
        step, count = tile._dims[at]
        known = item
        if isinstance(item, View | DynamicSlice):
            lookup = _scalar_lookup(tile, item, at)
            known = slice(0, item._size) if isinstance(item, DynamicSlice) else 0
        first, stride, length, kept = _key_span(known, count, at, tile=tile)
        if at == 0 and lookup is not None and lookup.source._size > 1:
            source: Any = lookup.source
            lookup = Lookup(source[first : first + length], lookup.step)
        starts.append(first)
        offset += first * step
        if kept or (at == 0 and tile._storage.on_chip):
            if first + stride * (length - 1) >= count:
                past.append((at, count, first, len(dims)))
            dims.append((step * stride, length))
        at += 1
    if len(dims) < 2 and tile._storage.on_chip:
        dims.append((1, 1))
    reach = _clip_reach(tile, starts, dims)
    if past and reach is not None:
        reach.refuse(tile.name)
    return offset, tuple(dims) or ((1, 1),), lookup, _slice_reach(keys, past, dims) if past else reach


def _slice_reach(
    keys: tuple[Any, ...], past: list[tuple[int, int, int, int]], dims: list[tuple[int, int]]
) -> OutOfBoundsAccess:
    """Where slices leave their tensor: (dimension, size, first index, axis of the result) of each."""
    spans = []
    indexed = [item for item in keys if item is not None]
    for dim, size, first, axis in past:
        stride = indexed[dim].step or 1
        spans.append((dim, size, first, tuple(stride * (at == axis) for at in range(len(dims)))))
    return OutOfBoundsAccess(tuple(count for _, count in dims), tuple(spans))


def _scalar_lookup(tile: Tile, item: Any, axis: int) -> Lookup:
    """An address that one integer, read at run time, moves along a dimension."""
    source = item._start if isinstance(item, DynamicSlice) else item
    if tile._lookup is not None or source._size != 1:
        fail(
            "indirect_indices_free_dim",
            f"dimension {axis} of {tile.name} indexed with {source.name} of shape {source.shape}",
            "one index of one element; vectors of indices go with nl.arange for the other dimensions",
        )  # fmt: skip
    if axis == 0 and tile._storage.on_chip:
        fail("indirect_partition", f"the partition of {tile.name} cannot depend on data")
    tile._check_index(source)
    return Lookup(source, tile._dims[axis][0])


def resolve_gather(tile: Tile, keys: tuple[Any, ...]) -> ResolvedAccess:
    """Resolve a key of index expressions in which one dimension is looked up in a tile of integers.

    One integer moves the whole pattern; a column of integers gives each position of the first axis its own.
    """
    axes = [axis for axis, item in enumerate(keys) if isinstance(item, View | ShiftedIndex)]
    source, axis = keys[axes[0]], axes[0]
    fixed: int | Index = 0
    if isinstance(source, ShiftedIndex):
        source, fixed = source._source, source._index
    if len(axes) != 1 or tile._lookup is not None:
        fail(
            "indirect_indices_free_dim", f"{len(axes)} dimensions of {tile.name} are looked up in tiles",
            "look one dimension up at a time",
        )  # fmt: skip
    if source._size == 1:
        lookup = _scalar_lookup(tile, source, axis)
        offset, dims, _, reach = resolve_access(tile, (*keys[:axis], fixed, *keys[axis + 1 :]))
        return offset, dims, lookup, reach
    tile._check_index(source)
    count = source.shape[0]
    over = Index(intern_linear((count, 1), (0, 0)), 0)
    offset, dims, _, reach = resolve_access(tile, (*keys[:axis], over, *keys[axis + 1 :]))
    moving = any(
        type(i) is Index and i._linear.coefficients_over(source.shape)[0] for i in keys if i is not source
    )
    if tile._storage.on_chip or source._size != count or dims[0] != (0, count) or moving or reach is not None:
        fail(
            "indirect_indices_free_dim", f"{tile.name} is indexed with {source.name} of shape {source.shape}",
            "load and store look up the first axis alone: t[idx[i_p, 0], i_f], i_p = nl.arange(n)[:, None]",
        )  # fmt: skip
    return offset, ((0, count), *dims[1:]), Lookup(source, tile._dims[axis][0]), None


def _clip_reach(tile: Tile, starts: list[int], dims: list[tuple[int, int]]) -> OutOfBoundsAccess | None:
    if tile._reach is None:
        return None
    return tile._reach.clip_axes(starts, tuple(count for _, count in dims))


def _key_span(item: Any, count: int, axis: int, *, tile: Tile) -> tuple[int, int, int, bool]:
    """First index, step, number of indices, and whether the dimension stays."""
    if isinstance(item, slice):
        first, stop, stride = 0 if item.start is None else item.start, item.stop, item.step or 1
        first, stop = _to_integer(first, tile), count if stop is None else _to_integer(stop, tile)
        first, stop = first + count if first < 0 else first, stop + count if stop < 0 else stop
        if stride < 1:
            fail(
                "access_pattern", f"a slice of {tile.name} axis {axis} steps by {stride}",
                "slices step by 1 or more; index a tile on chip with n - 1 - nl.arange(n)[None, :]",
            )  # fmt: skip
        # The end may lie past the edge where a mask removes that part; an instruction checks it.
        if 0 <= first < stop and first < count:
            return first, stride, -(-(stop - first) // stride), True
    else:
        first = _to_integer(item, tile)
        first += count if first < 0 else 0
        if 0 <= first < count:
            return first, 1, 1, False
    return fail(
        "tensor_access_out_of_bound",
        f"index {item} is outside dimension {axis} of {tile.name}, which has {count}",
        "check the loop bounds and the tile size; slices are not clamped",
    )  # fmt: skip


def _to_integer(item: Any, tile: Tile) -> int:
    try:
        return to_int(item)
    except TypeError:
        fail("index_type", f"{tile.name} indexed with {type(item).__name__}", "integers, slices or nl.arange")


def expand_keys(keys: tuple[Any, ...], rank: int, name: str) -> tuple[Any, ...]:
    """Expand the key to one entry per dimension: Ellipsis and missing entries become whole slices."""
    used = sum(1 for item in keys if item is not None and item is not Ellipsis)
    if used > rank:
        fail("too_many_indices", f"{used} indices on {name}, which has {rank} dimensions")
    spare = [slice(None)] * (rank - used)
    for at, item in enumerate(keys):
        if item is Ellipsis:
            return (*keys[:at], *spare, *keys[at + 1 :])
    return (*keys, *spare)
