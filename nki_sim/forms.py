"""What a program is made of, free of NumPy so that the jailed tracer starts fast.

A *form* is everything about an instruction that repeats from one loop iteration to the next: operator,
engine, access patterns, data types, parameters. An instruction is then only (form, source line, and per
operand a tensor and an offset), which keeps programs of 100 000 instructions small and lets rules, costs
and numerics be worked out once per form. A *site* is the same for tensors: the place in the source that
declares them; every execution of the declaration is one more tensor of that site.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from nki_sim.dtypes import DTYPES

HBM_BUFFERS = frozenset({"hbm", "private_hbm", "shared_hbm"})
BUFFERS = HBM_BUFFERS | {"sbuf", "psum", "register"}
DIALECTS = ("nki", "neuronxcc")

MAX_NAME = 500
"""Characters in the name of a tensor or kernel."""

MAX_DEPTH = 64
"""Iterations inside each other whose order is left open."""

Dims = tuple[tuple[int, int], ...]
ParamValue = bool | int | float | str | tuple[int, ...]
Params = tuple[tuple[str, ParamValue], ...]


@dataclass(frozen=True, slots=True)
class ArraySpec:
    """Shape (elements) and data type name of one kernel argument."""

    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, slots=True)
class Site:
    """A declaration in the source: `line` is 1-based, 0 for kernel arguments.

    On chip, `shape[0]` is the partition dimension. `address` is (first partition, byte in each partition) of
    a tile that the kernel places itself, None where the compiler does. A register has shape (1, 1).
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    buffer: str
    line: int
    address: tuple[int, int] | None = None

    @property
    def size(self) -> int:
        """Elements of one tensor."""
        return prod(self.shape)

    @property
    def row(self) -> int:
        """Elements between two rows: a partition's free size on chip, the last dimension in HBM."""
        return self.shape[-1] if self.buffer in HBM_BUFFERS else prod(self.shape[1:])

    @property
    def partition_bytes(self) -> int:
        """Bytes one tensor of this site takes in each partition (on chip)."""
        return prod(self.shape[1:]) * DTYPES[self.dtype].itemsize


@dataclass(frozen=True, slots=True)
class Operand:
    """One operand: `dims` is the access pattern ((step, count), ...) in elements of the flat storage.

    On chip the first pair is the partition dimension with step `row`; `start` is the first partition. Others
    may step backwards there: the pattern begins at its first place, not at its lowest element.
    `column` is the first place's in its row, in PSUM only, where the bank it falls in matters.

    `index_step` is not 0 where the address depends on data: the operand that follows, in the role
    `{role}_index`, holds one integer that moves the whole pattern by that many times `index_step` elements,
    or one for each place of the first dimension, whose own step is then 0.
    """

    role: str
    dims: Dims
    dtype: str
    buffer: str
    row: int
    start: int
    column: int = 0
    index_step: int = 0

    @property
    def partitions(self) -> int:
        return self.dims[0][1]

    @property
    def free(self) -> int:
        """Elements per partition."""
        return prod(count for _, count in self.dims[1:])

    @property
    def elements(self) -> int:
        return prod(count for _, count in self.dims)

    @property
    def nbytes(self) -> int:
        return self.elements * DTYPES[self.dtype].itemsize

    @property
    def itemsize(self) -> int:
        return DTYPES[self.dtype].itemsize

    @property
    def ascending_dims(self) -> Dims:
        """The same elements walked upwards, from `reach_below` elements before the first place."""
        return make_ascending(self.dims)

    @property
    def reach_below(self) -> int:
        """Elements from the lowest one touched to that of the first place."""
        return reach_below(self.dims)

    @property
    def extent(self) -> int:
        """Elements from the lowest to one past the highest touched."""
        return 1 + sum(abs(step) * (count - 1) for step, count in self.dims)

    @property
    def free_extent(self) -> int:
        """Elements from the lowest to one past the highest touched in each partition."""
        return 1 + sum(abs(step) * (count - 1) for step, count in self.dims[1:])

    @property
    def is_scattered(self) -> bool:
        """Whether each place of the first dimension has an index of its own."""
        return bool(self.index_step) and self.dims[0][0] == 0

    @property
    def in_hbm(self) -> bool:
        return self.buffer in HBM_BUFFERS


def index_role(role: str) -> str:
    """The role of the operand that holds the indices of `role`."""
    return f"{role}_index"


@dataclass(frozen=True, slots=True)
class Form:
    """An instruction without its source line, tensors and offsets.

    `hints` tell a compiler that rewrites kernels what does not show in a result: `("engine", "open")` where
    the kernel leaves the engine to it, `("moving", n)` where a mask left less than the n moving elements
    that a product was written for.
    """

    op: str
    engine: str
    operands: tuple[Operand, ...]
    params: Params
    hints: Params = ()

    def operand(self, role: str) -> Operand | None:
        """The operand in that role, None when the instruction has none."""
        return next((item for item in self.operands if item.role == role), None)

    @property
    def tiles(self) -> tuple[Operand, ...]:
        """The operands in memory: neither registers and other state of engines, nor indices of others."""
        indices = {index_role(item.role) for item in self.operands if item.index_step}
        return tuple(item for item in self.operands if item.buffer != "register" and item.role not in indices)

    def param(self, name: str, default: ParamValue | None = None) -> ParamValue | None:
        """The parameter of that name."""
        return next((value for key, value in self.params if key == name), default)

    def hint(self, name: str) -> ParamValue | None:
        """The hint of that name, None when there is none."""
        return next((value for key, value in self.hints if key == name), None)

    def __getitem__(self, role: str) -> Operand:
        found = self.operand(role)
        if found is None:
            raise KeyError(role)
        return found


def make_ascending(dims: Dims) -> Dims:
    """The pattern with its backward steps turned round; it begins `reach_below` elements earlier."""
    return tuple((abs(step), count) for step, count in dims)


def reach_below(dims: Dims) -> int:
    """How many elements before its first place a pattern reaches."""
    return -sum(step * (count - 1) for step, count in dims if step < 0)


def merge_dims(dims: Dims) -> Dims:
    """The same pattern with neighbouring dimensions joined where one walk covers both."""
    out: list[tuple[int, int]] = []
    for step, count in dims:
        if count == 1:
            continue
        if out and out[-1][0] == step * count:
            out[-1] = (step, out[-1][1] * count)
        else:
            out.append((step, count))
    return tuple(out)


def run_elements(dims: Dims) -> int:
    """Elements in the longest contiguous run of a pattern (its innermost merged dimension)."""
    joined = merge_dims(dims)
    if not joined or joined[-1][0] != 1:
        return 1
    return joined[-1][1]
