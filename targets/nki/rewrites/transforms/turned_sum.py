"""Sums of products with a row, made where the row is a factor for each partition: of the tile turned around.

A tile in whose partitions one row stands multiplies another one element by element, which only VectorE and
GpSimd can do. Turned by the tensor engine, the row's elements lie in partitions of their own, and ScalarE
multiplies each partition by its own as it takes the turned tile out of PSUM. The tensor engine turns the
product back when it adds it up. Where the rows of all iterations are neighbours they are loaded and turned
together, in front of the loop, and no row has to be written to every partition.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import libcst as cst

from nki_sim.targets import Target
from targets.nki.rewrites import syntax
from targets.nki.rewrites.arithmetic import substituted
from targets.nki.rewrites.elementwise import Apply, Leaf, computed, sole_writer
from targets.nki.rewrites.model import Kernel, Loop, Statement
from targets.nki.rewrites.placing import check_place
from targets.nki.rewrites.slices import all_of, base_name, walked_dimension, widened, windows
from targets.nki.rewrites.staging import shape_texts
from targets.nki.rewrites.summing import Products, Sum, adders, in_psum, matrix_sum_of
from targets.nki.rewrites.transform import Choice, Refused, Transform
from targets.nki.rewrites.values import Tensor, View


@dataclass(frozen=True, slots=True)
class RowProduct:
    """`item` makes `part` of `data` and of `row`, which `load` writes to all partitions."""

    item: Statement
    part: Tensor
    data: Tensor
    row: Tensor
    load: Statement


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
        _row_product(kernel, target, matrix_sum_of(kernel, place).part, place)
        return ({},)

    def apply(self, kernel: Kernel, target: Target, place: Statement, choice: Choice) -> str:
        del choice
        plan = matrix_sum_of(kernel, place)
        product = _row_product(kernel, target, plan.part, place)
        writer = _Writer(kernel, product)
        rows = _all_rows(kernel, target, plan, product)
        factors = writer.factors(rows) if rows is not None else writer.factor()

        def made(eye: str, bank: str) -> list[cst.BaseStatement]:
            return writer.turned(factors, place, eye, bank)

        gone = (product.item, kernel.declarations[product.part.id], *factors.gone)
        return in_psum(kernel, target, plan, Products(product.data, made, gone, factors.before))


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
            loads = [load for view in (second, first) if (load := _row_load(kernel, view.tensor, item))]
        case _:
            loads = []
    if not loads:
        raise Refused(f"{part.name} is no product with a row that was loaded into all partitions")
    row = _goal(loads[0]).tensor
    data = first.tensor if row.id == second.tensor.id else second.tensor
    for tensor, view in ((first.tensor, first), (second.tensor, second)):
        if not (view.whole and view.plain) or (tensor.shape, tensor.dtype) != (part.shape, "float32"):
            raise Refused(f"{tensor.name} is not multiplied whole, or holds {tensor.dtype}")
    if kernel.changes(data, item, adder):
        raise Refused(f"{data.name} changes before {part.name} is added")
    if data.id in kernel.escaping or kernel.rebinds(f"{data.name}, {row.name}", item, adder):
        raise Refused(f"{data.name} or {row.name} has a second name, or is that of another tile later")
    if data.buffer == "psum":
        check_place(kernel, data, "sbuf")
    _check_size(target, part)
    return RowProduct(item, part, data, row, loads[0])


def _row_load(kernel: Kernel, tensor: Tensor, user: Statement) -> Statement | None:
    """What loaded one row into all partitions of a tile in SBUF, if nothing has changed it since."""
    writer = sole_writer(kernel, tensor)
    if writer is None or writer.op != "dma_copy" or writer.order > user.order or tensor.buffer != "sbuf":
        return None
    src = writer.access("src")
    same = user.path[: len(writer.path)] == writer.path and user.guards == writer.guards
    return writer if src is not None and same and src.view.axes[0].step == 0 else None


def _goal(load: Statement) -> View:
    dst = load.access("dst")
    assert dst is not None
    return dst.view


def _check_size(target: Target, part: Tensor) -> None:
    rows, columns = part.shape
    if rows != target.partitions or columns % target.partitions:
        raise Refused(f"{part.name} is not made of blocks of {target.partitions} by {target.partitions}")
    # The sum, the turned tile, and the turned row.
    if 4 * (2 * columns + columns // rows) > target.psum_banks * target.psum_bank_bytes:
        raise Refused(f"{part.name} and its sum do not fit in PSUM together")


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of all iterations of a loop: their source, and that of an iteration's number among them."""

    source: str
    loop: Loop
    index: str


def _all_rows(kernel: Kernel, target: Target, plan: Sum, product: RowProduct) -> Rows | None:
    """The rows of all iterations, where they are neighbours in an input and, turned, fit a bank of PSUM."""
    load, loop = product.load, plan.loop
    src = load.access("src")
    assert src is not None
    text = _without_broadcast(kernel, load.texts["src"])
    blocks = product.part.shape[1] // product.part.shape[0]
    few = loop.trips <= target.partitions and 4 * blocks * loop.trips <= target.psum_bank_bytes
    if text is None or not few or loop.index_text is None or load.path[-1:] != (loop,):
        return None
    if kernel.rebinds(loop.var, load, plan.adder):
        return None
    if walked_dimension(src.view, loop) != 0 or len(src.tensor.shape) != len("pf"):
        return None
    if any(item.writes(src.tensor) for item in kernel.statements):
        return None
    try:
        first, columns = windows(kernel, text, len("pf"))
    except Refused:
        return None
    wide = widened(src.view, 0, loop, first.lower, all_of(loop))
    source = f"{base_name(text)}[{wide}, {columns.text}]"
    if not columns.kept or kernel.rebinds(source, plan.clear, load):
        return None
    return Rows(source, loop, loop.index_text)


