"""Tensor handles: what `nl.ndarray` returns and indexing narrows. They have shapes, never data."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index as to_int
from typing import Any, NoReturn, Self

from nki_sim.dtypes import DTYPES, TRN3_DTYPES, V4, nki_dtype_name
from nki_sim.forms import Dims, reach_below
from nki_sim.frontend.context import current_recorder, current_target, read_values
from nki_sim.frontend.storage import MemoryRegion, Storage, fail, row_major_dims
from nki_sim.frontend.views import Lookup, View
from nki_sim.operators import OPERATORS

__all__ = [
    "DynamicSlice",
    "Lookup",
    "MemoryRegion",
    "Storage",
    "Tensor",
    "fail",
    "row_major_dims",
    "to_index_operand",
]


class DynamicSlice:
    """`size` positions from a start that is known only when the kernel runs (`nl.ds` of a register)."""

    __slots__ = ("size", "start")

    def __init__(self, start: Any, size: int) -> None:
        self.start = start
        self.size = size


def to_index_operand(value: Any) -> int | View:
    """Return an index as an integer known while tracing, or as the view that holds it at run time.

    Registers and scalars provide it through `as_operand`.
    """
    if isinstance(value, View):
        return value
    convert = getattr(value, "as_operand", None)
    if convert is not None:
        found: int | View = convert()
        return found
    try:
        return to_int(value)
    except TypeError:
        fail("index_type", f"an index is {type(value).__name__}, it must be an integer or a register")


class Tensor(View):
    """A view of a storage as kernels handle it. Indexing takes integers, slices, `...`, None and `nl.ds`."""

    __slots__ = ()

    def __len__(self) -> int:
        return self.dims[0][1]

    def __repr__(self) -> str:
        text = f"<tensor {self.name} {self.shape} {self.storage.dtype} in {self.buffer}>"
        found = read_values(self)
        return text if found is None else f"{text}\n{found}"

    @property
    def data(self) -> Tensor:
        """The tensor itself, as grids of tiles have their tensor under this name."""
        return self

    def numpy(self) -> Any:
        """Return a copy of the current elements, in kernels that run eagerly."""
        found = read_values(self)
        if found is None:
            fail("no_values", f"the values of {self.name} are not known here", "run the kernel eagerly")
        return found

    def __setitem__(self, key: object, value: object) -> None:
        """Copy a tile to this part, by DMA if either is in HBM; ran on Trainium 2 with NKI 0.6."""
        if not isinstance(value, Tensor):
            fail(
                "cannot_assign_to_index", f"{self.name}[...] = {type(value).__name__} is not supported",
                "assign a tile, or write with an instruction: nisa.memset(dst=..., value=...)",
            )  # fmt: skip
        part = self[key]
        by_dma = "hbm" in part.buffer or "hbm" in value.buffer
        operator = OPERATORS["dma_copy" if by_dma else "tensor_copy"]
        current_recorder().emit(operator, {"dst": part, "src": value})

    # -- what is refused -------------------------------------------------------------------------

    def __bool__(self) -> bool:
        """A tensor is true: `if bias:` asks whether an optional one was given, as in compiled kernels."""
        return True

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

    # -- indexing --------------------------------------------------------------------------------

    def __getitem__(self, key: Any) -> Self:
        keys = key if type(key) is tuple else (key,)
        dims = self.dims
        if len(keys) > len(dims) or self.lookup is not None:
            return self._index_by_keys(keys)
        out, offset = [], self.offset
        for axis, item in enumerate(keys):
            step, count = dims[axis]
            if type(item) is slice:
                first, length, stride = self.slice_bounds(item, axis)
                out.append((step * stride, length))
            elif type(item) is int:
                first = item + count if item < 0 else item
                if not 0 <= first < count:
                    self.refuse_out_of_bounds(axis, str(item))
                if axis == 0 and self.storage.on_chip:
                    out.append((step, 1))
            else:
                return self._index_by_keys(keys)
            offset += first * step
        out.extend(dims[len(keys) :])
        return type(self)(self.storage, offset, tuple(out) if len(out) > 1 else self._pad_rank(out))

    def _pad_rank(self, dims: list[tuple[int, int]]) -> Dims:
        """Keep at least two dimensions for tiles and one for tensors in HBM."""
        while len(dims) < 1 + self.storage.on_chip:
            dims.append((1, 1))
        return tuple(dims)

    def _index_by_keys(self, keys: tuple[Any, ...]) -> Self:
        """Apply any index, key by key."""
        view, axis = self, 0
        for item in self._expand_ellipsis(keys):
            if item is None:
                view, axis = view.expand_dim(axis), axis + 1
            elif isinstance(item, slice):
                view, axis = view.slice_axis(axis, *view.slice_bounds(item, axis)), axis + 1
            elif isinstance(item, DynamicSlice):
                view, axis = view.select_range(axis, item.start, item.size), axis + 1
            else:
                view = view.select_range(axis, item, 1)
                if axis == 0 and self.storage.on_chip:
                    axis += 1
                else:
                    view = view.replace_dims(axis, axis + 1)
        return view.with_pattern(view.offset, self._pad_rank(list(view.dims)))

    def _expand_ellipsis(self, keys: tuple[Any, ...]) -> list[Any]:
        """The keys with `...` expanded."""
        taken = sum(1 for item in keys if item is not None and item is not Ellipsis)
        if taken > self.ndim or sum(1 for item in keys if item is Ellipsis) > 1:
            fail("too_many_indices", f"{self.name} has {self.ndim} dimensions, indexed with {len(keys)}")
        out: list[Any] = []
        for item in keys:
            out += [slice(None)] * (self.ndim - taken) if item is Ellipsis else [item]
        return out

    def select_range(self, axis: int, index: Any, count: int) -> Self:
        """Select `count` positions of a dimension from an index, which may be known only at run time."""
        source = to_index_operand(index)
        step, places = self.dims[axis]
        if isinstance(source, int):
            first = source + places if source < 0 else source
            if not 0 <= first <= places - count:
                self.refuse_out_of_bounds(axis, str(source))
            return self.slice_axis(axis, first, count, 1)
        if not 0 < count <= places:
            self.refuse_out_of_bounds(axis, f"of {count} places")
        if step == 0:
            fail(
                "indirect_view", f"dimension {axis} of {self.name} is broadcast, it cannot be indexed by data"
            )
        lookup = self._make_lookup(source, axis, step)
        dims = (*self.dims[:axis], (step, count), *self.dims[axis + 1 :])
        return type(self)(self.storage, self.offset, dims).with_lookup(lookup)

    def _make_lookup(self, source: View, axis: int, step: int) -> Lookup:
        """Return an address that `source`, one integer, moves along a dimension."""
        if self.lookup is not None:
            self.refuse_indirect(axis)
        if step < 0:
            fail("indirect_view", f"dimension {axis} of {self.name} is walked backwards", "index it forwards")
        if axis == 0 and self.storage.on_chip:
            fail(
                "indirect_partition", f"the partition of {self.name} cannot depend on data",
                "index a free dimension, or a tensor in HBM",
            )  # fmt: skip
        if source.size != 1:
            fail(
                "indirect_index_shape",
                f"the index {source.name} of {self.name} has {source.size} elements, not 1",
                "pass a tile of shape (1, 1) or a register; vectors go to vector_offset=",
            )  # fmt: skip
        self.check_index(source)
        return Lookup(source, step)

    def check_index(self, source: View) -> None:
        """Check that indices are integers in SBUF or registers; 64-bit ones only for HBM."""
        wide = source.itemsize > 4 and self.storage.on_chip
        if source.dtype.kind == "float" or source.buffer not in {"sbuf", "register"} or wide:
            fail(
                "indirect_index_type",
                f"the index {source.name} of {self.name} is {source.storage.dtype} in {source.buffer}",
                "indices are 32-bit integers in SBUF or in registers (64-bit ones for tensors in HBM)",
            )  # fmt: skip

    # -- dynamic selection -----------------------------------------------------------------------

    def select(self, dim: int, index: Any) -> Self:
        """Select one position of a dimension and drop it (the partition dimension stays, with size 1).

        The index is an integer, or a (1, 1) tile or register that is read when the kernel runs.
        """
        return self[(*[slice(None)] * self._normalise_axis(dim), index)]

    def vector_select(self, dim: int, vector_offset: Tensor) -> Self:
        """Give each partition its own row of a tensor in HBM: row `vector_offset[p]` at position p."""
        if self._normalise_axis(dim) != 0:
            fail("indirect_view", f"vector_select of dimension {dim} of {self.name}, only 0 is supported")
        dims = ((self.dims[0][0], vector_offset.size), *self.dims[1:])
        return self._gather_rows(self.storage, self.offset, dims, vector_offset, self.dims[0][0])

    def _gather_rows(self, storage: Storage, offset: int, dims: Dims, vector: Any, step: int) -> Self:
        """Give each position of the first dimension its own index."""
        if not isinstance(vector, View) or vector.size != dims[0][1] or vector.shape[0] != dims[0][1]:
            found = vector.shape if isinstance(vector, View) else vector
            fail(
                "indirect_index_shape",
                f"vector_offset of {self.name} is {found}, the first dimension has {dims[0][1]} places",
                "give one index for each place, a tile of shape (places, 1)",
            )  # fmt: skip
        if self.storage.on_chip:
            fail("indirect_partition", f"{self.name} is in {self.buffer}: vector indices are for HBM")
        if self.lookup is not None:
            self.refuse_indirect(0)
        self.check_index(vector)
        return type(self)(storage, offset, ((0, dims[0][1]), *dims[1:])).with_lookup(Lookup(vector, step))

    # -- raw patterns and types ------------------------------------------------------------------

    def ap(  # noqa: PLR0917  the documented order
        self,
        pattern: Sequence[Sequence[int]],
        offset: int | None = None,
        scalar_offset: Any = None,
        vector_offset: Any = None,
        indirect_dim: int = 0,
        dtype: Any = None,
    ) -> Self:
        """View the storage (not this view) through [[step, count], ...] from an element offset.

        Without an offset the pattern begins where this view does. `scalar_offset` moves it along
        `indirect_dim` of this view by a value read at run time; `vector_offset` gives each position of the
        first dimension its own index. With `dtype` the bytes are seen as elements of that type, and pattern
        and offset count those.
        """
        storage = self.storage if dtype is None else self._cast_storage(dtype)
        mine, its = self.storage.itemsize, storage.itemsize
        first = self.offset * mine // its if offset is None else self._to_integer(offset, "offset")
        if vector_offset is not None:
            # Each position has an index instead of a step.
            pattern = [(0, count) if at == 0 else (step, count) for at, (step, count) in enumerate(pattern)]
        dims = _check_pattern(self, storage, pattern, first=first)
        if scalar_offset is None and vector_offset is None:
            return type(self)(storage, first, dims)
        if scalar_offset is not None and vector_offset is not None:
            fail("argument_pair", f".ap of {self.name} takes scalar_offset or vector_offset, not both")
        axis = self._normalise_axis(indirect_dim)
        step, rest = divmod(self.dims[axis][0] * mine, its)
        if rest or step == 0:
            fail(
                "indirect_view",
                f"dimension {axis} of {self.name} does not step by whole {storage.dtype} elements",
            )
        if vector_offset is not None:
            if axis != 0:
                fail(
                    "indirect_view",
                    f"vector_offset along dimension {axis} of {self.name}, only 0 is supported",
                )
            return self._gather_rows(storage, first, dims, vector_offset, step)
        source = to_index_operand(scalar_offset)
        if isinstance(source, int):
            first += source * step
            return type(self)(storage, first, _check_pattern(self, storage, dims, first=first))
        return type(self)(storage, first, dims).with_lookup(self._make_lookup(source, axis, step))

    def _to_integer(self, value: Any, what: str) -> int:
        try:
            return to_int(value)
        except TypeError:
            fail("access_pattern", f"{what} {value!r} of {self.name} is not an integer")

    def _cast_storage(self, dtype: Any) -> Storage:
        name = nki_dtype_name(dtype)
        if name not in DTYPES:
            fail("dtype", f"{dtype!r} is not a supported data type", f"one of {', '.join(DTYPES)}")
        if name in TRN3_DTYPES and current_target().generation < V4:
            fail("dtype", f"nl.{name} is for NeuronCore-v4 (trn3), not for {current_target().name}")
        return self.storage if name == self.storage.dtype else self.storage.cast_to(name)

    def view(self, dtype: Any) -> Self:
        """View the same bytes as elements of another type; the last dimension scales with its size."""
        if self.lookup is not None:
            self.refuse_indirect(0)
        storage = self._cast_storage(dtype)
        mine, its = self.storage.itemsize, storage.itemsize
        step, count = self.dims[-1]
        sizes = [count * mine, self.offset * mine, *(s * mine for s, c in self.dims[:-1] if c > 1)]
        if mine != its and ((step != 1 and count > 1) or any(size % its for size in sizes)):
            fail(
                "reinterpret", f"{self.name} of shape {self.shape} cannot be seen as {storage.dtype}",
                "the last dimension must be contiguous and hold whole elements of the new type",
            )  # fmt: skip
        dims = [(s * mine // its, c) for s, c in self.dims[:-1]]
        return type(self)(
            storage, self.offset * mine // its, (*dims, (1 if mine != its else step, count * mine // its))
        )

    reinterpret_cast = view

    def indirect(self, index: object, num_elem: int | None = None) -> NoReturn:
        """Refuse tensor indirection. Only NeuronCore-v4 has it, and it is not simulated there either."""
        del index, num_elem
        fail(
            "unsupported", f"the simulator does not support {self.name}.indirect(...)",
            "gather with nisa.local_gather or nisa.nc_n_gather, or by DMA with vector_select",
        )  # fmt: skip


def _check_pattern(view: View, storage: Storage, pattern: Any, *, first: int) -> Dims:
    """Check a raw pattern, starting at an element, against the storage."""
    try:
        dims = tuple([(to_int(step), to_int(count)) for step, count in pattern])
    except (TypeError, ValueError):
        fail("access_pattern", f"pattern {pattern!r} of {view.name} is not made of [step, count]")
    if not dims or any(count < 1 for _, count in dims):
        fail("access_pattern", f"pattern {pattern} of {view.name} is empty: counts start at 1")
    if reach_below(dims if not storage.on_chip else dims[:1]):
        fail(
            "access_pattern", f"pattern {pattern} walks {view.name} backwards",
            "free dimensions on chip can be walked backwards; load first, then reverse",
        )  # fmt: skip
    low, last = first - reach_below(dims), first + sum(step * (count - 1) for step, count in dims if step > 0)
    if low < 0 or last >= storage.size:
        fail(
            "tensor_access_out_of_bound", f"pattern {pattern} from {first} reaches from element {low} to "
            f"{last} of {view.name}, which has {storage.size}",
        )  # fmt: skip
    return _check_partitions(view, storage, first, dims=dims) if storage.on_chip else dims


def _check_partitions(view: View, storage: Storage, first: int, *, dims: Dims) -> Dims:
    """Check a pattern on chip: its first pair walks the partitions, the others stay inside one."""
    step, count = dims[0]
    row = storage.row
    if count > 1 and step != row:
        fail(
            "partition_step", f"partition step {step} of {view.name}, it must be {row}",
            "the first pair walks the partitions: its step is the tensor's whole free size",
        )  # fmt: skip
    low = first % row - reach_below(dims[1:])
    last = first % row + sum(step * (count - 1) for step, count in dims[1:] if step > 0)
    if low < 0 or last >= row:
        fail(
            "tensor_access_out_of_bound",
            f"pattern of {view.name} reaches from free element {low} to {last} of {row}",
        )
    return ((row, count), *dims[1:])
