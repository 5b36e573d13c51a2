"""Rules of instructions that select, search and gather, and functions that make such rules."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from nki_sim.dtypes import DTYPES
from nki_sim.forms import Form, Operand
from nki_sim.operators.rules.shapes import Breach, Rule
from nki_sim.targets import Target

FP32_MIN = -3.4028234663852886e38
CORE_PARTITIONS = 16
"""Partitions of each of GpSimd's eight cores."""
QUADRANT = 32
"""Partitions among which VectorE can move data."""
UNMODIFIED = 255
"""In a shuffle mask: leave that partition of the destination."""
_INT32 = 1 << 31

Size = Callable[[Form], int]


def since_generation(generation: int) -> Rule:
    """The instruction exists from that generation of NeuronCores on."""

    def check(form: Form, target: Target) -> Iterator[Breach]:
        if target.generation < generation:
            yield Breach(
                "generation", f"{form.op} needs NeuronCore-v{generation}, {target.name} has "
                f"NeuronCore-v{target.generation}", "dst", f"v{generation}", f"v{target.generation}",
                "write it with instructions that every generation has, or choose a newer target",
            )  # fmt: skip

    return check


def dtype_in(role: str, *dtypes: str) -> Rule:
    """The operand, if it is a tensor, has one of these types."""

    def check(form: Form, target: Target) -> Iterator[Breach]:
        del target
        item = form.operand(role)
        if item is not None and item.dtype not in dtypes:
            yield Breach(
                "operand_invalid_type", f"{role} is {item.dtype}, it must be {' or '.join(dtypes)}", role,
                "|".join(dtypes), item.dtype, f"declare {role} with one of these types, or copy it into one",
            )  # fmt: skip

    return check


def float_dtype(role: str) -> Rule:
    """The operand has a floating-point type."""
    return dtype_in(role, *(name for name, dtype in DTYPES.items() if dtype.kind == "float"))


def equal_dtypes(role: str, other: str) -> Rule:
    """Both operands have the same type, because the instruction moves bits."""

    def check(form: Form, target: Target) -> Iterator[Breach]:
        del target
        left, right = form.operand(role), form.operand(other)
        if left is not None and right is not None and left.dtype != right.dtype:
            yield Breach(
                "dtype_mismatch", f"{role} is {left.dtype}, {other} is {right.dtype}", role, right.dtype,
                left.dtype, "the instruction does not convert; convert with nisa.tensor_copy",
            )  # fmt: skip

    return check


def free_size(role: str) -> Size:
    """The elements per partition of an operand."""
    return lambda form: form[role].free


def free_sizes(**sizes: Size | int) -> Rule:
    """All operands have the partitions of the first; the named ones have that many elements per partition."""

    def check(form: Form, target: Target) -> Iterator[Breach]:
        del target
        partitions = form.operands[0].partitions
        for item in form.tiles:
            size = sizes.get(item.role, item.free)
            wanted = size if isinstance(size, int) else size(form)
            if (item.partitions, item.free) != (partitions, wanted):
                yield _shape_breach(item, f"{partitions}x{wanted}")

    return check


def _shape_breach(item: Operand, wanted: str) -> Breach:
    found = f"{item.partitions}x{item.free}"
    return Breach(
        "shape_mismatch", f"{item.role} is {found}, it must be {wanted}", item.role, wanted, found,
        "all operands have the same partitions; the documents give the free size of each",
    )  # fmt: skip


def search_size(role: str, *, least: bool = True) -> Rule:
    """The vector engine searches a bounded number of elements per partition."""

    def check(form: Form, target: Target) -> Iterator[Breach]:
        low, high = target.search_elements_min if least else 1, target.search_elements_max
        found = form[role].free
        if not low <= found <= high:
            yield Breach(
                "search_size", f"{role} has {found} elements per partition, {low} to {high} can be searched",
                role, f"{low}..{high}", found, "search parts, then search their results",
            )  # fmt: skip

    return check


def fits_int32(*names: str) -> Rule:
    """Integer arguments that the instruction holds in 32 bits."""

    def check(form: Form, target: Target) -> Iterator[Breach]:
        del target
        for name in names:
            value = form.param(name)
            if isinstance(value, int) and not -_INT32 <= value < _INT32:
                yield _int32_breach(name, value)

    return check