def _without_broadcast(kernel: Kernel, text: str) -> str | None:
    """The source of what a view writes to all partitions."""
    node = syntax.expression(text)
    if isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute):
        return kernel.module.code_for_node(node.func.value) if node.func.attr.value == "broadcast" else None
    return None


@dataclass(frozen=True, slots=True)
class Factors:
    """`column` is the source of a block's factors.

    They are made `before` the loop or `inside` it; what is `gone` is not needed any more.
    """

    column: str
    before: Sequence[cst.BaseStatement] = ()
    inside: Sequence[cst.BaseStatement] = ()
    gone: tuple[Statement, ...] = ()


class _Writer:
    """Writes what becomes of a product with a row, block by block."""

    def __init__(self, kernel: Kernel, plan: RowProduct) -> None:
        self._kernel, self._plan = kernel, plan
        self._height, self._width = shape_texts(kernel, kernel.declarations[plan.part.id])
        self._side = plan.part.shape[0]
        self._count = substituted(f"columns // {self._side}", {"columns": self._width})
        self._index = kernel.fresh("i_part")
        self._block = f"{self._index} * {self._side} : ({self._index} + 1) * {self._side}"
        self._row_turned = kernel.fresh(f"{plan.row.name}_turned")
        self._factor = kernel.fresh(f"{plan.row.name}_factor")

    def factor(self) -> Factors:
        """The factors of an iteration, of the row that it has loaded."""
        column = f":, {self._index} : {self._index} + 1"
        made = [
            self._tile(self._row_turned, f"{self._side}, {self._count}", "psum"),
            self._each(
                "nc_transpose",
                dst=f"{self._row_turned}[{column}]",
                data=f"{self._plan.row.name}[0:1, {self._block}]",
            ),
            self._tile(self._factor, f"{self._side}, {self._count}", "sbuf"),
            self._call("tensor_copy", dst=self._factor, src=self._row_turned),
        ]
        return Factors(f"{self._factor}[{column}]", inside=[self._noted(made[0]), *made[1:]])

    def factors(self, rows: Rows) -> Factors:
        """The factors of all iterations, of rows that are loaded without writing them to all partitions."""
        kernel, row, load = self._kernel, self._plan.row, self._plan.load
        name = kernel.fresh(f"{row.name}_rows")
        shape = f"{self._side}, {self._count}, {rows.loop.count_text}"
        made = [
            self._tile(name, f"{rows.loop.count_text}, {self._width}", "sbuf"),
            self._call("dma_copy", dst=name, src=rows.source),
            self._tile(self._row_turned, shape, "psum"),
            self._each(
                "nc_transpose",
                dst=f"{self._row_turned}[:, {self._index}, :]",
                data=f"{name}[:, {self._block}]",
            ),
            self._tile(self._factor, shape, "sbuf"),
            self._call("tensor_copy", dst=self._factor, src=self._row_turned),
        ]
        alone = kernel.users(row) == [load, self._plan.item]
        gone = (kernel.declarations[row.id], load) if alone else ()
        lines = syntax.leading_of_all(*(item.node for item in gone)) if gone else ()
        column = f"{self._factor}[:, {self._index}, {rows.index} : {rows.index} + 1]"
        return Factors(column, before=[self._noted(made[0], lines), *made[1:]], gone=gone)

    def turned(self, factors: Factors, adder: Statement, eye: str, bank: str) -> list[cst.BaseStatement]:
        """Adds the product to `bank` block by block; `eye` is the identity over all partitions."""
        kernel, plan = self._kernel, self._plan
        declared = kernel.declarations[plan.part.id]
        data, part = kernel.fresh(f"{plan.data.name}_turned"), plan.part.name
        here, shape = f":, {self._index}, :", f"{self._side}, {self._count}, {self._height}"
        made: list[cst.BaseStatement] = [
            *factors.inside,
            self._tile(data, shape, "psum"),
            self._each("nc_transpose", dst=f"{data}[{here}]", data=f"{plan.data.name}[:, {self._block}]"),
            self._tile(part, shape, "sbuf"),
            self._each(
                "activation",
                dst=f"{part}[{here}]",
                op=f"{kernel.nl}.copy",
                data=f"{data}[{here}]",
                scale=factors.column,
            ),
            self._each(
                "nc_matmul",
                dst=f"{bank}[:, {self._block}]",
                stationary=f"{part}[{here}]",
                moving=eye,
                is_moving_onezero="True",
            ),
        ]
        lines = syntax.leading_of_all(declared.node, plan.item.node, adder.node)
        return [syntax.at_front(made[0], [*lines, *syntax.leading(made[0])]), *made[1:]]

    def _noted(self, item: cst.BaseStatement, lines: Sequence[cst.EmptyLine] = ()) -> cst.BaseStatement:
        text = f"# Turned, {self._plan.row.name} is one factor for each partition."
        return syntax.at_front(item, [*lines, cst.EmptyLine(comment=cst.Comment(text))])

    def _tile(self, name: str, shape: str, buffer: str) -> cst.BaseStatement:
        nl = self._kernel.nl
        return syntax.statement(f"{name} = {nl}.ndarray(({shape}), dtype={nl}.float32, buffer={nl}.{buffer})")

    def _call(self, operation: str, **words: str) -> cst.BaseStatement:
        return syntax.call(f"{self._kernel.nisa}.{operation}", words)

    def _each(self, operation: str, **words: str) -> cst.BaseStatement:
        blocks = f"{self._kernel.nl}.affine_range({self._count})"
        return syntax.loop(self._index, blocks, [self._call(operation, **words)])
