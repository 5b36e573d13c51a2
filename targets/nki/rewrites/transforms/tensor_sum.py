"""Sums on the tensor engine: products with the identity accumulate in PSUM what a loop adds to a tile.

VectorE takes two cycles per element to add two tiles in SBUF. The tensor engine adds each product to the
contents of PSUM; the product of a tile with the identity is the tile itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import libcst as cst

from nki_sim.targets import Target
from targets.nki.rewrites import syntax
from targets.nki.rewrites.arithmetic import substitute_names
from targets.nki.rewrites.declarations import shape_texts
from targets.nki.rewrites.kernel_ir import Kernel, Statement
from targets.nki.rewrites.memory_placement import check_placement
from targets.nki.rewrites.psum_accumulation import (
    LoopSum,
    SumProducts,
    accumulate_in_psum,
    find_adders,
    find_matrix_sum,
)
from targets.nki.rewrites.transform import Choice, RewriteRefused, Transform
from targets.nki.rewrites.values import Tensor


class TensorSum(Transform[Statement]):
    """Accumulates in PSUM what VectorE accumulated in SBUF."""

    id: ClassVar[str] = "tensor_sum"
    counter: ClassVar[str] = "vector_engine_active_time_percent"
    keeps: ClassVar[str] = (
        "a product of finite numbers with the identity is the tile itself, "
        "and PSUM adds up in float32 in the same order"
    )

    def find_sites(self, kernel: Kernel, target: Target) -> Mapping[str, Statement]:
        del target
        return find_adders(kernel)

    def list_choices(self, kernel: Kernel, target: Target, place: Statement) -> tuple[Choice, ...]:
        plan = find_matrix_sum(kernel, place)
        _columns_per_product(target, plan.total)
        if plan.added_tile.buffer == "psum":
            check_placement(kernel, plan.added_tile, "sbuf")
        return ({},)

    def apply(self, kernel: Kernel, target: Target, place: Statement, choice: Choice) -> str:
        del choice
        plan = find_matrix_sum(kernel, place)
        chunk = _columns_per_product(target, plan.total)

        def made(eye: str, bank: str) -> list[cst.BaseStatement]:
            return [_write_product(kernel, plan, eye, bank=bank, chunk=chunk)]

        return accumulate_in_psum(kernel, target, plan, SumProducts(plan.added_tile, made))


def _columns_per_product(target: Target, total: Tensor) -> int:
    """Columns of one product: as many as fit a PSUM bank."""
    columns, most = total.shape[1], min(target.psum_bank_bytes // 4, target.matmul_moving_max)
    if columns > most and columns % most:
        raise RewriteRefused(
            f"the {columns} columns of {total.name} are no multiple of the {most} of a bank of PSUM"
        )
    if total.shape[0] > target.matmul_stationary_max:
        raise RewriteRefused(f"{total.name} has more rows than a product")
    return min(columns, most)


def _write_product(kernel: Kernel, plan: LoopSum, eye: str, *, bank: str, chunk: int) -> cst.BaseStatement:
    """The tile times the identity, one PSUM bank at a time."""
    index = kernel.fresh_name("i_bank")
    part = "" if plan.total.shape[1] == chunk else f"[:, {index} * {chunk} : ({index} + 1) * {chunk}]"
    call = (
        f"{kernel.nisa}.nc_matmul(dst={bank}{part}, stationary={eye}, moving={plan.added_tile.name}{part}, "
        f"is_stationary_onezero=True)"
    )
    line = syntax.parse_statement(call)
    if not part:
        return syntax.with_leading_lines(line, syntax.leading_lines(plan.adder.node))
    columns = shape_texts(kernel, kernel.declarations[plan.total.id])[1]
    count = substitute_names(f"columns // {chunk}", {"columns": columns})
    looped = syntax.make_loop(index, f"{kernel.nl}.affine_range({count})", [line])
    return syntax.with_leading_lines(looped, syntax.leading_lines(plan.adder.node))