def _int32_breach(name: str, value: int) -> Breach:
    return Breach(
        "argument_range", f"{name} is {value}, which 32 bits do not hold", name, "int32", value,
        "the instruction computes with 32-bit integers",
    )  # fmt: skip


def affine_pattern(form: Form, target: Target) -> Iterator[Breach]:
    """At most 4 pairs of a 32-bit step and a count; the counts multiply to the free size of dst."""
    pattern = form.param("pattern")
    assert isinstance(pattern, tuple)
    rank, size, wanted = len(pattern) // 2, math.prod(pattern[1::2]), form["dst"].free
    if rank > target.pattern_rank_max:
        yield Breach(
            "pattern_rank", f"pattern has {rank} dimensions, the limit is {target.pattern_rank_max}",
            "pattern", target.pattern_rank_max, rank, "join dimensions or split the instruction",
        )  # fmt: skip
    if size != wanted:
        yield Breach(
            "pattern_size", f"pattern makes {size} elements per partition, dst has {wanted}", "pattern",
            wanted, size, "the counts of the pattern multiply to the free size of dst",
        )  # fmt: skip
    for step in pattern[::2]:
        if not -_INT32 <= step < _INT32:
            yield _int32_breach("pattern", step)


def fill_is_fp32_min(form: Form, target: Target) -> Iterator[Breach]:
    """range_select fills only with the smallest float32."""
    del target
    value = form.param("on_false_value")
    if not (isinstance(value, float) and math.isclose(value, FP32_MIN, rel_tol=2.0**-25)):
        yield Breach(
            "range_select_fill", f"on_false_value is {value!r}, the hardware fills with {FP32_MIN!r}",
            "on_false_value", repr(FP32_MIN), repr(value), "leave it out, or pass -3.4028235e+38",
        )  # fmt: skip


def indices_are_exact(form: Form, target: Target) -> Iterator[Breach]:
    """range_select counts in float32, which holds integers up to 2^24."""
    del target
    start, limit = form.param("range_start"), 1 << 24
    last = start + form["on_true_tile"].free - 1 if isinstance(start, int) else 0
    if isinstance(start, int) and (start < -limit or last > limit):
        yield Breach(
            "argument_range", f"range_start {start} leads to index {last}, float32 counts to {limit}",
            "range_start", limit, last, "subtract a common offset from range_start and both bounds",
        )  # fmt: skip


def reduces_by_maximum(form: Form, target: Target) -> Iterator[Breach]:
    """Selections reduce only with maximum, on command idle, reset, reduce or reset_reduce."""
    del target
    if form.param("reduce_op") != "maximum":
        yield Breach(
            "reduce_op", f"{form.op} reduces with maximum, not {form.param('reduce_op')}", "reduce_res",
            "maximum", str(form.param("reduce_op")), "use nisa.tensor_reduce on the result",
        )  # fmt: skip


def whole_cores(form: Form, target: Target) -> Iterator[Breach]:
    """Every GpSimd core that takes part uses all of its partitions."""
    del target
    for item in form.tiles:
        if item.partitions % CORE_PARTITIONS:
            yield Breach(
                "gpsimd_partitions", f"{item.role} has {item.partitions} partitions, GpSimd's cores have "
                f"{CORE_PARTITIONS} each", item.role, CORE_PARTITIONS, item.partitions,
                f"use a multiple of {CORE_PARTITIONS} partitions",
            )  # fmt: skip


def gathered_elements(form: Form) -> int:
    """Elements per partition that local_gather makes."""
    run = form.param("num_elem_per_idx")
    return valid_indices(form) * (run if isinstance(run, int) else 1)


def valid_indices(form: Form) -> int:
    """Indices that each GpSimd core gathers by: all in its partitions unless the kernel gives a number."""
    count = form.param("num_valid_indices")
    return count if isinstance(count, int) else CORE_PARTITIONS * form["index"].free


