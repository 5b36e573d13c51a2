"""Sums of products with a row, made where the row is a factor for each partition: of the tile turned around.

A tile in whose partitions one row stands multiplies another one element by element, which only VectorE and
GpSimd can do. Turned by the tensor engine, the row's elements lie in partitions of their own, and ScalarE
multiplies each partition by its own as it takes the turned tile out of PSUM. The tensor engine turns the
product back when it adds it up.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import libcst as cst

from agent_core.builtin import syntax
from agent_core.builtin.arithmetic import substituted
from agent_core.builtin.elementwise import Apply, Leaf, computed, sole_writer
from agent_core.builtin.model import Kernel, Statement
from agent_core.builtin.staging import shape_texts
from agent_core.builtin.summing import Products, adders, in_psum, sum_of
from agent_core.builtin.transforms.base import Choice, Refused, Transform
from agent_core.builtin.transforms.place import check_place
from agent_core.builtin.values import Tensor
from nki_sim.targets import Target


@dataclass(frozen=True, slots=True)
class RowProduct:
    """`item` makes `part` of `data` and of `row`, which is the same in all partitions."""

    item: Statement
    part: Tensor
    data: Tensor
    row: Tensor


class TurnedSum(Transform[Statement]):
    """Multiplies by rows on ScalarE, between two products of the tensor engine, what is added up."""

    id: ClassVar[str] = "turned_sum"
    counter: ClassVar[str] = "vector_engine_active_time_percent"
    keeps: ClassVar[str] = (
        "the same numbers are multiplied, elsewhere, and turned around twice they are where they were; "
        "PSUM adds up in float32 in the same order"
    )

    def places(self, kernel: Kernel, target: Target) -> Mapping[str, Statement]:
        del target
        return adders(kernel)

    def choices(self, kernel: Kernel, target: Target, place: Statement) -> tuple[Choice, ...]:
        _row_product(kernel, target, sum_of(kernel, place).part, place)
        return ({},)

    def apply(self, kernel: Kernel, target: Target, place: Statement, choice: Choice) -> str:
        del choice
        plan = sum_of(kernel, place)
        product = _row_product(kernel, target, plan.part, place)

        def made(eye: str, bank: str) -> list[cst.BaseStatement]:
            return _turned(kernel, product, place, eye, bank)

        gone = (product.item, kernel.declarations[product.part.id])
        return in_psum(kernel, target, plan, Products(product.data, made, gone))


def _row_product(kernel: Kernel, target: Target, part: Tensor, adder: Statement) -> RowProduct:
    """How a tile that is added up was made, if that is a product with a row and used for nothing else.

    Raises:
        Refused: it was made otherwise, or its blocks do not fit the tensor engine or PSUM.
    """
    item = sole_writer(kernel, part)
    made = computed(item) if item is not None else None
    if item is None or (item.path, item.guards) != (adder.path, adder.guards):
        raise Refused(f"{part.name} is not made by one instruction beside the one that adds it")
    if kernel.users(part) != [item, adder]:
        raise Refused(f"{part.name} is used otherwise, too")
    match made:
        case Apply("multiply", (Leaf(first), Leaf(second))) if first.tensor.id != second.tensor.id:
            rows = [view.tensor for view in (second, first) if _is_row(kernel, view.tensor, item)]
        case _:
            rows = []
    if not rows:
        raise Refused(f"{part.name} is no product with a row that was loaded into all partitions")
    row = rows[0]
    data = first.tensor if row.id == second.tensor.id else second.tensor
    for tensor, view in ((first.tensor, first), (second.tensor, second)):
        if not (view.whole and view.plain) or (tensor.shape, tensor.dtype) != (part.shape, "float32"):
            raise Refused(f"{tensor.name} is not multiplied whole, or holds {tensor.dtype}")
    if kernel.changes(data, item, adder):
        raise Refused(f"{data.name} changes before {part.name} is added")
    if data.buffer == "psum":
        check_place(kernel, data, "sbuf")
    _check_size(target, part)
    return RowProduct(item, part, data, row)


def _is_row(kernel: Kernel, tensor: Tensor, user: Statement) -> bool:
    """Whether a tile in SBUF was loaded with one row for all of its partitions, and nothing since."""
    writer = sole_writer(kernel, tensor)
    if writer is None or writer.op != "dma_copy" or writer.order > user.order or tensor.buffer != "sbuf":
        return False
    src = writer.access("src")
    return src is not None and user.path[: len(writer.path)] == writer.path and src.view.axes[0].step == 0


def _check_size(target: Target, part: Tensor) -> None:
    rows, columns = part.shape
    if rows != target.partitions or columns % target.partitions:
        raise Refused(f"{part.name} is not made of blocks of {target.partitions} by {target.partitions}")
    # The sum, the turned tile, and the turned row.
    if 4 * (2 * columns + columns // rows) > target.psum_banks * target.psum_bank_bytes:
        raise Refused(f"{part.name} and its sum do not fit in PSUM together")


def _turned(
    kernel: Kernel, plan: RowProduct, adder: Statement, eye: str, bank: str
) -> list[cst.BaseStatement]:
    """Adds the product to `bank` block by block; `eye` is the identity over all partitions."""
    nl, nisa = kernel.nl, kernel.nisa
    declared = kernel.declarations[plan.part.id]
    rows, columns = shape_texts(kernel, declared)
    side = plan.part.shape[0]
    count = substituted(f"columns // {side}", {"columns": columns})
    index = kernel.fresh("i_part")
    row, factor, data = (
        kernel.fresh(name)
        for name in (f"{plan.row.name}_turned", f"{plan.row.name}_factor", f"{plan.data.name}_turned")
    )
    block, column = f":, {index} * {side} : ({index} + 1) * {side}", f":, {index} : {index} + 1"

    def tile(name: str, shape: str, buffer: str) -> cst.BaseStatement:
        return syntax.statement(f"{name} = {nl}.ndarray({shape}, dtype={nl}.float32, buffer={nl}.{buffer})")

    def each(operation: str, **words: str) -> cst.BaseStatement:
        line = syntax.call(f"{nisa}.{operation}", words)
        return syntax.loop(index, f"{nl}.affine_range({count})", [line])

    part, here = plan.part.name, f":, {index}, :"
    note = cst.EmptyLine(comment=cst.Comment(f"# Turned, {plan.row.name} is one factor for each partition."))
    first, *rest = [
        tile(row, f"({side}, {count})", "psum"),
        each(
            "nc_transpose",
            dst=f"{row}[{column}]",
            data=f"{plan.row.name}[0:1, {block.removeprefix(':, ')}]",
        ),
        tile(factor, f"({side}, {count})", "sbuf"),
        syntax.call(f"{nisa}.tensor_copy", {"dst": factor, "src": row}),
        tile(data, f"({side}, {count}, {rows})", "psum"),
        each("nc_transpose", dst=f"{data}[{here}]", data=f"{plan.data.name}[{block}]"),
        tile(part, f"({side}, {count}, {rows})", "sbuf"),
        each(
            "activation",
            dst=f"{part}[{here}]",
            op=f"{nl}.copy",
            data=f"{data}[{here}]",
            scale=f"{factor}[{column}]",
        ),
        each(
            "nc_matmul",
            dst=f"{bank}[{block}]",
            stationary=f"{part}[{here}]",
            moving=eye,
            is_moving_onezero="True",
        ),
    ]
    lines = syntax.leading_of_all(declared.node, plan.item.node, adder.node)
    return [syntax.at_front(first, [*lines, note]), *rest]
