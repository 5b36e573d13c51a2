"""Rules on tensor indirection: operands whose columns an index chooses, from NeuronCore-v4 on.

The sections *Tensor indirection* of the pages of `nki.isa` say which operands of which instructions may be
`.indirect()` views, on which engines, and where indices may lie [D: SDK 2.32]. Compiler errors of the same
release (`BIR701` to `BIR722`) name the same limits.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from nki_sim.dtypes import V4
from nki_sim.forms import PRODUCTS, Form, Operand, index_role
from nki_sim.operators.rules.shapes import SCALE_ROLES, Breach
from nki_sim.targets import Target

QUADRANT = 32
"""Indices begin at a multiple of this many partitions."""

_GATHERED_PRODUCTS = frozenset({"float16", "bfloat16", "float8_e4m3", "float8_e5m2", "float8_e4m3fn"})
_WIDE_INTEGERS = frozenset({"int32", "uint32"})


@dataclass(frozen=True, slots=True)
class _Support:
    """The input that may be gathered besides a scattered `dst`, and the engines that do either.

    A product may gather `stationary` too, and MX operands with their scales.
    """

    source: str
    engines: frozenset[str]


def _support(source: str, *engines: str) -> _Support:
    return _Support(source, frozenset(engines))


_SUPPORT = {
    "tensor_copy": _support("src", "vector", "scalar"),
    "tensor_copy_predicated": _support("predicate", "vector"),
    "tensor_tensor": _support("data1", "vector", "gpsimd"),
    "tensor_scalar": _support("data", "vector", "scalar", "gpsimd"),
    "tensor_reduce": _support("data", "vector"),
    "tensor_scalar_reduce": _support("data", "vector"),
    "tensor_scalar_cumulative": _support("src", "vector"),
    "exponential": _support("src", "vector"),
    "activation": _support("data", "scalar"),
    "activation_reduce": _support("data", "scalar"),
    "activate2": _support("data", "scalar"),
    "nc_matmul": _support("moving", "tensor"),
    "nc_matmul_mx": _support("moving", "tensor"),
}


def column_lookups(form: Form, target: Target) -> Iterator[Breach]:
    """Indirect operands are documented for their role, their engine, their type and their place."""
    if not form.column_lookups:
        return
    if target.generation < V4:
        yield Breach(
            "generation", f"tensor indirection of {form.op} needs NeuronCore-v4, {target.name} has "
            f"NeuronCore-v{target.generation}", form.column_lookups[0][0].role, "v4",
            f"v{target.generation}", "gather with nisa.nc_n_gather, or choose a newer target",
        )  # fmt: skip
    support = _SUPPORT.get(form.op)
    if support is not None and form.engine not in support.engines:
        yield Breach(
            "indirect_engine", f"{form.op} does not gather or scatter columns on the {form.engine} engine",
            form.column_lookups[0][0].role, "|".join(sorted(support.engines)), form.engine,
            f"pass engine=nisa.engine.{min(support.engines, key=_engine_order)}",
        )  # fmt: skip
    for item, index in form.column_lookups:
        yield from _operand(form, item, support)
        yield from _offsets(form, item, index)
        yield from _alignment(form, item, index, support)
    yield from _array_tile(form)


def _engine_order(engine: str) -> tuple[bool, str]:
    return engine != "vector", engine


def _operand(form: Form, item: Operand, support: _Support | None) -> Iterator[Breach]:
    """The role, the type and the memory of an indirect operand."""
    gathers = item.role != "dst"
    allowed = () if support is None else tuple(role for role in ("dst", support.source) if role)
    if form.op in PRODUCTS:
        allowed = ("dst", "stationary") if form.param("is_transpose") else ("dst", "stationary", "moving")
    if item.role.rstrip("0123") in SCALE_ROLES:
        return  # the front end compares their index with that of their numbers
    reason, hint = "", f"only {' and '.join(allowed)} of {form.op} may be: copy the columns to a tile first"
    if item.role not in allowed:
        reason = f"{item.role} of {form.op} cannot be an indirect view"
        if not allowed:
            hint = "gather with nisa.tensor_copy to a tile of its own first"
    elif form.op == "nc_matmul" and gathers and item.dtype not in _GATHERED_PRODUCTS:
        reason = f"the tensor engine gathers no {item.dtype} ({item.role})"
        hint = f"gather {', '.join(sorted(_GATHERED_PRODUCTS))}, or copy the columns to a tile first"
    elif form.engine == "scalar" and not gathers and item.buffer == "psum":
        reason, hint = "ScalarE scatters no columns into PSUM", "scatter into SBUF, or use the vector engine"
    elif form.op == "tensor_scalar" and {tile.dtype for tile in form.tiles} <= _WIDE_INTEGERS:
        reason = "tensor_scalar of 32-bit integers alone takes no indirect view"
        hint = "copy the columns to a tile first"
    if reason:
        yield Breach("indirect_operand", reason, item.role, "|".join(allowed), item.role, hint)


def _offsets(form: Form, item: Operand, index: Operand) -> Iterator[Breach]:
    """Each group of partitions has as many offsets as the operand has columns."""
    group = form.column_group
    partial = index.partitions % group
    most = min(group * index.free, partial or group * index.free)
    if item.free > most:
        yield Breach(
            "indirect_offsets", f"{item.role} takes {item.free} columns, {index.partitions}x{index.free} "
            f"offsets hold {most} in each group of {group} partitions", item.role, most, item.free,
            f"offset i is index[i % {group}, i // {group}] of its group; pass num_elem={most} or widen it",
        )  # fmt: skip


def _alignment(form: Form, item: Operand, index: Operand, support: _Support | None) -> Iterator[Breach]:
    """Indices begin on a quadrant, gathered data with them, and scattered data where their index does."""
    source = form.operand("stationary" if form.engine == "tensor" else support.source if support else "")
    wanted = index.start - index.start % QUADRANT
    other = "a quadrant boundary"
    if item.role.rstrip("0123") in SCALE_ROLES:
        pass  # they lie anywhere in the quadrant of their numbers
    elif index.start == wanted and item.role != "dst":
        wanted, other = item.start, item.role
    elif index.start == wanted and source is not None:
        chosen = form.operand(index_role(source.role)) if source.index_step else None
        if source.buffer == "sbuf":
            wanted, other = source.start, source.role
        elif chosen is not None:
            wanted, other = chosen.start, chosen.role
    if index.start != wanted:
        yield Breach(
            "indirect_alignment", f"the index of {item.role} begins at partition {index.start}, not at "
            f"{other}: {wanted}", item.role, wanted, index.start,
            "indices begin at a multiple of 32 partitions, where the data that they choose from begins",
        )  # fmt: skip


def _array_tile(form: Form) -> Iterator[Breach]:
    position = form.param("tile_position")
    if isinstance(position, tuple) and any(position):
        yield Breach(
            "indirect_tiling", "tensor indirection does not work with tiles of the array", "dst", "(0, 0)",
            str(position), "leave tile_position out",
        )  # fmt: skip
