"""Tensor handles: what `nl.ndarray` returns and indexing narrows. They have shapes, never data."""

from __future__ import annotations

from operator import index as to_int
from typing import Any, NoReturn, Self

from nki_sim.dtypes import DTYPES, TRN3_DTYPES, V4, nki_dtype_name
from nki_sim.forms import Dims
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

    __slots__ = ("_size", "_start")

    def __init__(self, start: Any, size: int) -> None:
        self._start = start
        self._size = size


def to_index_operand(value: Any) -> int | View:
    """Return an index as an integer known while tracing, or as the view that holds it at run time.

    Registers and scalars provide it through `as_operand`.
    """
    if isinstance(value, View):
        return value
    convert = getattr(value, "_as_operand", None)
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
        return self._dims[0][1]

    def _describe(self) -> str:
        text = f"<tensor {self.name} {self.shape} {self._storage.dtype} in {self.buffer}>"
        found = read_values(self)
        return text if found is None else f"{text}\n{found}"

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
        dims = self._dims
        if len(keys) > len(dims) or self._lookup is not None:
            return self._index_by_keys(keys)
        out, offset = [], self._offset
        for axis, item in enumerate(keys):
            step, count = dims[axis]
            if type(item) is slice:
                first, length, stride = self._slice_bounds(item, axis)
                out.append((step * stride, length))
            elif type(item) is int:
                first = item + count if item < 0 else item
                if not 0 <= first < count:
                    self._refuse_out_of_bounds(axis, str(item))
                if axis == 0 and self._storage.on_chip:
                    out.append((step, 1))
            else:
                return self._index_by_keys(keys)
            offset += first * step
        out.extend(dims[len(keys) :])
        return type(self)(self._storage, offset, tuple(out) if len(out) > 1 else self._pad_rank(out))

    def _pad_rank(self, dims: list[tuple[int, int]]) -> Dims:
        """Keep at least two dimensions for tiles and one for tensors in HBM."""
        while len(dims) < 1 + self._storage.on_chip:
            dims.append((1, 1))
        return tuple(dims)

    def _index_by_keys(self, keys: tuple[Any, ...]) -> Self:
        """Apply any index, key by key."""
        view, axis = self, 0
        for item in self._expand_ellipsis(keys):
            if item is None:
                view, axis = view._expand_dim(axis), axis + 1
            elif isinstance(item, slice):
                view, axis = view._slice_axis(axis, *view._slice_bounds(item, axis)), axis + 1
            elif isinstance(item, DynamicSlice):
                view, axis = view._select_range(axis, item._start, item._size), axis + 1
            else:
                view = view._select_range(axis, item, 1)
                if axis == 0 and self._storage.on_chip:
                    axis += 1
                else:
                    view = view._replace_dims(axis, axis + 1)
        return view._with_pattern(view._offset, self._pad_rank(list(view._dims)))

    def _expand_ellipsis(self, keys: tuple[Any, ...]) -> list[Any]:
        """The keys with `...` expanded."""
        taken = sum(1 for item in keys if item is not None and item is not Ellipsis)
        if taken > self.ndim or sum(1 for item in keys if item is Ellipsis) > 1:
            fail("too_many_indices", f"{self.name} has {self.ndim} dimensions, indexed with {len(keys)}")
        out: list[Any] = []
        for item in keys:
            out += [slice(None)] * (self.ndim - taken) if item is Ellipsis else [item]
        return out

    def _select_range(self, axis: int, index: Any, count: int) -> Self:
        """Select `count` positions of a dimension from an index, which may be known only at run time."""
        source = to_index_operand(index)
        step, places = self._dims[axis]
        if isinstance(source, int):
            first = source + places if source < 0 else source
            if not 0 <= first <= places - count:
                self._refuse_out_of_bounds(axis, str(source))
            return self._slice_axis(axis, first, count, 1)
        if not 0 < count <= places:
            self._refuse_out_of_bounds(axis, f"of {count} places")
        if step == 0:
            fail(
                "indirect_view", f"dimension {axis} of {self.name} is broadcast, it cannot be indexed by data"
            )
        lookup = self._make_lookup(source, axis, step)
        dims = (*self._dims[:axis], (step, count), *self._dims[axis + 1 :])
        return type(self)(self._storage, self._offset, dims)._with_lookup(lookup)

    def _make_lookup(self, source: View, axis: int, step: int) -> Lookup:
        """Return an address that `source`, one integer, moves along a dimension."""
        if self._lookup is not None:
            self._refuse_indirect(axis)
        if step < 0:
            fail("indirect_view", f"dimension {axis} of {self.name} is walked backwards", "index it forwards")
        if axis == 0 and self._storage.on_chip:
            fail(
                "indirect_partition", f"the partition of {self.name} cannot depend on data",
                "index a free dimension, or a tensor in HBM",
            )  # fmt: skip
        if source._size != 1:
            fail(
                "indirect_index_shape",
                f"the index {source.name} of {self.name} has {source._size} elements, not 1",
                "pass a tile of shape (1, 1) or a register; vectors go to vector_offset=",
            )  # fmt: skip
        self._check_index(source)
        return Lookup(source, step)

    def _check_index(self, source: View) -> None:
        """Check that indices are integers in SBUF or registers; 64-bit ones only for HBM."""
        wide = source._storage.itemsize > 4 and self._storage.on_chip
        if source.dtype.kind == "float" or source.buffer not in {"sbuf", "register"} or wide:
            fail(
                "indirect_index_type",
                f"the index {source.name} of {self.name} is {source._storage.dtype} in {source.buffer}",
                "indices are 32-bit integers in SBUF or in registers (64-bit ones for tensors in HBM)",
            )  # fmt: skip

    # -- dynamic selection -----------------------------------------------------------------------

    def _gather_rows(self, storage: Storage, offset: int, dims: Dims, vector: Any, step: int) -> Self:
        """Give each position of the first dimension its own index."""
        if not isinstance(vector, View) or vector._size != dims[0][1] or vector.shape[0] != dims[0][1]:
            found = vector.shape if isinstance(vector, View) else vector
            fail(
                "indirect_index_shape",
                f"vector_offset of {self.name} is {found}, the first dimension has {dims[0][1]} places",
                "give one index for each place, a tile of shape (places, 1)",
            )  # fmt: skip
        if self._storage.on_chip:
            fail("indirect_partition", f"{self.name} is in {self.buffer}: vector indices are for HBM")
        if self._lookup is not None:
            self._refuse_indirect(0)
        self._check_index(vector)
        return type(self)(storage, offset, ((0, dims[0][1]), *dims[1:]))._with_lookup(Lookup(vector, step))

    # -- types --------------------------------------------------------------------------------

    def _cast_storage(self, dtype: Any) -> Storage:
        name = nki_dtype_name(dtype)
        if name not in DTYPES:
            fail("dtype", f"{dtype!r} is not a supported data type", f"one of {', '.join(DTYPES)}")
        if name in TRN3_DTYPES and current_target().generation < V4:
            fail("dtype", f"nl.{name} is for NeuronCore-v4 (trn3), not for {current_target().name}")
        return self._storage if name == self._storage.dtype else self._storage.cast_to(name)

    def view(self, dtype: Any) -> Self:
        """View the same bytes as elements of another type; the last dimension scales with its size."""
        if self._lookup is not None:
            self._refuse_indirect(0)
        storage = self._cast_storage(dtype)
        mine, its = self._storage.itemsize, storage.itemsize
        step, count = self._dims[-1]
        sizes = [count * mine, self._offset * mine, *(s * mine for s, c in self._dims[:-1] if c > 1)]
        if mine != its and ((step != 1 and count > 1) or any(size % its for size in sizes)):
            fail(
                "reinterpret", f"{self.name} of shape {self.shape} cannot be seen as {storage.dtype}",
                "the last dimension must be contiguous and hold whole elements of the new type",
            )  # fmt: skip
        dims = [(s * mine // its, c) for s, c in self._dims[:-1]]
        return type(self)(
            storage, self._offset * mine // its, (*dims, (1 if mine != its else step, count * mine // its))
        )
