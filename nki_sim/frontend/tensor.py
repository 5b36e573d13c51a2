"""Tensor handles: what `nl.ndarray` returns and indexing narrows. They have shapes, never data.

A handle is a storage plus an access pattern: an element offset and ((step, count), ...) pairs. On chip
the first pair walks the partitions and is never dropped.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from math import prod
from operator import index as to_int
from typing import Any, NoReturn

from nki_sim.dtypes import DTYPES, DType
from nki_sim.errors import KernelError
from nki_sim.forms import HBM_BUFFERS, Dims, Site


class Storage:
    """One allocated tensor; `kind` interns (row, dtype, buffer).

    `started` has a bit per element that a matmul wrote.
    """

    __slots__ = ("banked", "id", "kind", "on_chip", "row", "site", "started")

    def __init__(self, number: int, site: Site, kind: int) -> None:
        self.id = number
        self.site = site
        self.kind = kind
        self.row = site.row
        self.on_chip = site.buffer not in HBM_BUFFERS
        self.banked = site.buffer == "psum"
        self.started = 0


def fail(code: str, message: str, hint: str = "") -> NoReturn:
    """Refuse what the kernel did; the recorder adds the line."""
    raise KernelError(code, message, hint=hint)


class Tensor:
    """A view of a storage. Indexing takes integers, slices and `nl.ds`; out of bounds is an error."""

    __slots__ = ("dims", "offset", "sig", "storage")

    def __init__(self, storage: Storage, offset: int, dims: Dims) -> None:
        self.storage = storage
        self.offset = offset
        self.dims = dims
        start = offset // storage.row if storage.on_chip else 0
        column = offset % storage.row if storage.banked else 0
        self.sig = (storage.kind, dims, start, column)

    # -- what kernels ask ------------------------------------------------------------------------

    @property
    def shape(self) -> tuple[int, ...]:
        """Elements along each dimension."""
        return tuple([count for _, count in self.dims])

    @property
    def dtype(self) -> DType:
        return DTYPES[self.storage.site.dtype]

    @property
    def buffer(self) -> str:
        return self.storage.site.buffer

    @property
    def ndim(self) -> int:
        return len(self.dims)

    @property
    def name(self) -> str:
        return self.storage.site.name

    def __len__(self) -> int:
        return self.dims[0][1]

    def __repr__(self) -> str:
        return f"<tensor {self.name} {self.shape} {self.storage.site.dtype} in {self.buffer}>"

    def is_contiguous(self) -> bool:
        """Whether the free elements of each row follow each other without gaps."""
        step = 1
        for stride, count in reversed(self.dims[1:] if self.storage.on_chip else self.dims):
            if count != 1 and stride != step:
                return False
            step *= count
        return True

    def get_pattern(self) -> list[list[int]]:
        """The access pattern as [[step, count], ...]."""
        return [list(pair) for pair in self.dims]

    # -- what is refused -------------------------------------------------------------------------

    def __setitem__(self, key: object, value: object) -> NoReturn:
        fail(
            "cannot_assign_to_index", f"{self.name}[...] = ... is not supported",
            "write with an instruction: nisa.tensor_copy(dst=..., src=...)",
        )  # fmt: skip

    def __bool__(self) -> NoReturn:  # noqa: PLE0304  it always refuses
        fail(
            "ambiguous_tensor_truth_value", f"the truth value of {self.name} is not known while tracing",
            "conditions may depend on shapes, not on data",
        )  # fmt: skip

    def _no_arithmetic(self, *_: object) -> NoReturn:
        fail(
            "operator_on_tensor", f"operators on {self.name} are not supported",
            "use an instruction, for example nisa.tensor_tensor",
        )  # fmt: skip

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _no_arithmetic
    __truediv__ = __rtruediv__ = __matmul__ = __pow__ = __neg__ = _no_arithmetic
    __iadd__ = __isub__ = __imul__ = __lt__ = __le__ = __gt__ = __ge__ = _no_arithmetic

    def __iter__(self) -> NoReturn:
        fail("iterate_tensor", f"{self.name} cannot be iterated", "loop over range(n) and index")

    # -- indexing and views ----------------------------------------------------------------------

    def __getitem__(self, key: Any) -> Tensor:
        keys = key if type(key) is tuple else (key,)
        if any(item is Ellipsis for item in keys):
            keys = self._expand(keys)
        dims = self.dims
        if len(keys) > len(dims):
            fail("too_many_indices", f"{len(keys)} indices on {self.name} of shape {self.shape}")
        offset = self.offset
        out: list[tuple[int, int]] = []
        for axis, item in enumerate(keys):
            step, count = dims[axis]
            if type(item) is slice:
                first, stride, length = self._slice(item, axis, count)
                out.append((step * stride, length))
            else:
                first = self._index(item, axis, count)
                if axis == 0 and self.storage.on_chip:
                    out.append((step, 1))
            offset += first * step
        out.extend(dims[len(keys) :])
        return Tensor(self.storage, offset, tuple(out) or ((1, 1),))

    def _expand(self, keys: tuple[Any, ...]) -> tuple[Any, ...]:
        at = next(i for i, item in enumerate(keys) if item is Ellipsis)
        fill = len(self.dims) - len(keys) + 1
        return (*keys[:at], *([slice(None)] * fill), *keys[at + 1 :])

    def _slice(self, item: slice, axis: int, count: int) -> tuple[int, int, int]:
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
        if not (0 <= first < stop <= count and stride > 0):
            self._out_of_bounds(axis, f"{item.start}:{item.stop}:{item.step}", count)
        return first, stride, -(-(stop - first) // stride)

    def _index(self, item: Any, axis: int, count: int) -> int:
        try:
            first = to_int(item)
        except TypeError:
            fail("index_type", f"{self.name} axis {axis} indexed with {type(item).__name__}")
        if first < 0:
            first += count
        if not 0 <= first < count:
            self._out_of_bounds(axis, str(item), count)
        return first

    def _out_of_bounds(self, axis: int, found: str, count: int) -> NoReturn:
        fail(
            "tensor_access_out_of_bound",
            f"index {found} is outside {self.name} axis {axis} of {count} elements",
            "check the loop bounds and the tile size; slices are not clamped",
        )  # fmt: skip

    def ap(self, pattern: Sequence[Sequence[int]], offset: int = 0, **unknown: object) -> Tensor:
        """The storage, not this view, addressed by [[step, count], ...] from an element offset."""
        if unknown:
            fail("unsupported", f"not supported yet: .ap({', '.join(sorted(unknown))}=)")
        dims = tuple((to_int(step), to_int(count)) for step, count in pattern)
        first = to_int(offset)
        last = first + sum(step * (count - 1) for step, count in dims)
        if not dims or any(step < 0 or count < 1 for step, count in dims):
            fail("access_pattern", f"pattern {pattern} of {self.name}: steps >= 0 and counts >= 1")
        if first < 0 or last >= self.storage.site.size:
            fail(
                "tensor_access_out_of_bound",
                f"pattern {pattern} from {offset} ends at element {last} of {self.name}, which has "
                f"{self.storage.site.size}",
            )  # fmt: skip
        if self.storage.on_chip:
            self._check_partition_step(first, dims)
        return Tensor(self.storage, first, dims)

    def _check_partition_step(self, first: int, dims: Dims) -> None:
        step, count = dims[0]
        row = self.storage.row
        if count > 1 and step != row:
            fail(
                "partition_step", f"partition step {step} of {self.name}, it must be {row}",
                "the first pair walks the partitions: its step is the tensor's whole free size",
            )  # fmt: skip
        last = first % row + sum(step * (count - 1) for step, count in dims[1:])
        if last >= row:
            fail("tensor_access_out_of_bound", f"pattern of {self.name} ends at free element {last} of {row}")

    def _axis(self, dim: Any, *, rank: int | None = None) -> int:
        """A dimension counted from the front; negative ones count from the end, as in NumPy."""
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

    def _replaced(self, first: int, last: int, *dims: tuple[int, int]) -> Tensor:
        """The view with others in the place of dimensions first..last (exclusive)."""
        return Tensor(self.storage, self.offset, (*self.dims[:first], *dims, *self.dims[last:]))

    def slice(self, dim: int, start: int, end: int, step: int = 1) -> Tensor:
        """Elements start..end of one dimension."""
        return self[(*[slice(None)] * self._axis(dim), slice(start, end, step))]

    def select(self, dim: int, index: int) -> Tensor:
        """One element of a dimension; the dimension goes (the partition dimension stays, of size 1)."""
        return self[(*[slice(None)] * self._axis(dim), index)]

    def permute(self, dims: Sequence[int]) -> Tensor:
        """Dimensions in another order; the partition dimension stays first."""
        axes = [self._axis(dim) for dim in dims]
        if sorted(axes) != list(range(self.ndim)) or (self.storage.on_chip and axes[0] != 0):
            fail("permute", f"dimensions {tuple(dims)} of {self.name}", "keep the partition dimension first")
        return Tensor(self.storage, self.offset, tuple(self.dims[axis] for axis in axes))

    def broadcast(self, dim: int, num: int) -> Tensor:
        """A dimension of size 1 repeated `num` times without moving data."""
        axis = self._axis(dim)
        if self.dims[axis][1] != 1 or (axis == 0 and self.storage.on_chip):
            fail("broadcast", f"dimension {dim} of {self.name} has {self.dims[axis][1]} elements, not 1")
        if type(num) is not int or num < 1:
            fail("broadcast", f"dimension {dim} of {self.name} repeated {num!r} times")
        return self._replaced(axis, axis + 1, (0, num))

    def expand_dim(self, dim: int) -> Tensor:
        """A new dimension of size 1 before `dim`."""
        axis = self._axis(dim, rank=self.ndim + 1)
        if axis == 0 and self.storage.on_chip:
            fail("expand_dim", f"the partition dimension of {self.name} stays first")
        return self._replaced(axis, axis, (1, 1))

    def squeeze_dim(self, dim: int) -> Tensor:
        """Without a dimension of size 1."""
        axis = self._axis(dim)
        if self.dims[axis][1] != 1 or (axis == 0 and self.storage.on_chip) or self.ndim == 1:
            fail("squeeze_dim", f"dimension {dim} of {self.name} cannot go")
        return self._replaced(axis, axis + 1)

    def reshape_dim(self, dim: int, shape: Sequence[int]) -> Tensor:
        """One dimension split in several."""
        axis = self._axis(dim)
        step, count = self.dims[axis]
        sizes = _infer(tuple(shape), count, self)
        if axis == 0 and self.storage.on_chip and sizes != (count,):
            fail("reshape", f"the partition dimension of {self.name} cannot be split")
        return self._replaced(axis, axis + 1, *row_major(sizes, step=step))

    def flatten_dims(self, start_dim: int, end_dim: int) -> Tensor:
        """Dimensions start..end (inclusive) as one; they must follow each other in memory."""
        first, last = self._axis(start_dim), self._axis(end_dim)
        part = self.dims[first : last + 1]
        if not part:
            fail("reshape", f"dimensions {start_dim}..{end_dim} of {self.name} are in no order")
        if first == 0 and last > 0 and self.storage.on_chip:
            fail("reshape", f"the partition dimension of {self.name} cannot be joined with others")
        for (outer, _), (inner, count) in pairwise(part):
            if outer != inner * count:
                fail("reshape", f"dimensions {start_dim}..{end_dim} of {self.name} are not contiguous")
        joined = (part[-1][0], prod(count for _, count in part))
        return self._replaced(first, last + 1, joined)

    def reshape(self, *shape: Any) -> Tensor:
        """The same elements in another shape; contiguous views only, the partition size stays on chip."""
        wanted = tuple(shape[0]) if len(shape) == 1 and isinstance(shape[0], Iterable) else tuple(shape)
        keep = 1 if self.storage.on_chip else 0
        free = prod(count for _, count in self.dims[keep:])
        sizes = _infer(wanted[keep:], free, self)
        if wanted[:keep] != self.shape[:keep] or not self.is_contiguous():
            fail(
                "reshape", f"{self.name} of shape {self.shape} cannot become {wanted}",
                "reshape whole tiles; the partition dimension keeps its size",
            )  # fmt: skip
        return Tensor(self.storage, self.offset, (*self.dims[:keep], *row_major(sizes)))

    def broadcast_to(self, shape: Sequence[int]) -> Tensor:
        """Dimensions of size 1 repeated to the wanted shape."""
        view = self
        if len(shape) != self.ndim:
            fail("broadcast", f"{self.name} of shape {self.shape} to {tuple(shape)}: ranks differ")
        for dim, size in enumerate(shape):
            if view.dims[dim][1] != size:
                view = view.broadcast(dim, size)
        return view


def _infer(shape: tuple[int, ...], total: int, tensor: Tensor) -> tuple[int, ...]:
    """The shape with at most one -1 worked out."""
    known = prod(size for size in shape if size != -1)
    sizes = tuple(total // known if size == -1 and known else size for size in shape)
    if prod(sizes) != total or shape.count(-1) > 1 or any(size < 1 for size in sizes):
        fail("reshape", f"{tensor.name} of shape {tensor.shape}: {total} elements do not fit {shape}")
    return sizes


def row_major(sizes: tuple[int, ...], *, step: int = 1) -> Dims:
    """The pattern of a whole tensor of these sizes, its innermost elements `step` apart."""
    dims = []
    for size in reversed(sizes):
        dims.append((step, size))
        step *= size
    return tuple(reversed(dims))