def gather_limits(form: Form, target: Target) -> Iterator[Breach]:
    """local_gather: 1, 2, 4, ... 32 elements per index; at most 4096 indices, and no more than exist."""
    runs, run = (1, 2, 4, 8, 16, 32), form.param("num_elem_per_idx")
    if run not in runs:
        yield Breach(
            "argument_range", f"num_elem_per_idx is {run}", "num_elem_per_idx", "1|2|4|8|16|32", str(run),
            "gather by several indices, or several times",
        )  # fmt: skip
    there = CORE_PARTITIONS * form["index"].free
    limit, count = min(there, target.gather_indices_max), valid_indices(form)
    if not 1 <= count <= limit:
        yield Breach(
            "gather_indices", f"{count} indices per GpSimd core, there may be {limit}", "index", limit, count,
            "split the gather, or give fewer valid indices",
        )  # fmt: skip


def topk_size(form: Form, target: Target) -> Iterator[Breach]:
    """topk: n elements in 16 partitions, the k largest of them."""
    src, count, n = form["src"], form["val_dst"].free, form.param("n")
    assert isinstance(n, int)
    room = CORE_PARTITIONS * src.free
    low, high = target.topk_elements_min, min(target.topk_elements_max, room)
    if not low <= n <= high:
        yield Breach(
            "topk_size", f"n is {n}, src has room for {room} elements and n is from {low} to {high}", "n",
            f"{low}..{high}", n, "n counts the elements in each 16 partitions",
        )  # fmt: skip
    elif count > min(n, target.topk_results_max):
        limit = min(n, target.topk_results_max)
        yield Breach(
            "topk_size", f"val_dst asks for {count} of {n} elements, the limit is {limit}", "val_dst", limit,
            count, "the free size of val_dst is the number of results",
        )  # fmt: skip


def shuffle_mask(form: Form, target: Target) -> Iterator[Breach]:
    """32 entries, each a partition of the source's quadrant, or 255."""
    del target
    mask, size = form.param("shuffle_mask"), QUADRANT
    assert isinstance(mask, tuple)
    if len(mask) != size:
        yield Breach(
            "shuffle_mask", f"shuffle_mask has {len(mask)} places, it needs {size}", "shuffle_mask", size,
            len(mask), "give one source partition, or 255, for each partition of a quadrant",
        )  # fmt: skip
        return
    dst, src = form["dst"].partitions, form["src"].partitions
    for lane in range(dst):
        source = mask[lane % size]
        if source != UNMODIFIED and (source >= size or lane - lane % size + source >= src):
            yield Breach(
                "shuffle_mask", f"partition {lane} of dst comes from {source}, src has {src} partitions",
                "shuffle_mask", min(size, src) - 1, source,
                "name partitions of the source's quadrant, or 255",
            )  # fmt: skip
            return


def shuffle_places(form: Form, target: Target) -> Iterator[Breach]:
    """dst and src are equally wide and start at a quadrant from which the larger one's quadrants fit."""
    dst, src, size = form["dst"], form["src"], QUADRANT
    if dst.free != src.free:
        yield _shape_breach(dst, f"{dst.partitions}x{src.free}")
    active = -(-max(dst.partitions, src.partitions) // size) * size
    step = active if active <= 2 * size else target.partitions
    for item in (dst, src):
        if item.start % step:
            yield Breach(
                "start_partition", f"{item.role} starts at partition {item.start}, with {active} active "
                f"partitions it must start at a multiple of {step}", item.role, step, item.start,
                "place the data where its quadrants may start",
            )  # fmt: skip


def max_rank(role: str, limit: int) -> Rule:
    """The operand has at most that many dimensions, including the partitions."""

    def check(form: Form, target: Target) -> Iterator[Breach]:
        del target
        rank = len(form[role].dims)
        if rank > limit:
            yield Breach(
                "access_rank", f"{role} has {rank} dimensions, the limit is {limit}", role, limit, rank,
                "flatten contiguous dimensions",
            )  # fmt: skip

    return check


def single_partition(form: Form, target: Target) -> Iterator[Breach]:
    """sequence_bounds works in one partition."""
    del target
    found = form["segment_ids"].partitions
    if found != 1:
        yield Breach(
            "gpsimd_partitions", f"segment_ids has {found} partitions, it must have 1", "segment_ids", 1,
            found, "call it once for each sequence",
        )  # fmt: skip
