"""The hardware's rules on products: shapes, types, FP8 double rows, tiles of the array."""

from __future__ import annotations

from collections.abc import Iterator

from nki_sim.dtypes import V4
from nki_sim.forms import Form, Operand
from nki_sim.operators.rules.shapes import Breach
from nki_sim.targets import Target

_FLOAT32 = frozenset({"float32", "tfloat32"})
_FLOAT8 = frozenset({"float8_e4m3", "float8_e5m2"})
_OCP_FLOAT8 = "float8_e4m3fn"
_TYPES = _FLOAT32 | _FLOAT8 | {"bfloat16", "float16"}
V3 = 3


def _float8_types(target: Target) -> frozenset[str]:
    return _FLOAT8 | {_OCP_FLOAT8} if target.generation >= V4 else _FLOAT8


def rows_per_partition(form: Form) -> int:
    """Rows of the array that one partition feeds: 2 with double rows, else 1."""
    return 2 if form.param("perf_mode") == "double_row" else 1


def matmul_shapes(form: Form, target: Target) -> Iterator[Breach]:
    """dst[M, N] from stationary[K, M] and moving[K, N]; K, M <= 128, N <= 512, or all of PSUM from v4 on.

    With double rows stationary is [K, 2, M] and moving [K, 2, N].
    """
    dst, left, right, rows = form["dst"], form["stationary"], form["moving"], rows_per_partition(form)
    columns = target.matmul_moving_max
    if target.generation >= V4:
        columns = target.psum_banks * target.psum_bank_bytes // dst.itemsize
    limits = (
        ("stationary", left.partitions, target.matmul_contract_max, "contraction (partitions)"),
        ("stationary", left.free // rows, target.matmul_stationary_max, "stationary free size"),
        ("moving", right.free // rows, columns, "moving free size"),
    )
    for role, value, limit, what in limits:
        if value > limit:
            yield Breach(
                "matmul_size", f"{what} is {value}, the limit is {limit}", role, limit, value,
                f"tile the matrix product: K and M by 128, N by {columns}",
            )  # fmt: skip
    found = f"{left.partitions}x{left.free}, {right.partitions}x{right.free} -> {dst.partitions}x{dst.free}"
    wanted = (left.free // rows, right.free // rows)
    if left.partitions != right.partitions or (dst.partitions, dst.free) != wanted:
        yield Breach(
            "matmul_shape", f"operands do not match: {found}", "dst",
            f"{wanted[0]}x{wanted[1]}", f"{dst.partitions}x{dst.free}",
            "stationary is [K, M], moving is [K, N], dst is [M, N]",
        )  # fmt: skip


def double_row(form: Form, target: Target) -> Iterator[Breach]:
    """Two FP8 rows for each partition: NeuronCore-v3 on, not with column tiles, not for transposes."""
    if rows_per_partition(form) == 1:
        return
    if target.generation < V3:
        yield Breach(
            "generation", f"double_row is for NeuronCore-v3 and later, not {target.name}", "dst",
            "NeuronCore-v3", target.name, "leave perf_mode out",
        )  # fmt: skip
    for item in (form["stationary"], form["moving"]):
        if item.dtype not in _float8_types(target):
            yield Breach(
                "matmul_dtype", f"{item.role} is {item.dtype}, double_row takes FP8", item.role,
                "|".join(sorted(_float8_types(target))), item.dtype, "leave perf_mode out, or convert to FP8",
            )  # fmt: skip
        if len(item.dims) < 3 or item.dims[1][1] != 2:
            yield Breach(
                "double_row_shape", f"the first free dimension of {item.role} is not 2", item.role,
                "[K, 2, N]", "x".join(str(count) for _, count in item.dims),
                "double_row takes [K, 2, N]: two rows of the contraction in each partition",
            )  # fmt: skip
    column = form.param("tile_size")
    if form.param("is_transpose") or (isinstance(column, tuple) and column[1:] != (128,)):
        yield Breach(
            "double_row", "double_row does not go with transposes or column tiles", "dst", "neither",
            "both", "leave perf_mode out",
        )  # fmt: skip


def operand_dtypes(form: Form, target: Target) -> Iterator[Breach]:
    """Floating-point types of 32 bits or fewer; float32 and tfloat32 do not mix with the narrower ones."""
    left, right = form["stationary"], form["moving"]
    if (left.dtype in _FLOAT32) != (right.dtype in _FLOAT32):
        yield Breach(
            "matmul_dtype", f"stationary is {left.dtype} and moving is {right.dtype}", "moving",
            left.dtype, right.dtype, "float32 may not be mixed with other types",
        )  # fmt: skip
    if {left.dtype, right.dtype} == {_OCP_FLOAT8, "float8_e4m3"}:
        yield Breach(
            "matmul_dtype", f"stationary is {left.dtype} and moving is {right.dtype}", "moving", left.dtype,
            right.dtype, "the two kinds of FP8 with 4 bits of exponent do not mix: convert one",
        )  # fmt: skip
    for item in (left, right):
        yield from _multiply_dtype(item, target)


def _multiply_dtype(item: Operand, target: Target) -> Iterator[Breach]:
    if item.dtype not in _TYPES | _float8_types(target):
        yield Breach(
            "matmul_dtype", f"{item.role} is {item.dtype}, which {target.name} does not multiply", item.role,
            "|".join(sorted(_TYPES | _float8_types(target))), item.dtype,
            "convert to one of these types first",
        )  # fmt: skip


def result_dtype(form: Form, target: Target) -> Iterator[Breach]:
    """PSUM accumulates in float32, from v4 on also in bfloat16; from v3 on transposes may keep their type."""
    dst = form["dst"]
    if dst.dtype == "bfloat16" and target.generation >= V4:
        return
    kept = {form["stationary"].dtype, form["moving"].dtype} if form.param("is_transpose") else set()
    if dst.dtype != "float32" and (target.generation < V3 or dst.dtype not in kept):
        yield Breach(
            "matmul_dtype", f"dst is {dst.dtype}, PSUM accumulates in float32", "dst", "float32", dst.dtype,
            "declare the PSUM tile float32 and convert in the copy to SBUF",
        )  # fmt: skip


_PAIR = 2
_SIZES = (32, 64, 128)


def array_tile(form: Form, target: Target) -> Iterator[Breach]:
    """A part of the array: sizes of 32 (v3 on), 64 or 128, starting at a multiple, holding stationary."""
    position, size = form.param("tile_position"), form.param("tile_size")
    if not position and not size:
        return
    least = _SIZES[0] if target.generation >= V3 else _SIZES[1]
    if not _is_array_tile(position, size, least):
        yield Breach(
            "matmul_tile", f"tile_position is {position}, tile_size is {size}", "dst",
            f"sizes from {least} to 128, at multiples of themselves", f"{position} {size}",
            "give both; sizes are powers of two, and a tile starts at a multiple of its size within 128",
        )  # fmt: skip
        return
    assert isinstance(size, tuple)
    left = form["stationary"]
    found = (left.partitions, left.free // rows_per_partition(form))
    if found[0] > size[0] or found[1] > size[1]:
        yield Breach(
            "matmul_tile", f"stationary is {found[0]}x{found[1]}, its tile of the array is {size}",
            "stationary", str(size), str(found), "choose a tile_size that holds the stationary operand",
        )  # fmt: skip


def _is_array_tile(position: object, size: object, least: int) -> bool:
    pair = isinstance(position, tuple) and isinstance(size, tuple) and len(position) == len(size) == _PAIR
    return pair and all(
        edge in _SIZES and edge >= least and start % edge == 0 and start + edge <= _SIZES[-1]
        for start, edge in zip(position, size, strict=True)  # type: ignore[call-overload]
    )
