"""Legacy tiles: tensor views that operators return, with assignment and arithmetic operators.

To write an operator of this namespace:

- Return `Tile`s; `as_tile` makes one from a plain view.
- Pass operands through `to_operand`, which refuses anything that is not a tile (a tensor with block
  dimensions, an index).
- Turn `mask=` into boxes with `mask_boxes(mask, shape)`: None without a mask, else the parts of the tile that
  remain. If the list is empty, skip the instruction. Clip operands by indexing them with slices.
- A tile may reach beyond its tensor as long as a mask removes that part. Its `reach` is then not None, and an
  instruction that uses it reports the error.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from math import prod
from typing import Any, NoReturn, Self

from nki_sim.forms import Dims
from nki_sim.frontend.legacy import access_patterns
from nki_sim.frontend.legacy.access_patterns import OutOfBoundsAccess
from nki_sim.frontend.legacy.index import Index
from nki_sim.frontend.legacy.masks import Box, Mask
from nki_sim.frontend.legacy.recorder import legacy_recorder
from nki_sim.frontend.tensor import Storage, Tensor, fail, row_major_dims
from nki_sim.operators import OPERATORS

# Instructions that move elements and do not convert them; another type costs a copy.
_MOVING = frozenset({
    "dma_transpose", "local_gather", "nc_n_gather", "nc_stream_shuffle", "nc_transpose",
})  # fmt: skip
_FLOAT = frozenset({"float32", "bfloat16", "float16", "float8_e4m3", "float8_e5m2"})


class Tile(Tensor):
    """A view of a storage. Basic indexing (integers, slices), affine indexing, assignment, arithmetic."""

    __slots__ = ("_fresh", "_kept", "_patterns", "_reach")

    def __init__(
        self,
        storage: Storage,
        offset: int,
        dims: Dims,
        reach: OutOfBoundsAccess | None = None,
        patterns: dict[Any, Any] | None = None,
    ) -> None:
        # Like the base class, but without a call: making tiles takes most of a kernel's time.
        self._storage = storage
        self._offset = offset
        self._dims = dims
        self._lookup = None
        self._reach = reach
        # Patterns of index expressions on tiles of these dimensions, shared by the blocks of a tensor.
        self._patterns = patterns
        # Whether this is a whole tile that an operator returned, not a view of something declared.
        self._fresh = False
        # The boxes that a masked operation filled; None for the whole tile.
        self._kept: list[Box] | None = None

    # -- indexing and assignment -----------------------------------------------------------------

    def __getitem__(self, key: Any) -> Tile:
        if type(key) is not tuple and isinstance(key, Mask):
            return self._apply_mask(key)
        offset, dims, lookup, reach = access_patterns.resolve_access(self, key)
        made = Tile(self._storage, offset, dims, reach)
        made._lookup = lookup
        return made

    def _with_pattern(self, offset: int, dims: Dims) -> Self:
        """Return the same storage and lookup through another pattern."""
        return type(self)(self._storage, offset, dims, self._reach)._with_lookup(self._lookup)

    def _apply_mask(self, mask: Mask) -> Tile:
        """Return the part that a mask keeps, which must be one box, as for operands of matmuls."""
        boxes = list(mask._boxes(self.shape))
        if len(boxes) != 1:
            fail(
                "unsupported_expression_in_mask", f"a mask on {self.name} keeps {len(boxes)} boxes, not one",
                "compare one axis with a number",
            )  # fmt: skip
        return self[tuple(slice(*span) for span in boxes[0])]

    def __setitem__(self, key: Any, value: Any) -> None:
        unshared = sys.getrefcount(value) <= ASSIGNED
        assign_value(self[key], value, unshared=unshared)

    def __iadd__(self, value: Any) -> Self:  # type: ignore[override,misc]
        unshared = sys.getrefcount(value) <= _ADDED
        if unshared and _is_product(value) and _try_accumulate(self, value):
            return self
        kept = getattr(value, "_kept", None)
        for box in [()] if kept is None else kept:
            part = tuple(slice(*span) for span in box)
            assign_value(
                self[part],
                _language_function("add")(self[part], value[part] if part else value),
                unshared=True,
            )
        return self

    # -- shapes ----------------------------------------------------------------------------------

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return self._storage.itemsize

    def reshape(self, *shape: Any, **named: Any) -> Tile:
        """View the same elements in another shape, also given as `shape=`."""
        return super().reshape(*(named.values() or shape))

    def broadcast_to(self, shape: Sequence[int], **_: object) -> Tile:
        """Repeat dimensions of size 1; filling partitions takes an instruction, as in `nl.broadcast_to`."""
        if len(shape) == self.ndim and (shape[0] == self._dims[0][1] or not self._storage.on_chip):
            return self._broadcast_to(shape)
        return as_tile(_language_function("broadcast_to")(self, shape=tuple(shape)))

    def expand_dims(self, axis: int) -> Tile:
        """Insert a dimension of size 1."""
        return self._expand_dim(axis)

    def astype(self, dtype: Any) -> Tile:
        """Copy the tile to another type."""
        return as_tile(_language_function("copy")(self, dtype=dtype))

    def assert_shape(self, shape: Sequence[int]) -> Tile:
        """Return the tile if it has that shape; else refuse it."""
        if self.shape != tuple(shape):
            fail("annotation_shape_mismatch", f"{self.name} has shape {self.shape}, not {tuple(shape)}")
        return self

    # -- arithmetic ------------------------------------------------------------------------------

    def __bool__(self) -> NoReturn:  # noqa: PLE0304  it always refuses
        if prod(self.shape) == 1:
            fail(
                "dynamic_control_flow_not_supported", f"control flow depends on the value of {self.name}",
                "conditions may depend on shapes and loop variables, not on data",
            )  # fmt: skip
        fail(
            "ambiguous_tensor_truth_value", f"the truth value of {self.name} is not known while tracing",
            "conditions may depend on shapes, not on data",
        )  # fmt: skip


def _language_function(name: str) -> Any:
    from nki_sim.frontend.legacy import language

    return getattr(language, name)


def _binary_method(name: str, *, swapped: bool = False) -> Any:
    def compute(self: Tile, other: Any) -> Any:
        if name == "add" and isinstance(other, Index):
            return other + self
        left, right = (other, self) if swapped else (self, other)
        return _language_function(name)(left, right)

    return compute


def _update_method(name: str) -> Any:
    def compute(self: Tile, other: Any) -> Tile:
        assign_value(self, _language_function(name)(self, other), unshared=True)
        return self

    return compute


def _unary_method(name: str) -> Any:
    def compute(self: Tile) -> Any:
        return _language_function(name)(self)

    return compute


_BINARY = {
    "add": "add", "sub": "subtract", "mul": "multiply", "truediv": "divide", "pow": "power", "mod": "mod",
    "and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor", "lshift": "left_shift",
    "rshift": "right_shift",
}  # fmt: skip
_COMPARE = {
    "lt": "less", "le": "less_equal", "gt": "greater", "ge": "greater_equal", "eq": "equal",
    "ne": "not_equal",
}  # fmt: skip

for _sign, _name in _BINARY.items():
    setattr(Tile, f"__{_sign}__", _binary_method(_name))
    setattr(Tile, f"__r{_sign}__", _binary_method(_name, swapped=True))
    if _sign != "add":
        setattr(Tile, f"__i{_sign}__", _update_method(_name))
for _sign, _name in _COMPARE.items():
    setattr(Tile, f"__{_sign}__", _binary_method(_name))
for _sign, _name in {"neg": "negative", "invert": "invert", "abs": "abs"}.items():
    setattr(Tile, f"__{_sign}__", _unary_method(_name))
Tile.__hash__ = object.__hash__  # type: ignore[method-assign]


def as_tile(view: Tensor) -> Tile:
    """Return the view as a legacy tile; on chip, tiles have a partition and a free dimension."""
    if type(view) is Tile:
        return view
    dims = view._dims if len(view._dims) > 1 or not view._storage.on_chip else (*view._dims, (1, 1))
    made = Tile(view._storage, view._offset, dims)
    made._lookup = view._lookup
    made._fresh = True
    return made


def to_operand(value: Any) -> Any:
    """Return a value as an instruction takes it: a tile for a tensor, numbers and constants unchanged."""
    return value if type(value) is Tile or not hasattr(value, "_tile") else value._tile()


def refuse_outside(values: Sequence[Any]) -> None:
    """Refuse tiles that reach beyond their tensors, of a call without a mask that removes that part."""
    for value in values:
        if type(value) is Tile and value._reach is not None:
            value._reach.refuse(value.name)


def mask_boxes(mask: Any, shape: Sequence[int]) -> list[Box] | None:
    """Return the boxes that a mask keeps of a tile of that shape; None without a mask."""
    if mask is None or mask is True:
        return None
    if isinstance(mask, Mask):
        boxes = list(mask._boxes(shape))
        whole = tuple((0, count) for count in shape)
        return None if boxes == [whole] else boxes
    if isinstance(mask, int) or getattr(mask, "shape", None) == ():
        return None if mask else []
    return fail(
        "unsupported_expression_in_mask", f"mask={mask!r} is not made of comparisons of index expressions"
    )


# -- assignment ----------------------------------------------------------------------------------


def assign_value(goal: Tile, value: Any, *, unshared: bool) -> None:
    """Perform `goal[...] = value`: redirect the last instruction, or copy, or fill."""
    if type(value) is not Tile:
        if hasattr(value, "_reduce_into"):
            value._reduce_into(goal)
            return
        value = to_operand(value)
    if isinstance(value, Tensor):
        _assign_tile(goal, value, unshared=unshared)
    else:
        _assign_number(goal, value)


def _assign_tile(goal: Tile, value: Tensor, *, unshared: bool) -> None:
    if value._storage is goal._storage and value._offset == goal._offset and value._dims == goal._dims:
        return
    _check_memories(goal, value)
    shape = value.shape
    same = goal.shape == shape
    view = goal if same else conform_shape(goal, shape)
    same = same or view.shape == shape
    fresh, kept = (value._fresh, value._kept) if isinstance(value, Tile) else (False, None)
    alone = unshared and fresh and (kept is None or len(kept) == 1)
    if alone and same and _takes_type(view, value):
        changes = {"accumulate": False} if _is_product(value) else {}
        if legacy_recorder().redirect_result(value, view, **changes):
            return
    if not same:
        value = value._broadcast_to(view.shape)
    for box in [()] if kept is None else kept:
        part = tuple(slice(*span) for span in box)
        legacy_recorder().emit(OPERATORS["tensor_copy"], {"dst": view[part], "src": value[part]})


def _assign_number(goal: Tile, value: Any) -> None:
    number = getattr(value, "item", lambda: value)()
    if not isinstance(number, int | float):
        fail(
            "argument_type", f"{type(value).__name__} assigned to {goal.name}",
            "assign a tile or a number; nisa.iota makes a tile of an index expression",
        )  # fmt: skip
    if not goal._storage.on_chip:
        _refuse_hbm(goal)
    if goal._offset == 0 and goal._dims == row_major_dims(goal._storage.site.shape):
        recorder = legacy_recorder()
        recorder.flush()
        recorder.fill_lazily(
            goal._storage, float(number), recorder.current_line(), recorder.current_iteration
        )
    else:
        legacy_recorder().emit(OPERATORS["memset"], {"dst": goal, "value": float(number)})


def _check_memories(goal: Tensor, value: Tensor) -> None:
    if not goal._storage.on_chip:
        _refuse_hbm(goal)
    if not value._storage.on_chip:
        fail(
            "unsupported_memory", f"{value.name} is in {value.buffer}, it cannot be assigned to {goal.name}",
            "load it: nl.load(...)",
        )  # fmt: skip


def _refuse_hbm(goal: Tensor) -> NoReturn:
    fail("unsupported_memory", f"{goal.name} is in {goal.buffer}", "write it with nl.store(...)")


def _takes_type(goal: Tensor, value: Tensor) -> bool:
    """Whether the instruction may write the goal's type directly.

    It may if it would have written float32, in which it computes. It also may if its result has the type of
    an operand, which is the default when the kernel gives no type. Instructions that move elements may not.
    """
    made, wanted = value._storage.dtype, goal._storage.dtype
    if made != wanted and legacy_recorder().last_operator in _MOVING:
        return False
    return (
        made == wanted or (made == "float32" and wanted in _FLOAT) or legacy_recorder().inherits_type(value)
    )


def _try_accumulate(goal: Tile, value: Tensor) -> bool:
    """Whether the matmul that made the value could accumulate directly into the goal."""
    recorder = legacy_recorder()
    # Which elements have products already decides between overwriting and accumulating.
    return recorder.can_accumulate(goal) and recorder.redirect_result(
        value, conform_shape(goal, value.shape), accumulate=None
    )


def _is_product(value: Any) -> bool:
    return (
        isinstance(value, Tile)
        and value._fresh
        and value._storage.banked
        and legacy_recorder().last_operator == "nc_matmul"
    )


def conform_shape(view: Tile, shape: Sequence[int]) -> Tile:
    """Insert or drop dimensions of size 1 so that the view matches a shape.

    Raises:
        KernelError: the elements do not correspond, and the value cannot be broadcast to the view.
    """
    if view.shape == tuple(shape):
        return view
    moving = [pair for pair in view._dims if pair[1] != 1]
    if [count for _, count in moving] == [count for count in shape if count != 1]:
        pairs = iter(moving)
        dims = [next(pairs) if count != 1 else (1, 1) for count in shape]
        if view._storage.on_chip and dims[0][1] == 1:
            dims[0] = (view._storage.row, 1)
        return view._with_pattern(view._offset, tuple(dims))
    if len(shape) == view.ndim and all(a in {b, 1} for a, b in zip(shape, view.shape, strict=True)):
        return view
    return fail(
        "store_dst_shape_smaller",
        f"a tile of shape {tuple(shape)} does not fit {view.name}{list(view.shape)}",
        "both sides of an assignment have the same shape",
    )  # fmt: skip


class _ReferenceProbe:
    """Counts the references to a value that only the current statement holds: the interpreter's own."""

    seen = 0

    def __setitem__(self, key: Any, value: Any) -> None:
        self.seen = sys.getrefcount(value)

    def __iadd__(self, value: Any) -> Any:
        self.seen = sys.getrefcount(value)
        return self


def _count_temporary_references() -> tuple[int, int]:
    probe = _ReferenceProbe()
    probe[0] = object()
    assigned = probe.seen
    probe += object()
    return assigned, probe.seen


ASSIGNED, _ADDED = _count_temporary_references()
