"""The hardware's rules that a single instruction can break, as functions of its form.

This module has the rules on shapes and places; `arguments` has those on types, functions and values. The
front end applies them at the call, with the kernel's line. `checks` applies them again to programs from
elsewhere. Every limit comes from the target table. A rule yields one `Breach` per offence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod

from nki_sim.dtypes import V4
from nki_sim.forms import Form, Operand, index_role
from nki_sim.targets import Target


@dataclass(frozen=True, slots=True)
class Breach:
    """One broken rule: the operand (`role`), the limit, the value found, and the usual fix."""

    code: str
    message: str
    role: str
    limit: int | str
    value: int | str
    hint: str


Rule = Callable[[Form, Target], Iterator[Breach]]

SCALE_ROLES = frozenset({"dst_scale", "stationary_scale", "moving_scale"})
"""Operands with the scales of a quadrant, which follow with its number; `mx` says where they may begin."""


def on_chip_operands(form: Form, target: Target) -> Iterator[Breach]:
    """Check partitions, start partition, rank, size and strides of every access."""
    indices = {index_role(item.role) for item in form.operands if item.index_step}
    for item in form.operands:
        yield from _access_rank(item, target)
        if item.in_hbm:
            continue
        yield from _partition_range(item, target)
        yield from _access_size(item, target)
        if item.role not in indices and not item.is_scattered:
            yield from _partition_step(item)
        if form.engine not in {"dma", "sync"}:
            if item.role.rstrip("0123") not in SCALE_ROLES:
                yield from _start_partition(item)
            yield from _access_strides(item, target)


def _partition_step(item: Operand) -> Iterator[Breach]:
    step, count = item.dims[0]
    if count > 1 and step != item.row:
        yield Breach(
            "partition_step", f"{item.role} walks its first dimension by {step} elements, its partitions are "
            f"{item.row} apart", item.role, item.row, step,
            "the first dimension of a tile is its partitions, all neighbours; strides are for the others",
        )  # fmt: skip


def _access_strides(item: Operand, target: Target) -> Iterator[Breach]:
    for step, count in item.dims[1:]:
        if count > 1 and abs(step) > target.access_stride_max:
            yield Breach(
                "access_stride", f"{item.role} steps over {step} elements, the limit is "
                f"{target.access_stride_max}", item.role, target.access_stride_max, step,
                "split the instruction along that dimension",
            )  # fmt: skip


def _access_rank(item: Operand, target: Target) -> Iterator[Breach]:
    rank = len(item.dims)
    if rank > target.access_rank_max:
        yield Breach(
            "access_rank", f"{item.role} has an access pattern of {rank} dimensions, the limit is "
            f"{target.access_rank_max}", item.role, target.access_rank_max, rank,
            "split the access or flatten contiguous dimensions",
        )  # fmt: skip


def written_once(item: Operand, *, repeats: bool) -> Iterator[Breach]:
    """No element is written twice: each dimension steps over everything that the smaller steps span.

    With `repeats`, steps of 0 are allowed: engines write in order and the last element stays. Places that
    indices scatter to are checked by the run.
    """
    span = 1
    for step, count in sorted(pair for pair in item.ascending_dims[item.is_scattered :] if pair[1] > 1):
        if step == 0 and repeats:
            continue
        if step < span:
            yield Breach(
                "write_overlap", f"{item.role} repeats {count} times {span} elements every {step}",
                item.role, span, step, "write each element once; broadcast only what is read",
            )  # fmt: skip
            return
        span += step * (count - 1)


def _partition_range(item: Operand, target: Target) -> Iterator[Breach]:
    last = item.start + item.partitions
    if last > target.partitions:
        yield Breach(
            "num_partition_exceed_arch_limit",
            f"{item.role} reaches partition {last}, the limit is {target.partitions}",
            item.role, target.partitions, last, "tile the first dimension by 128",
        )  # fmt: skip


def _access_size(item: Operand, target: Target) -> Iterator[Breach]:
    limit, touched = target.sbuf_access_elements_max, item.free
    if item.buffer == "psum":
        # The limit is what a partition holds; repeated reads of an element do not count.
        limit, touched = target.psum_access_elements_max, prod(count for step, count in item.dims[1:] if step)
        if target.generation >= V4:  # products of bfloat16 fill PSUM in one instruction
            limit = target.psum_banks * target.psum_bank_bytes // item.itemsize
    if touched > limit:
        yield Breach(
            "access_size", f"{item.role} touches {touched} elements per partition, the limit is {limit}",
            item.role, limit, touched, "split the instruction along the free dimension",
        )  # fmt: skip


def start_step(partitions: int) -> int:
    """The number that the first of that many partitions must be a multiple of."""
    return 128 if partitions > 64 else 64 if partitions > 32 else 32


def _start_partition(item: Operand) -> Iterator[Breach]:
    step = start_step(item.partitions)
    if item.start % step:
        yield Breach(
            "start_partition",
            f"{item.role} of {item.partitions} partitions starts at partition {item.start}, "
            f"it must start at a multiple of {step}", item.role, step, item.start,
            "place the data so that it starts at partition 0, 32, 64 or 96",
        )  # fmt: skip


def same_elements(form: Form, target: Target) -> Iterator[Breach]:
    """DMA: source and destination have the same number of elements."""
    del target
    dst, src = form["dst"], form["src"]
    if dst.elements != src.elements:
        yield Breach(
            "shape_mismatch", f"dst has {dst.elements} elements, src has {src.elements}", "dst",
            src.elements, dst.elements, "both sides of a DMA must cover the same number of elements",
        )  # fmt: skip


def one_element(form: Form, target: Target) -> Iterator[Breach]:
    """Moves between registers and memory take one element of at most 64 bits, no wider than the register."""
    del target
    dst, src = form["dst"], form["src"]
    memory, register = (src, dst) if dst.buffer == "register" else (dst, src)
    if memory.elements != 1:
        yield Breach(
            "register_size", f"{memory.role} has {memory.elements} elements, not one", memory.role, 1,
            memory.elements, "index a single element: t[0:1, 0:1]",
        )  # fmt: skip
    if memory.itemsize > register.itemsize:
        yield Breach(
            "register_width", f"{memory.role} is {memory.dtype}, the register is {register.dtype}",
            memory.role, register.dtype, memory.dtype, "use nisa.scalar_load, or a 32-bit tile",
        )  # fmt: skip


def register_widths(form: Form, target: Target) -> Iterator[Breach]:
    """Arithmetic on registers has one width; 64-bit registers only add, subtract and multiply."""
    del target
    dst = form["dst"]
    for item in form.operands[1:]:
        if item.dtype != dst.dtype:
            yield Breach(
                "register_width", f"{item.role} is {item.dtype}, dst is {dst.dtype}", item.role, dst.dtype,
                item.dtype, "keep to one width; load the value at the width it is needed in",
            )  # fmt: skip
    if dst.dtype == "int64" and form.param("op") not in {"add", "subtract", "multiply"}:
        yield Breach(
            "register_width", f"op={form.param('op')} does not exist at 64 bits", "dst",
            "add|subtract|multiply", str(form.param("op")), "use a 32-bit scalar",
        )  # fmt: skip


def same_dtype(form: Form, target: Target) -> Iterator[Breach]:
    """Transposes do not convert: dst and data have one type."""
    del target
    dst, data = form["dst"], form.operand("data") or form["src"]
    if dst.dtype != data.dtype:
        yield Breach(
            "dtype_mismatch", f"dst is {dst.dtype}, the data is {data.dtype}", "dst", data.dtype, dst.dtype,
            "declare the destination with the data's type and convert in the copy that follows",
        )  # fmt: skip


_PER_PARTITION = frozenset({
    "operand0", "operand1", "bias", "scale", "initial", "bound0", "bound1", "on_false", "reduce_res",
    "reduce_init", "imm0", "imm1", "prob", "relu_param", "max_value", "min", "max",
})  # fmt: skip


def is_per_partition(form: Form, item: Operand) -> bool:
    """Whether an operand holds one value per partition: [P, 1]; the others are as wide as dst."""
    wide = (form.op, item.role) == ("scalar_tensor_tensor", "operand1")
    return item.role in _PER_PARTITION and not wide


def same_shape(form: Form, target: Target) -> Iterator[Breach]:
    """Engine operands have the partitions of dst, and its free size or one element per partition."""
    del target
    dst = form["dst"]
    for item in form.tiles[1:]:
        free = 1 if is_per_partition(form, item) else dst.free
        if (item.partitions, item.free) != (dst.partitions, free):
            wanted, found = f"{dst.partitions}x{free}", f"{item.partitions}x{item.free}"
            yield Breach(
                _shape_code(item, dst),
                f"{item.role} is {found}, it must be {wanted} for dst {dst.partitions}x{dst.free}",
                item.role, wanted, found,
                "scalars and reduced columns are [P, 1], all other operands have the shape of dst",
            )  # fmt: skip


def _shape_code(item: Operand, dst: Operand) -> str:
    if item.role == "scale":
        return "activation_scale_scalar_or_vector"
    return "shape_mismatch" if item.partitions == dst.partitions else "num_partition_mismatch"


def one_bank(form: Form, target: Target) -> Iterator[Breach]:
    """The tensor engine's output lies in one PSUM bank, where tiles begin; from v4 on it may fill PSUM."""
    dst, limit = form["dst"], target.psum_bank_bytes
    if target.generation >= V4:
        limit *= target.psum_banks
    last = ((dst.column - dst.reach_below) % (limit // dst.itemsize) + dst.free_extent) * dst.itemsize
    if form.engine == "tensor" and last > limit:
        yield Breach(
            "psum_bank", f"dst reaches byte {last} of a PSUM bank of {limit} bytes per partition", "dst",
            limit, last, "write at most 512 float32 per partition, and none across a multiple of 512",
        )  # fmt: skip


def transpose_shapes(form: Form, target: Target) -> Iterator[Breach]:
    """dst[F, P] from data[P, F]: at most 128x128 on the tensor engine, 32x32 on the vector engine."""
    dst, data = form["dst"], form["data"]
    on_tensor = form.engine == "tensor"
    limit = target.matmul_stationary_max if on_tensor else target.vector_transpose_max
    if max(data.partitions, data.free) > limit:
        found = f"{data.partitions}x{data.free}"
        yield Breach(
            "transpose_size", f"data is {found}, the {form.engine} engine transposes at most {limit}x{limit}",
            "data", limit, found, "transpose block by block",
        )  # fmt: skip
    if (dst.partitions, dst.free) != (data.free, data.partitions):
        yield Breach(
            "shape_mismatch",
            f"dst is {dst.partitions}x{dst.free}, the transpose is {data.free}x{data.partitions}", "dst",
            f"{data.free}x{data.partitions}", f"{dst.partitions}x{dst.free}", "dst is [F, P] for data [P, F]",
        )  # fmt: skip
    if on_tensor and (dst.buffer, data.buffer) != ("psum", "sbuf"):
        yield Breach(
            "unsupported_memory", f"dst is in {dst.buffer}, data in {data.buffer}", "dst", "psum from sbuf",
            f"{dst.buffer} from {data.buffer}", "the tensor engine reads SBUF and writes PSUM",
        )  # fmt: skip


def index_operands(form: Form, target: Target) -> Iterator[Breach]:
    """Indices are 32-bit integers in SBUF or a register; only DMA takes several at once."""
    del target
    for item, index in zip(form.operands, form.operands[1:], strict=False):
        if not item.index_step or (item, index) in form.column_lookups:
            continue
        if index.dtype not in ({"int32", "uint32", "int64"} if item.in_hbm else {"int32", "uint32"}):
            yield Breach(
                "index_dtype", f"the index of {item.role} is {index.dtype}", item.role, "int32|uint32",
                index.dtype, "convert the index to int32; int64 scalars address HBM alone",
            )  # fmt: skip
        if index.buffer not in {"sbuf", "register"}:
            yield Breach(
                "unsupported_memory", f"the index of {item.role} is in {index.buffer}", item.role,
                "sbuf|register", index.buffer, "load the indices into SBUF first",
            )  # fmt: skip
        if index.elements > 1 and form.engine != "dma":
            yield Breach(
                "indirect_access", f"{item.role} takes {index.elements} indices on the {form.engine} engine",
                item.role, 1, index.elements, "gather with nisa.dma_copy, or with nisa.nc_n_gather in SBUF",
            )  # fmt: skip


def gpsimd_sees_no_psum(form: Form, target: Target) -> Iterator[Breach]:
    """GpSimd has no access to PSUM."""
    del target
    if form.engine != "gpsimd":
        return
    for item in form.operands:
        if item.buffer == "psum":
            yield Breach(
                "gpsimd_psum", f"{item.role} is in PSUM, which GpSimd cannot access", item.role, "sbuf",
                "psum", "use the vector or scalar engine, or copy to SBUF first",
            )  # fmt: skip


def not_both_psum(left: str, right: str) -> Rule:
    """Two inputs that an instruction reads together may not both be in PSUM."""

    def check(form: Form, target: Target) -> Iterator[Breach]:
        del target
        items = [form.operand(role) for role in (left, right)]
        if all(item is not None and item.buffer == "psum" for item in items):
            yield Breach(
                "both_inputs_psum", f"{left} and {right} are both in PSUM", right, "sbuf", "psum",
                "copy one of them to SBUF first",
            )  # fmt: skip

    return check


def reduce_axes(form: Form, target: Target) -> Iterator[Breach]:
    """The reduced axes are the last ones of the data, never the partition axis; dst has the rest."""
    del target
    data, dst = form["data"], form["dst"]
    axes = form.param("axis")
    count = len(axes) if isinstance(axes, tuple) else 0
    rank = len(data.dims)
    if axes != tuple(range(rank - count, rank)) or not 0 < count < rank:
        yield Breach(
            "reduce_axis", f"axis {axes} of a {rank}-dimensional tile", "data", "the last free axes",
            str(axes), "reduce the innermost free axes; transpose, or matmul with ones, for partitions",
        )  # fmt: skip
        return
    kept = 1
    for _, size in data.dims[1 : rank - count]:
        kept *= size
    if (dst.partitions, dst.free) != (data.partitions, kept):
        yield Breach(
            "shape_mismatch", f"dst is {dst.partitions}x{dst.free}, the result is {data.partitions}x{kept}",
            "dst", f"{data.partitions}x{kept}", f"{dst.partitions}x{dst.free}", "declare dst [P, kept axes]",
        )  # fmt: skip


def one_row(form: Form, target: Target) -> Iterator[Breach]:
    """A reduction over partitions gives one row: dst[1, F] for data[P, F]."""
    del target
    dst, data = form["dst"], form["data"]
    if (dst.partitions, dst.free) != (1, data.free):
        found = f"{dst.partitions}x{dst.free}"
        yield Breach(
            "shape_mismatch", f"dst is {found}, the result is 1x{data.free}", "dst", f"1x{data.free}", found,
            "declare dst [1, F]",
        )  # fmt: skip
