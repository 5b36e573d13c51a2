"""Multiplies by a row in the transposed domain, where the row is one factor per partition, and accumulates.

A tile that repeats one row in every partition multiplies another tile element by element, which only VectorE
and GpSimd can do. If the tensor engine transposes the tile, the row's elements lie in one partition each.
ScalarE then multiplies each partition by its factor while it copies the transposed tile out of PSUM. The
tensor engine transposes the product back when it accumulates it. If the rows of all iterations are
neighbours, they are loaded and transposed together before the loop, and no row has to be written to every
partition.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import libcst as cst

from nki_sim.targets import Target
from targets.nki.rewrites import syntax
from targets.nki.rewrites.arithmetic import substitute_names
from targets.nki.rewrites.declarations import shape_texts
from targets.nki.rewrites.elementwise import Apply, Leaf, element_expression, find_sole_writer
from targets.nki.rewrites.kernel_ir import Kernel, Loop, Statement
from targets.nki.rewrites.memory_placement import check_placement
from targets.nki.rewrites.psum_accumulation import (
    LoopSum,
    SumProducts,
    accumulate_in_psum,
    find_adders,
    find_matrix_sum,
)
from targets.nki.rewrites.slices import (
    base_name,
    find_walked_dimension,
    full_span,
    parse_windows,
    widen_window,
)
from targets.nki.rewrites.transform import Choice, RewriteRefused, Transform
from targets.nki.rewrites.values import Tensor, TensorView


@dataclass(frozen=True, slots=True)
class RowProduct:
    """`item` computes `part` as `data` times `row`; `load` writes the row to all partitions."""

    item: Statement
    part: Tensor
    data: Tensor
    row: Tensor
    load: Statement


class TransposedAccumulate(Transform[Statement]):
    """Multiplies accumulated tiles by rows on ScalarE, between two products of the tensor engine."""

    id: ClassVar[str] = "turned_sum"
    counter: ClassVar[str] = "vector_engine_active_time_percent"
    keeps: ClassVar[str] = (
        "the same numbers are multiplied, elsewhere, and turned around twice they are where they were; "
        "PSUM adds up in float32 in the same order"
    )

    def find_sites(self, kernel: Kernel, target: Target) -> Mapping[str, Statement]:
        del target
        return find_adders(kernel)

    def list_choices(self, kernel: Kernel, target: Target, place: Statement) -> tuple[Choice, ...]:
        _find_row_product(kernel, target, find_matrix_sum(kernel, place).added_tile, adder=place)
        return ({},)

    def apply(self, kernel: Kernel, target: Target, place: Statement, choice: Choice) -> str:
        del choice
        plan = find_matrix_sum(kernel, place)
        product = _find_row_product(kernel, target, plan.added_tile, adder=place)
        writer = _TransposedSumWriter(kernel, product)
        rows = _find_loop_rows(kernel, target, plan, product=product)
        factors = writer.write_all_factors(rows) if rows is not None else writer.write_factor()

        def made(eye: str, bank: str) -> list[cst.BaseStatement]:
            return writer.write_products(factors, place, eye, bank)

        gone = (product.item, kernel.declarations[product.part.id], *factors.gone)
        return accumulate_in_psum(kernel, target, plan, SumProducts(product.data, made, gone, factors.before))


def _find_row_product(kernel: Kernel, target: Target, part: Tensor, *, adder: Statement) -> RowProduct:
    """Return the product with a row that makes an accumulated tile and has no other use.

    Raises:
        RewriteRefused: the tile is made otherwise, or its blocks do not fit the tensor engine or PSUM.
    """
    item = find_sole_writer(kernel, part)
    made = element_expression(item) if item is not None else None
    if item is None or (item.path, item.guards) != (adder.path, adder.guards):
        raise RewriteRefused(f"{part.name} is not made by one instruction beside the one that adds it")
    if kernel.users_of(part) != [item, adder]:
        raise RewriteRefused(f"{part.name} is used otherwise, too")
    match made:
        case Apply("multiply", (Leaf(first), Leaf(second))) if first.tensor.id != second.tensor.id:
            loads = [load for view in (second, first) if (load := _find_row_load(kernel, view.tensor, item))]
        case _:
            loads = []
    if not loads:
        raise RewriteRefused(f"{part.name} is no product with a row that was loaded into all partitions")
    row = _destination_view(loads[0]).tensor
    data = first.tensor if row.id == second.tensor.id else second.tensor
    for tensor, view in ((first.tensor, first), (second.tensor, second)):
        if not (view.is_whole and view.plain) or (tensor.shape, tensor.dtype) != (part.shape, "float32"):
            raise RewriteRefused(f"{tensor.name} is not multiplied whole, or holds {tensor.dtype}")
    if kernel.may_change(data, item, adder):
        raise RewriteRefused(f"{data.name} changes before {part.name} is added")
    if data.id in kernel.escaping_ids or kernel.may_rebind(f"{data.name}, {row.name}", item, adder):
        raise RewriteRefused(f"{data.name} or {row.name} has a second name, or is that of another tile later")
    if data.buffer == "psum":
        check_placement(kernel, data, "sbuf")
    _check_size(target, part)
    return RowProduct(item, part, data, row, loads[0])


def _find_row_load(kernel: Kernel, tensor: Tensor, user: Statement) -> Statement | None:
    """Return what loaded one row into all partitions of an SBUF tile, if the tile is unchanged since."""
    writer = find_sole_writer(kernel, tensor)
    if writer is None or writer.op != "dma_copy" or writer.order > user.order or tensor.buffer != "sbuf":
        return None
    src = writer.find_access("src")
    same = user.path[: len(writer.path)] == writer.path and user.guards == writer.guards
    return writer if src is not None and same and src.view.axes[0].step == 0 else None


def _destination_view(load: Statement) -> TensorView:
    dst = load.find_access("dst")
    assert dst is not None
    return dst.view


def _check_size(target: Target, part: Tensor) -> None:
    rows, columns = part.shape
    if rows != target.partitions or columns % target.partitions:
        raise RewriteRefused(
            f"{part.name} is not made of blocks of {target.partitions} by {target.partitions}"
        )
    # One bank each for the sum, the transposed tile and the transposed row.
    if 4 * (2 * columns + columns // rows) > target.psum_banks * target.psum_bank_bytes:
        raise RewriteRefused(f"{part.name} and its sum do not fit in PSUM together")


@dataclass(frozen=True, slots=True)
class LoopRows:
    """The source of the rows of all iterations of a loop, and of an iteration's number among them."""

    source: str
    loop: Loop
    index: str


