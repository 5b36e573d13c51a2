"""The hardware's rules on MX: operands of four numbers to an element, and the scales of their groups.

A group is 32 numbers that share a scale: 8 partitions by the 4 numbers of an element. The groups of a
quadrant of 32 partitions have their scales in four partitions of that quadrant. An instruction therefore has
one operand of scales for each quadrant of its data; the front end takes them out of the kernel's tile
(`frontend.mx`).
"""

from __future__ import annotations

from collections.abc import Iterator

from nki_sim.dtypes import PACKED_DTYPES
from nki_sim.forms import Form, Operand
from nki_sim.operators.rules.shapes import Breach
from nki_sim.targets import Target

GROUP_PARTITIONS = 8
"""Partitions of a group."""

QUADRANT = 32
"""Partitions of a quadrant."""

SCALE_ROWS = QUADRANT // GROUP_PARTITIONS
"""Partitions of scales for each quadrant of data."""

SCALE_OFFSETS = (0, 4, 8, 12)
"""Where scales may begin in each quadrant, so that those of several operands share a tile."""

SCALE_DTYPES = ("float8_e8m0fnu", "uint8")
_SOURCE_DTYPES = frozenset({"bfloat16", "float16"})
_QUANTISED_DTYPES = frozenset({"float8_e4m3fn_x4", "float8_e5m2_x4"})
_SUM_DTYPES = frozenset({"float32", "bfloat16"})


def scales_of(form: Form, role: str) -> tuple[Operand, ...]:
    """The operands that hold the scales of an operand, quadrant after quadrant."""
    return tuple(item for item in form.operands if item.role.rstrip("0123") == role)


def product_types(form: Form, target: Target) -> Iterator[Breach]:
    """MX operands are packed; the sum is float32 or bfloat16."""
    del target
    for role in ("stationary", "moving"):
        yield from _wrong_type(form[role], frozenset(PACKED_DTYPES), "quantise it with nisa.quantize_mx")
    yield from _wrong_type(form["dst"], _SUM_DTYPES, "declare the PSUM tile float32 or bfloat16")


def quantised_types(form: Form, target: Target) -> Iterator[Breach]:
    """VectorE quantises 16-bit floating-point numbers to MXFP8."""
    del target
    yield from _wrong_type(form["src"], _SOURCE_DTYPES, "copy it to a bfloat16 tile first")
    yield from _wrong_type(
        form["dst"], _QUANTISED_DTYPES, "MXFP4 operands are quantised before the kernel runs"
    )


def _wrong_type(item: Operand, allowed: frozenset[str], hint: str) -> Iterator[Breach]:
    if item.dtype not in allowed:
        wanted = sorted(allowed)
        yield Breach(
            "mx_dtype", f"{item.role} is {item.dtype}, it must be {' or '.join(wanted)}", item.role,
            "|".join(wanted), item.dtype, hint,
        )  # fmt: skip


def product_shapes(form: Form, target: Target) -> Iterator[Breach]:
    """dst[M, N] from stationary[K, M] and moving[K, N] in packed elements: K a multiple of 32, M even."""
    dst, left, right = form["dst"], form["stationary"], form["moving"]
    yield from _whole_quadrants(left, target)
    most = target.psum_banks * target.psum_bank_bytes // dst.itemsize
    limits = (("stationary", left.free, target.matmul_stationary_max), ("moving", right.free, most))
    for role, value, limit in limits:
        if value > limit:
            yield Breach(
                "matmul_size", f"{role} free size is {value}, the limit is {limit}", role, limit, value,
                "tile the matrix product: M by 128, N by what a row of PSUM holds",
            )  # fmt: skip
    if left.free % 2:
        yield Breach(
            "matmul_size", f"stationary free size is {left.free}, it must be even", "stationary", "even",
            left.free, "pad M to an even number of columns",
        )  # fmt: skip
    found = f"{left.partitions}x{left.free}, {right.partitions}x{right.free} -> {dst.partitions}x{dst.free}"
    if left.partitions != right.partitions or (dst.partitions, dst.free) != (left.free, right.free):
        yield Breach(
            "matmul_shape", f"operands do not match: {found}", "dst", f"{left.free}x{right.free}",
            f"{dst.partitions}x{dst.free}", "stationary is [K, M], moving is [K, N], dst is [M, N]",
        )  # fmt: skip
    for item in (left, right):
        yield from _scale_layout(form, item, f"{item.role}_scale", free=item.free)


