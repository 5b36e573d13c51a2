"""Building blocks of a program: sites, operands and forms. Free of NumPy so that the tracer starts fast.

A *form* holds everything about an instruction that repeats from one loop iteration to the next: operator,
engine, access patterns, data types, parameters. An instruction is then only a form, a source line, and a
tensor and an offset per operand. This keeps programs of 100 000 instructions small, and rules, costs and
numerics are worked out once per form. A *site* does the same for tensors: it is the place in the source that
declares them, and each execution of the declaration makes one more tensor of that site.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from nki_sim.dtypes import DTYPES

HBM_BUFFERS = frozenset({"hbm", "private_hbm", "shared_hbm"})
BUFFERS = HBM_BUFFERS | {"sbuf", "psum", "register"}
DIALECTS = ("nki", "neuronxcc")
PRODUCTS = frozenset({"nc_matmul", "nc_matmul_mx"})
"""The instructions that multiply matrices and add them up in PSUM."""

_TILE_RANK = 2
"""Dimensions of a tile that is taken by columns: partitions and columns."""

MAX_NAME = 500
"""Characters in the name of a tensor or kernel."""

MAX_DEPTH = 64
"""Limit on nested iterations whose order is open."""

Dims = tuple[tuple[int, int], ...]
ParamValue = bool | int | float | str | tuple[int, ...]
Params = tuple[tuple[str, ParamValue], ...]


@dataclass(frozen=True, slots=True)
class ArraySpec:
    """Shape (in elements) and data type name of one kernel argument."""

    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, slots=True)
class Site:
    """A declaration in the source: `line` is 1-based, 0 for kernel arguments.

    On chip, `shape[0]` is the partition dimension. `address` is (first partition, byte in each partition) for
    a tile that the kernel places itself, and None for a tile that the compiler places. A register has shape
    (1, 1).
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    buffer: str
    line: int
    address: tuple[int, int] | None = None

    @property
    def size(self) -> int:
        """Number of elements of one tensor."""
        return prod(self.shape)

    @property
    def row(self) -> int:
        """Elements from one row to the next: a partition's free size on chip, the last dimension in HBM."""
        return self.shape[-1] if self.buffer in HBM_BUFFERS else prod(self.shape[1:])

    @property
    def partition_bytes(self) -> int:
        """Bytes that one tensor of this site takes in each partition (on chip)."""
        return prod(self.shape[1:]) * DTYPES[self.dtype].itemsize


@dataclass(frozen=True, slots=True)
class Operand:
    """One operand: `dims` is the access pattern ((step, count), ...) in elements of the flat storage.

    On chip the first pair is the partition dimension, with step `row`, and `start` is the first partition.
    The other pairs may have negative steps; the pattern begins at its first position, not at its lowest
    element. `column` is where the first position lies in its row. It is set in PSUM only, where the bank
    matters.

    `index_step` is nonzero where the address depends on data. The next operand, in the role `{role}_index`,
    then holds either one integer that moves the whole pattern by that many times `index_step` elements, or
    one integer for each position of the first dimension, whose own step is then 0. On chip it may hold
    several integers (tensor indirection): then the second dimension has the step 0, and each of its positions
    an offset of its own in each group of partitions (`Form.column_lookups`).
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
        """The same elements in ascending order, starting `reach_below` elements before the first position."""
        return make_ascending(self.dims)

    @property
    def reach_below(self) -> int:
        """Elements between the lowest element touched and the first position."""
        return reach_below(self.dims)

    @property
    def extent(self) -> int:
        """Elements from the lowest one touched to one past the highest."""
        return 1 + sum(abs(step) * (count - 1) for step, count in self.dims)

    @property
    def free_extent(self) -> int:
        """Elements from the lowest one touched in each partition to one past the highest."""
        return 1 + sum(abs(step) * (count - 1) for step, count in self.dims[1:])

    @property
    def is_scattered(self) -> bool:
        """Whether each position of the first dimension has its own index."""
        return bool(self.index_step) and self.dims[0][0] == 0

    @property
    def in_hbm(self) -> bool:
        return self.buffer in HBM_BUFFERS


def chooses_columns(item: Operand, index: Operand) -> bool:
    """Whether an index holds offsets of columns [P, K] for an operand [P, N] on chip.

    Their type tells them from the one integer that moves a whole pattern. Scales of MX operands have fewer
    partitions than the data whose index they share.
    """
    return (
        index.dtype == "uint16"
        and not item.in_hbm
        and len(item.dims) == len(index.dims) == _TILE_RANK
        and item.dims[0][0] != 0
        and item.dims[1][0] == 0
        and item.partitions <= index.partitions
    )


def index_role(role: str) -> str:
    """Name of the role that holds the indices of `role`."""
    return f"{role}_index"


@dataclass(frozen=True, slots=True)
class Form:
    """An instruction without its source line, tensors and offsets.

    `hints` tell a compiler that rewrites kernels what the result does not show: `("engine", "open")` if the
    kernel leaves the choice of engine to the compiler, `("moving", n)` if a mask left fewer than the n moving
    elements that a product was written for.
    """

    op: str
    engine: str
    operands: tuple[Operand, ...]
    params: Params
    hints: Params = ()

    def operand(self, role: str) -> Operand | None:
        """The operand in that role, or None."""
        return next((item for item in self.operands if item.role == role), None)

    @property
    def tiles(self) -> tuple[Operand, ...]:
        """The operands in memory, without registers, other engine state, and index operands."""
        indices = {index_role(item.role) for item in self.operands if item.index_step}
        return tuple(item for item in self.operands if item.buffer != "register" and item.role not in indices)

    @property
    def column_lookups(self) -> tuple[tuple[Operand, Operand], ...]:
        """The operands whose columns an index chooses on chip (tensor indirection), each with its index.

        Position i of partition p is the column `index[p - p % G + i % G, i // G]`, G partitions to a group
        (`column_group`).
        """
        pairs = zip(self.operands, self.operands[1:], strict=False)
        return tuple(
            (item, index) for item, index in pairs if item.index_step and chooses_columns(item, index)
        )

    @property
    def column_group(self) -> int:
        """Partitions that share their offsets of columns [D: NkiTensor.indirect]."""
        return 32 if self.engine == "tensor" else 16

    def param(self, name: str, default: ParamValue | None = None) -> ParamValue | None:
        """The parameter of that name."""
        return next((value for key, value in self.params if key == name), default)

    def hint(self, name: str) -> ParamValue | None:
        """The hint of that name, or None."""
        return next((value for key, value in self.hints if key == name), None)

    def __getitem__(self, role: str) -> Operand:
        found = self.operand(role)
        if found is None:
            raise KeyError(role)
        return found


def make_ascending(dims: Dims) -> Dims:
    """Reverse the negative steps of a pattern; the result starts `reach_below` elements earlier."""
    return tuple((abs(step), count) for step, count in dims)


def reach_below(dims: Dims) -> int:
    """How many elements a pattern reaches below its first position."""
    return -sum(step * (count - 1) for step, count in dims if step < 0)


def drop_idle_steps(dims: Dims) -> Dims:
    """The pattern with step 0 for each dimension of one element, whose step moves nothing."""
    return tuple((step if count > 1 else 0, count) for step, count in dims)


def merge_dims(dims: Dims) -> Dims:
    """Merge neighbouring dimensions that one (step, count) pair can cover."""
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