def _find_loop_rows(kernel: Kernel, target: Target, plan: LoopSum, *, product: RowProduct) -> LoopRows | None:
    """The rows of all iterations, if they are neighbours in an input and fit a PSUM bank when transposed."""
    load, loop = product.load, plan.loop
    src = load.find_access("src")
    assert src is not None
    text = _strip_broadcast(kernel, load.texts["src"])
    blocks = product.part.shape[1] // product.part.shape[0]
    few = loop.trips <= target.partitions and 4 * blocks * loop.trips <= target.psum_bank_bytes
    if text is None or not few or loop.index_text is None or load.path[-1:] != (loop,):
        return None
    if kernel.may_rebind(loop.var, load, plan.adder):
        return None
    if find_walked_dimension(src.view, loop) != 0 or len(src.tensor.shape) != len("pf"):
        return None
    if any(item.writes_tensor(src.tensor) for item in kernel.statements):
        return None
    try:
        first, columns = parse_windows(kernel, text, len("pf"))
    except RewriteRefused:
        return None
    wide = widen_window(src.view, 0, loop, first.lower, full_span(loop))
    source = f"{base_name(text)}[{wide}, {columns.text}]"
    if not columns.kept or kernel.may_rebind(source, plan.clear, load):
        return None
    return LoopRows(source, loop, loop.index_text)


def _strip_broadcast(kernel: Kernel, text: str) -> str | None:
    """The source of the row that a view broadcasts to all partitions."""
    node = syntax.parse_expression(text)
    if isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute):
        return kernel.module.code_for_node(node.func.value) if node.func.attr.value == "broadcast" else None
    return None


@dataclass(frozen=True, slots=True)
class RowFactors:
    """The source `column` of a block's factors.

    They are made `before` the loop or `inside` it; the statements `gone` are no longer needed.
    """

    column: str
    before: Sequence[cst.BaseStatement] = ()
    inside: Sequence[cst.BaseStatement] = ()
    gone: tuple[Statement, ...] = ()


