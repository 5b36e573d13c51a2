"""Views of tensors: a storage seen through an access pattern, and the methods that derive views.

A view is an element offset and ((step, count), ...) pairs over a storage. On chip the first pair walks the
partitions and is never dropped. Views never move data; a request that would need to is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from operator import index as to_int
from typing import Any, NoReturn, Self

from nki_sim.dtypes import DTYPES, DType
from nki_sim.forms import Dims
from nki_sim.frontend.kernel_values import KernelValue
from nki_sim.frontend.storage import MemoryRegion, Storage, fail, row_major_dims


@dataclass(frozen=True, slots=True)
class Lookup:
    """A part of an address that depends on data: `source` holds integers, each worth `step` elements.

    With `by_column` they choose columns, several in each partition; else rows, or one place for all.
    """

    source: View
    step: int
    by_column: bool = False


class View(KernelValue):
    """A storage seen through an access pattern; `lookup` is set if the address depends on data."""

    __slots__ = ("_dims", "_lookup", "_offset", "_storage")

    def __init__(self, storage: Storage, offset: int, dims: Dims) -> None:
        self._storage = storage
        self._offset = offset
        self._dims = dims
        self._lookup: Lookup | None = None

    @property
    def _start_position(self) -> tuple[int, int]:
        """The first partition, and the first element's position in its row if banks matter."""
        storage = self._storage
        start = self._offset // storage.row if storage.on_chip else 0
        return start, self._offset % storage.row if storage.banked else 0

    def _with_lookup(self, lookup: Lookup | None) -> Self:
        """Return this new view with an address that depends on data."""
        self._lookup = lookup
        return self

    def _with_pattern(self, offset: int, dims: Dims) -> Self:
        """Return the same storage and lookup through another pattern."""
        if self._lookup is not None and self._lookup.by_column:
            self._refuse_indirect(1)
        return type(self)(self._storage, offset, dims)._with_lookup(self._lookup)

    def _storage_rows(self) -> Self:
        """Everything that the storage on chip holds in this view's partitions."""
        row, count = self._storage.row, self._dims[0][1]
        return type(self)(self._storage, self._offset - self._offset % row, ((row, count), (1, row)))

    # -- what kernels ask ------------------------------------------------------------------------

    @property
    def shape(self) -> tuple[int, ...]:
        """Elements along each dimension."""
        return tuple([count for _, count in self._dims])

    @property
    def _size(self) -> int:
        """Number of elements."""
        return prod(count for _, count in self._dims)

    @property
    def dtype(self) -> DType:
        return DTYPES[self._storage.dtype]

    @property
    def buffer(self) -> MemoryRegion:
        return self._storage.buffer

    @property
    def ndim(self) -> int:
        return len(self._dims)

    @property
    def name(self) -> str:
        return self._storage.site.name

    def _is_contiguous(self) -> bool:
        """Whether the view is dense and row-major; on chip, within each partition."""
        step = 1
        for stride, count in reversed(self._dims[1:] if self._storage.on_chip else self._dims):
            if count != 1 and stride != step:
                return False
            step *= count
        return True

    # -- dimensions ------------------------------------------------------------------------------

    def _normalise_axis(self, dim: Any, *, rank: int | None = None) -> int:
        """Return a dimension counted from the front; negative ones count from the end, as in NumPy."""
        count = self.ndim if rank is None else rank
        try:
            axis = to_int(dim)
        except TypeError:
            fail("axis", f"dimension {dim!r} of {self.name} is not an integer")
        if not -count <= axis < count:
            fail(
                "axis", f"dimension {axis} of {self.name}, there are {count}", "count from 0, or back from -1"
            )
        return axis % count

    def _is_fixed(self, axis: int) -> bool:
        """Whether a dimension cannot be changed: partitions, and the dimension of a vector of indices."""
        return axis == 0 and (self._storage.on_chip or self._has_vector_index())

    def _has_vector_index(self) -> bool:
        """Whether each position of the first dimension has its own index."""
        return (
            self._lookup is not None
            and self._lookup.source._size == self._dims[0][1]
            and self._dims[0][0] == 0
        )

    def _replace_dims(self, first: int, last: int, *dims: tuple[int, int]) -> Self:
        """Replace dimensions first..last (exclusive) by others."""
        return self._with_pattern(self._offset, (*self._dims[:first], *dims, *self._dims[last:]))

    def _permute(self, dims: Sequence[int]) -> Self:
        """Reorder dimensions; the partition dimension stays first."""
        axes = [self._normalise_axis(dim) for dim in dims]
        if sorted(axes) != list(range(self.ndim)) or (self._is_fixed(0) and axes[0] != 0):
            fail("permute", f"dimensions {tuple(dims)} of {self.name}", "keep the partition dimension first")
        return self._with_pattern(self._offset, tuple(self._dims[axis] for axis in axes))

    def _broadcast(self, dim: int, size: int) -> Self:
        """Repeat a dimension of size 1 `size` times without moving data."""
        axis = self._normalise_axis(dim)
        if self._dims[axis][1] != 1 or self._is_fixed(axis):
            fail("broadcast", f"dimension {dim} of {self.name} has {self._dims[axis][1]} elements, not 1")
        if type(size) is not int or size < 1:
            fail("broadcast", f"dimension {dim} of {self.name} repeated {size!r} times")
        return self._replace_dims(axis, axis + 1, (0, size))

    def _broadcast_to(self, shape: Sequence[int]) -> Self:
        """Repeat dimensions of size 1 to the wanted shape."""
        view = self
        if len(shape) != self.ndim:
            fail("broadcast", f"{self.name} of shape {self.shape} to {tuple(shape)}: ranks differ")
        for dim, size in enumerate(shape):
            if view._dims[dim][1] != size:
                view = view._broadcast(dim, size)
        return view

    def _expand_dim(self, dim: int) -> Self:
        """Insert a dimension of size 1 before `dim`."""
        axis = self._normalise_axis(dim, rank=self.ndim + 1)
        if self._is_fixed(axis):
            fail("expand_dim", f"the partition dimension of {self.name} stays first")
        return self._replace_dims(axis, axis, (1, 1))

    def _split_dim(self, dim: int, shape: Sequence[int]) -> Self:
        """Split one dimension into several."""
        axis = self._normalise_axis(dim)
        step, count = self._dims[axis]
        sizes = _infer_shape(tuple(shape), count, self)
        if self._is_fixed(axis) and sizes != (count,):
            fail("reshape", f"the partition dimension of {self.name} cannot be split")
        return self._replace_dims(axis, axis + 1, *row_major_dims(sizes, step=step))

    def _flatten_dims(self, start_dim: int, end_dim: int) -> Self:
        """Merge dimensions start..end (inclusive), which must follow each other in memory."""
        first, last = self._normalise_axis(start_dim), self._normalise_axis(end_dim)
        part = self._dims[first : last + 1]
        if not part:
            fail("reshape", f"dimensions {start_dim}..{end_dim} of {self.name} are in no order")
        if self._is_fixed(first) and last > 0:
            fail("reshape", f"the partition dimension of {self.name} cannot be joined with others")
        for (outer, _), (inner, count) in pairwise(part):
            if outer != inner * count:
                fail("reshape", f"dimensions {start_dim}..{end_dim} of {self.name} are not contiguous")
        joined = (part[-1][0], prod(count for _, count in part))
        return self._replace_dims(first, last + 1, joined)

    def reshape(self, *shape: Any) -> Self:
        """View the same elements in another shape if the layout allows it; partitions keep their number."""
        wanted = tuple(shape[0]) if len(shape) == 1 and isinstance(shape[0], Iterable) else tuple(shape)
        keep = 1 if self._is_fixed(0) else 0
        sizes = _infer_shape(wanted[keep:], prod(count for _, count in self._dims[keep:]), self)
        dims = _reshape_dims(self._dims[keep:], sizes)
        if wanted[:keep] != self.shape[:keep] or dims is None:
            fail(
                "reshape", f"{self.name} of shape {self.shape} cannot become {wanted}",
                "reshape what is contiguous; the partition dimension keeps its size",
            )  # fmt: skip
        return self._with_pattern(self._offset, (*self._dims[:keep], *dims))

    # -- parts -----------------------------------------------------------------------------------

    def _slice_axis(self, axis: int, first: int, count: int, stride: int) -> Self:
        """Select `count` positions of a dimension from `first`, `stride` apart."""
        step, _ = self._dims[axis]
        if self._has_vector_index() and axis == 0:
            self._refuse_indirect(axis)
        dims = (*self._dims[:axis], (step * stride, count), *self._dims[axis + 1 :])
        return self._with_pattern(self._offset + first * step, dims)

    def _slice_bounds(self, item: slice[Any, Any, Any], axis: int) -> tuple[int, int, int]:
        """First position, number of positions and stride of a slice; a slice out of bounds is an error."""
        count = self._dims[axis][1]
        if (
            type(item.start) is type(item.stop) is int
            and item.step is None
            and 0 <= item.start < item.stop <= count
        ):
            return item.start, item.stop - item.start, 1
        first = 0 if item.start is None else item.start
        stop = count if item.stop is None else item.stop
        stride = 1 if item.step is None else item.step
        try:
            first, stop, stride = to_int(first), to_int(stop), to_int(stride)
        except TypeError:
            fail("index_type", f"slice of {self.name} axis {axis} is not made of integers: {item}")
        if first < 0:
            first += count
        if stop < 0:
            stop += count
        if stride < 1:
            fail(
                "access_pattern", f"a slice of {self.name} axis {axis} steps by {stride}",
                "slices step by 1 or more; free dimensions on chip go backwards with .ap: [-1, count]",
            )  # fmt: skip
        if not 0 <= first < stop <= count:
            self._refuse_out_of_bounds(axis, f"{first}:{stop}" + ("" if stride == 1 else f":{stride}"))
        return first, -(-(stop - first) // stride), stride

    def _refuse_out_of_bounds(self, axis: int, found: str) -> NoReturn:
        fail(
            "tensor_access_out_of_bound",
            f"index {found} is outside {self.name} axis {axis} of {self._dims[axis][1]} elements",
            "check the loop bounds and the tile size; slices are not clamped",
        )  # fmt: skip

    def _refuse_indirect(self, axis: int) -> NoReturn:
        fail(
            "indirect_view", f"dimension {axis} of {self.name} is addressed by an index already",
            "select or slice before vector_select, or index once; is_indirect() tells",
        )  # fmt: skip


def _infer_shape(shape: tuple[int, ...], total: int, view: View) -> tuple[int, ...]:
    """Replace at most one -1 in the shape by the missing size."""
    if any(type(size) is not int for size in shape):
        fail("reshape", f"{view.name}: {shape} is not made of integers")
    known = prod(size for size in shape if size != -1)
    sizes = tuple(total // known if size == -1 and known else size for size in shape)
    if prod(sizes) != total or shape.count(-1) > 1 or any(size < 1 for size in sizes):
        fail("reshape", f"{view.name} of shape {view.shape}: {total} elements do not fit {shape}")
    return sizes


def _reshape_dims(dims: Dims, sizes: tuple[int, ...]) -> Dims | None:
    """The pattern of the same elements in another shape; None if no pattern walks them in order."""
    old = [pair for pair in dims if pair[1] != 1]
    new: list[tuple[int, int]] = []
    at = 0
    for size in sizes:
        if size == 1:
            continue
        # Fill `size` from the next old dimensions, merged until they hold enough.
        step, count = old[at]
        while count % size and at + 1 < len(old):
            if step != old[at + 1][0] * old[at + 1][1]:
                return None
            at += 1
            step, count = old[at][0], count * old[at][1]
        if count % size:
            return None
        rest = count // size
        new.append((step * rest, size))
        if rest == 1:
            at += 1
        else:
            old[at] = (step, rest)
    return _insert_unit_dims(new, sizes)


def _insert_unit_dims(dims: list[tuple[int, int]], sizes: tuple[int, ...]) -> Dims:
    """Add the dimensions of size 1 to a pattern; they step over everything inside them."""
    out: list[tuple[int, int]] = []
    for size in reversed(sizes):
        over = out[-1][0] * out[-1][1] if out else 1
        out.append((over, 1) if size == 1 else dims.pop())
    return tuple(reversed(out))