def quantised_shapes(form: Form, target: Target) -> Iterator[Breach]:
    """dst[P, F] from src[P, 4 F]: P a multiple of 32."""
    dst, src = form["dst"], form["src"]
    yield from _whole_quadrants(src, target)
    if src.free % 4 or (dst.partitions, dst.free) != (src.partitions, src.free // 4):
        wanted = f"{src.partitions}x{src.free // 4}"
        yield Breach(
            "shape_mismatch", f"dst is {dst.partitions}x{dst.free} for src {src.partitions}x{src.free}",
            "dst", wanted, f"{dst.partitions}x{dst.free}",
            "dst has a quarter of the elements of src, four in each",
        )  # fmt: skip
    yield from _scale_layout(form, src, "dst_scale", free=src.free // 4)


def _whole_quadrants(item: Operand, target: Target) -> Iterator[Breach]:
    if item.partitions % QUADRANT or item.partitions > target.partitions:
        yield Breach(
            "mx_partitions", f"{item.role} has {item.partitions} partitions, MX takes 32, 64, 96 or 128",
            item.role, "a multiple of 32", item.partitions, "pad the partitions with zeros",
        )  # fmt: skip


def _scale_layout(form: Form, data: Operand, role: str, *, free: int) -> Iterator[Breach]:
    """Scales have a row for each group: 4 of each quadrant, from partition 0, 4, 8 or 12 of it."""
    scales = scales_of(form, role)
    for item in scales:
        yield from _wrong_type(item, frozenset(SCALE_DTYPES), "declare the scales nl.float8_e8m0fnu")
        if item.free != free or item.partitions != SCALE_ROWS:
            found = f"{item.partitions}x{item.free}"
            yield Breach(
                "mx_scale_shape", f"{item.role} is {found} in a quadrant, {data.role} has "
                f"{SCALE_ROWS}x{free} groups there", item.role, f"{SCALE_ROWS}x{free}", found,
                "a scale tile has a column for each four numbers, and 4 rows in each quadrant",
            )  # fmt: skip
        if item.start % QUADRANT not in SCALE_OFFSETS:
            yield Breach(
                "mx_scale_partition", f"{item.role} begins at partition {item.start}", item.role,
                "0, 4, 8 or 12 of a quadrant", item.start,
                "scales of up to four operands share a tile, at offsets of 4 partitions",
            )  # fmt: skip
    if len(scales) != -(-data.partitions // QUADRANT):
        yield Breach(
            "mx_scale_shape", f"{role} has scales of {len(scales)} quadrants for {data.partitions} rows",
            role, -(-data.partitions // QUADRANT), len(scales),
            "give each quadrant of the data its scales",
        )  # fmt: skip


def row_tile(form: Form, target: Target) -> Iterator[Breach]:
    """MX products take rows of the array: 32, 64 or 128 of them, and all columns."""
    position, size = form.param("tile_position"), form.param("tile_size")
    if not position and not size:
        return
    pair = isinstance(position, tuple) and isinstance(size, tuple) and len(position) == len(size) == 2
    if not pair or position[1] != 0 or size[1] != target.matmul_stationary_max:  # type: ignore[index]
        yield Breach(
            "matmul_tile", f"tile_position is {position}, tile_size is {size}", "dst",
            "(row, 0) and (rows, 128)", f"{position} {size}", "MX products are tiled by rows alone",
        )  # fmt: skip