class _TransposedSumWriter:
    """Writes the replacement of a product with a row, block by block."""

    def __init__(self, kernel: Kernel, plan: RowProduct) -> None:
        self._kernel, self._plan = kernel, plan
        self._height, self._width = shape_texts(kernel, kernel.declarations[plan.part.id])
        self._side = plan.part.shape[0]
        self._count = substitute_names(f"columns // {self._side}", {"columns": self._width})
        self._index = kernel.fresh_name("i_part")
        self._block = f"{self._index} * {self._side} : ({self._index} + 1) * {self._side}"
        self._row_turned = kernel.fresh_name(f"{plan.row.name}_turned")
        self._factor = kernel.fresh_name(f"{plan.row.name}_factor")

    def write_factor(self) -> RowFactors:
        """Write the factors of one iteration, from the row that it has loaded."""
        column = f":, {self._index} : {self._index} + 1"
        made = [
            self._declare_tile(self._row_turned, f"{self._side}, {self._count}", "psum"),
            self._write_block_loop(
                "nc_transpose",
                dst=f"{self._row_turned}[{column}]",
                data=f"{self._plan.row.name}[0:1, {self._block}]",
            ),
            self._declare_tile(self._factor, f"{self._side}, {self._count}", "sbuf"),
            self._write_call("tensor_copy", dst=self._factor, src=self._row_turned),
        ]
        return RowFactors(f"{self._factor}[{column}]", inside=[self._add_comment(made[0]), *made[1:]])

    def write_all_factors(self, rows: LoopRows) -> RowFactors:
        """Write the factors of all iterations, from rows loaded without writing them to all partitions."""
        kernel, row, load = self._kernel, self._plan.row, self._plan.load
        name = kernel.fresh_name(f"{row.name}_rows")
        shape = f"{self._side}, {self._count}, {rows.loop.count_text}"
        made = [
            self._declare_tile(name, f"{rows.loop.count_text}, {self._width}", "sbuf"),
            self._write_call("dma_copy", dst=name, src=rows.source),
            self._declare_tile(self._row_turned, shape, "psum"),
            self._write_block_loop(
                "nc_transpose",
                dst=f"{self._row_turned}[:, {self._index}, :]",
                data=f"{name}[:, {self._block}]",
            ),
            self._declare_tile(self._factor, shape, "sbuf"),
            self._write_call("tensor_copy", dst=self._factor, src=self._row_turned),
        ]
        alone = kernel.users_of(row) == [load, self._plan.item]
        gone = (kernel.declarations[row.id], load) if alone else ()
        lines = syntax.merge_leading_lines(*(item.node for item in gone)) if gone else ()
        column = f"{self._factor}[:, {self._index}, {rows.index} : {rows.index} + 1]"
        return RowFactors(column, before=[self._add_comment(made[0], lines), *made[1:]], gone=gone)

    def write_products(
        self, factors: RowFactors, adder: Statement, eye: str, bank: str
    ) -> list[cst.BaseStatement]:
        """Add the product to `bank` block by block; `eye` is the identity over all partitions."""
        kernel, plan = self._kernel, self._plan
        declared = kernel.declarations[plan.part.id]
        data, part = kernel.fresh_name(f"{plan.data.name}_turned"), plan.part.name
        here, shape = f":, {self._index}, :", f"{self._side}, {self._count}, {self._height}"
        made: list[cst.BaseStatement] = [
            *factors.inside,
            self._declare_tile(data, shape, "psum"),
            self._write_block_loop(
                "nc_transpose", dst=f"{data}[{here}]", data=f"{plan.data.name}[:, {self._block}]"
            ),
            self._declare_tile(part, shape, "sbuf"),
            self._write_block_loop(
                "activation",
                dst=f"{part}[{here}]",
                op=f"{kernel.nl}.copy",
                data=f"{data}[{here}]",
                scale=factors.column,
            ),
            self._write_block_loop(
                "nc_matmul",
                dst=f"{bank}[:, {self._block}]",
                stationary=f"{part}[{here}]",
                moving=eye,
                is_moving_onezero="True",
            ),
        ]
        lines = syntax.merge_leading_lines(declared.node, plan.item.node, adder.node)
        return [syntax.with_leading_lines(made[0], [*lines, *syntax.leading_lines(made[0])]), *made[1:]]

    def _add_comment(self, item: cst.BaseStatement, lines: Sequence[cst.EmptyLine] = ()) -> cst.BaseStatement:
        text = f"# Turned, {self._plan.row.name} is one factor for each partition."
        return syntax.with_leading_lines(item, [*lines, cst.EmptyLine(comment=cst.Comment(text))])

    def _declare_tile(self, name: str, shape: str, buffer: str) -> cst.BaseStatement:
        nl = self._kernel.nl
        return syntax.parse_statement(
            f"{name} = {nl}.ndarray(({shape}), dtype={nl}.float32, buffer={nl}.{buffer})"
        )

    def _write_call(self, operation: str, **words: str) -> cst.BaseStatement:
        return syntax.make_call(f"{self._kernel.nisa}.{operation}", words)

    def _write_block_loop(self, operation: str, **words: str) -> cst.BaseStatement:
        blocks = f"{self._kernel.nl}.affine_range({self._count})"
        return syntax.make_loop(self._index, blocks, [self._write_call(operation, **words)])
