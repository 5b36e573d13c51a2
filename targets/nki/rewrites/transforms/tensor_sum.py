"""Sums on the tensor engine: what a loop adds to a tile is added up in PSUM, by products with the identity.

An addition of two tiles in SBUF takes VectorE two cycles per element. The tensor engine adds what it
multiplies to what is in PSUM; multiplied by the identity, that is the tile itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import libcst as cst

from nki_sim.targets import Target
from targets.nki.rewrites import syntax
from targets.nki.rewrites.arithmetic import substituted
from targets.nki.rewrites.model import Kernel, Statement
from targets.nki.rewrites.placing import check_place
from targets.nki.rewrites.staging import shape_texts
from targets.nki.rewrites.summing import Products, Sum, adders, in_psum, matrix_sum_of
from targets.nki.rewrites.transform import Choice, Refused, Transform
from targets.nki.rewrites.values import Tensor


class TensorSum(Transform[Statement]):
    """Accumulates in PSUM what VectorE accumulated in SBUF."""

    id: ClassVar[str] = "tensor_sum"
    counter: ClassVar[str] = "vector_engine_active_time_percent"
    keeps: ClassVar[str] = (
        "a product of finite numbers with the identity is the tile itself, "
        "and PSUM adds up in float32 in the same order"
    )

    def places(self, kernel: Kernel, target: Target) -> Mapping[str, Statement]:
        del target
        return adders(kernel)

    def choices(self, kernel: Kernel, target: Target, place: Statement) -> tuple[Choice, ...]:
        plan = matrix_sum_of(kernel, place)
        _chunk(target, plan.total)
        if plan.part.buffer == "psum":
            check_place(kernel, plan.part, "sbuf")
        return ({},)

    def apply(self, kernel: Kernel, target: Target, place: Statement, choice: Choice) -> str:
        del choice
        plan = matrix_sum_of(kernel, place)
        chunk = _chunk(target, plan.total)

        def made(eye: str, bank: str) -> list[cst.BaseStatement]:
            return [_product(kernel, plan, eye, bank, chunk)]

        return in_psum(kernel, target, plan, Products(plan.part, made))


def _chunk(target: Target, total: Tensor) -> int:
    """Columns of one product: those of a bank of PSUM."""
    columns, most = total.shape[1], min(target.psum_bank_bytes // 4, target.matmul_moving_max)
    if columns > most and columns % most:
        raise Refused(
            f"the {columns} columns of {total.name} are no multiple of the {most} of a bank of PSUM"
        )
    if total.shape[0] > target.matmul_stationary_max:
        raise Refused(f"{total.name} has more rows than a product")
    return min(columns, most)


def _product(kernel: Kernel, plan: Sum, eye: str, bank: str, chunk: int) -> cst.BaseStatement:
    """The tile times the identity, bank by bank."""
    index = kernel.fresh("i_bank")
    part = "" if plan.total.shape[1] == chunk else f"[:, {index} * {chunk} : ({index} + 1) * {chunk}]"
    call = (
        f"{kernel.nisa}.nc_matmul(dst={bank}{part}, stationary={eye}, moving={plan.part.name}{part}, "
        f"is_stationary_onezero=True)"
    )
    line = syntax.statement(call)
    if not part:
        return syntax.at_front(line, syntax.leading(plan.adder.node))
    columns = shape_texts(kernel, kernel.declarations[plan.total.id])[1]
    count = substituted(f"columns // {chunk}", {"columns": columns})
    looped = syntax.loop(index, f"{kernel.nl}.affine_range({count})", [line])
    return syntax.at_front(looped, syntax.leading(plan.adder.node))
