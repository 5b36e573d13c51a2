"""Tiles of the tensor engine's array: short products of several iterations run side by side.

A product over 64 rows or fewer leaves at least half of the array's rows idle. Each row is fed by the
partition of the same number. The rewrite puts both operands of the products on several ranges of partitions,
and iterations take turns between the ranges. Loads and copies of the operands are repeated for each range.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import libcst as cst

from nki_sim.targets import Target
from targets.nki.rewrites import syntax
from targets.nki.rewrites.blocking import MultiBufferWriter
from targets.nki.rewrites.declarations import shape_texts
from targets.nki.rewrites.inlining import replace_names
from targets.nki.rewrites.kernel_ir import Access, Kernel, Loop, Node, Statement, StatementKind
from targets.nki.rewrites.loop_ranges import range_name
from targets.nki.rewrites.partitions import partition_window, select_partitions
from targets.nki.rewrites.transform import Choice, RewriteRefused, Transform
from targets.nki.rewrites.transforms.distribute import (
    LoopSplit,
    describe_instruction,
    max_buffers,
    plan_loop_split,
)
from targets.nki.rewrites.transforms.stack import ROW_WISE_INSTRUCTIONS
from targets.nki.rewrites.values import Affine, Tensor

PRODUCT_OPERANDS = ("stationary", "moving")
COPYING_INSTRUCTIONS = ROW_WISE_INSTRUCTIONS | {"dma_copy"}
"""Instructions that may write an operand, because they do the same on any partitions."""
REFUSED_ARGUMENTS = frozenset({"accumulate", "is_transpose", "perf_mode", "tile_position", "tile_size"})
"""Arguments that a product must not have: it must be whole and use the whole array."""
QUARTER_TILES_GENERATION = 3
"""First generation in which a tile may have a quarter of the array's rows; earlier, half of them."""


@dataclass(frozen=True, slots=True)
class LoopProduct:
    """A product in the body of the loop whose iterations will run side by side."""

    loop: Loop
    item: Statement


@dataclass(frozen=True, slots=True)
class ProductGroup:
    """All products of the same two tiles, whose contents go to several ranges of partitions."""

    each: tuple[LoopProduct, ...]
    operands: tuple[Tensor, ...]
    """The tiles of both sides, each once."""

    @property
    def operand_rows(self) -> int:
        """How many rows of the array the products take."""
        return self.operands[0].shape[0]


class ArrayTiles(Transform[ProductGroup]):
    """Gives the products of neighbouring iterations their own rows of the array."""

    id: ClassVar[str] = "array_tiles"
    counter: ClassVar[str] = "tensor_engine_active_time_percent"
    keeps: ClassVar[str] = (
        "each stretch of partitions holds the same operands, so it does not matter which one a product "
        "takes; what follows a product waits for it as before"
    )

    def find_sites(self, kernel: Kernel, target: Target) -> Mapping[str, ProductGroup]:
        alike: dict[frozenset[int], list[LoopProduct]] = {}
        tensors: dict[int, Tensor] = {}
        for loop in kernel.loops:
            for item in loop.body:
                if isinstance(item, Statement) and item.op == "nc_matmul":
                    sides = {access.tensor.id: access.tensor for access in _product_operands(item)}
                    if sides and all(2 * tensor.shape[0] <= target.partitions for tensor in sides.values()):
                        tensors |= sides
                        each = alike.setdefault(frozenset(sides), [])
                        if all(one.loop is not loop for one in each):  # a second one stays where it is
                            each.append(LoopProduct(loop, item))
        found: dict[str, ProductGroup] = {}
        for ids, each in alike.items():
            first = each[0]
            place = ProductGroup(tuple(each), tuple(tensors[number] for number in sorted(ids)))
            found.setdefault(
                f"{describe_instruction(kernel, first.item)} over {kernel.unique_label(first.loop)}", place
            )
        return found

    def list_choices(self, kernel: Kernel, target: Target, place: ProductGroup) -> tuple[Choice, ...]:
        _check_group(kernel, place)
        most = min(
            max_buffers(plan_loop_split(kernel, _split_behind_product(kernel, one)), target)
            for one in place.each
        )
        least = target.partitions // (4 if target.generation >= QUARTER_TILES_GENERATION else 2)
        counts = [
            count
            for count in (4, 2)
            if max(place.operand_rows, least) <= target.partitions // count
            and all(one.loop.trips % count == 0 for one in place.each)
            and count <= most
        ]
        if not counts:
            loop = place.each[0].loop
            raise RewriteRefused(
                f"the {loop.trips} iterations over {loop.var} do not fall into groups whose "
                f"products of {place.operand_rows} rows fit side by side"
            )
        return tuple({"iterations": count} for count in counts)

    def apply(self, kernel: Kernel, target: Target, place: ProductGroup, choice: Choice) -> str:
        _check_group(kernel, place)
        count = int(choice["iterations"])
        height = target.partitions // count
        made = {
            one.loop: _write_side_by_side(kernel, place, one, height=height, count=count)
            for one in place.each
        }
        users = {item for tensor in place.operands for item in kernel.users_of(tensor)}
        starts = [number * height for number in range(count)]

        def emit(node: Node) -> list[cst.BaseStatement] | None:
            if isinstance(node, Loop) and node in made:
                return [syntax.with_leading_lines(made[node], syntax.leading_lines(node.node))]
            if not isinstance(node, Statement):
                return None
            if node.tensor is not None and node.tensor in place.operands:
                return [_declare_taller(kernel, node, starts[-1])]
            if node in users:
                written = any(item.writes and item.tensor in place.operands for item in node.accesses)
                copies = [
                    _move_operands(kernel, place, node, start) for start in (starts if written else [0])
                ]
                return [copies[0], *(syntax.with_leading_lines(copy, []) for copy in copies[1:])]
            return None

        return syntax.render_module(kernel, syntax.rebuild_block(kernel.body, emit))


def _product_operands(item: Statement) -> list[Access]:
    return [access for access in item.accesses if access.role in PRODUCT_OPERANDS]


def _check_group(kernel: Kernel, place: ProductGroup) -> None:
    loops = {one.loop.id for one in place.each}
    for one in place.each:
        if loops & {loop.id for loop in one.item.path if loop is not one.loop}:
            raise RewriteRefused(f"the loop over {one.loop.var} lies in another one with such products")
        said = REFUSED_ARGUMENTS & one.item.arguments.keys()
        if said:
            raise RewriteRefused(f"the product says {min(said)}")
        _split_behind_product(kernel, one)
    for tensor in place.operands:
        _check_operand(kernel, place, tensor)


def _split_behind_product(kernel: Kernel, one: LoopProduct) -> LoopSplit:
    """Cut the loop's body after the product; only declarations may stand before it."""
    loop, item = one.loop, one.item
    if loop.index_text != loop.var:
        raise RewriteRefused(f"the loop over {loop.var} does not count 0, 1, ...")
    cut = LoopSplit(loop, loop.body.index(item) + 1)
    first, _ = cut.split_nodes(kernel)
    if any(
        not isinstance(node, Statement) or node.kind is not StatementKind.DECLARE
        for node in first
        if node is not item
    ):
        raise RewriteRefused(f"more than declarations stands before the product in the loop over {loop.var}")
    dst = item.find_access("dst")
    if dst is None or kernel.declarations[dst.tensor.id] not in first:
        raise RewriteRefused(f"the product does not go to a tile of its iteration over {loop.var}")
    return cut


def _check_operand(kernel: Kernel, place: ProductGroup, tensor: Tensor) -> None:
    declared = kernel.declarations.get(tensor.id)
    for one in place.each:
        if declared is None or one.loop in declared.path:
            raise RewriteRefused(f"{tensor.name} is not declared in front of the loop over {one.loop.var}")
    assert declared is not None
    if tensor.buffer != "sbuf" or tensor.copies or tensor.id in kernel.escaping_ids:
        raise RewriteRefused(f"{tensor.name} is a list of tiles, is not in SBUF, or has a second name")
    rows = shape_texts(kernel, declared)[0]
    for user in kernel.users_of(tensor):
        if kernel.may_rebind(rows, declared, user):
            raise RewriteRefused(f"the number of rows of {tensor.name} may be called otherwise at {user.op}")
        mine = [access for access in user.accesses if access.tensor.id == tensor.id]
        if any(not _takes_all_rows(access, place.operand_rows) for access in mine):
            raise RewriteRefused(f"{user.op} takes partitions of {tensor.name} in part or rearranged")
        if not any(access.writes for access in mine):
            continue
        if any(access.role != "dst" and access.tensor in place.operands for access in user.accesses):
            raise RewriteRefused(
                f"{user.op} makes {tensor.name} of an operand, on other partitions than the rest"
            )
        if user.op not in COPYING_INSTRUCTIONS or any(one.loop in user.path for one in place.each):
            raise RewriteRefused(
                f"{user.op} does not write {tensor.name} alike on any partitions, or does so in the loop"
            )


def _takes_all_rows(access: Access, count: int) -> bool:
    rows, first = access.view.box[0], access.view.axes[0]
    return (rows.start, rows.size, first.source) == (Affine(0), count, 0) and not access.view.within


def _write_side_by_side(
    kernel: Kernel, place: ProductGroup, one: LoopProduct, *, height: int, count: int
) -> cst.BaseStatement:
    """The loop over groups of iterations: first their products, then the rest of each, one after another."""
    loop, cut = one.loop, _split_behind_product(kernel, one)
    writer = MultiBufferWriter(plan_loop_split(kernel, cut), str(count))
    first, second = cut.split_nodes(kernel)
    run, group = range_name(kernel, loop), kernel.fresh_name(f"{loop.var}_group")
    products: list[cst.BaseStatement] = []
    for number in range(count):
        index = f"{group} * {count}" + (f" + {number}" if number else "")
        made = writer.index_buffers(
            _move_operands(kernel, place, one.item, number * height), one.item, str(number)
        )
        made = syntax.replace_arguments(
            replace_names(made, {loop.var: index}),
            {"tile_position": f"({number * height}, 0)", "tile_size": f"({height}, 128)"},
        )
        products.append(made if not number else syntax.with_leading_lines(made, []))
    rest = writer.write_loop(
        second,
        f"{run}({group} * {count}, ({group} + 1) * {count})",
        f"{loop.var} % {count}",
        partial(_move_operands, kernel, place, start=0),
    )
    note = cst.EmptyLine(comment=cst.Comment(f"# {count} products at a time, each on rows of its own."))
    products[0] = syntax.with_leading_lines(products[0], [*syntax.leading_lines(products[0]), note])
    end = syntax.group_factor(loop.stop, first=True)
    return syntax.make_loop(
        group, f"{run}({end} // {count})", [*writer.declare_buffers(first), *products, *rest]
    )


def _move_operands(kernel: Kernel, place: ProductGroup, item: Statement, start: int) -> cst.BaseStatement:
    """The statement with its operands on the range of partitions that begins at `start`."""
    node = item.node
    for tensor in place.operands:
        if item.touches_tensor(tensor):  # another tile may have the same name
            rows = shape_texts(kernel, kernel.declarations[tensor.id])[0]
            node = select_partitions(
                node, tensor.name, len(tensor.shape), partition_window(str(start), _offset_text(start, rows))
            )
    return node


def _declare_taller(kernel: Kernel, item: Statement, start: int) -> cst.BaseStatement:
    """The declaration of a tile whose last range of partitions begins at `start`."""
    rows, *rest = shape_texts(kernel, item)
    words = ", ".join(f"{key}={item.texts[key]}" for key in ("dtype", "buffer") if key in item.texts)
    assert item.tensor is not None
    shape = f"({', '.join([_offset_text(start, rows), *rest])}{'' if rest else ','})"
    return syntax.with_leading_lines(
        syntax.parse_statement(f"{item.tensor.name} = {kernel.nl}.ndarray({shape}, {words})"),
        syntax.leading_lines(item.node),
    )


def _offset_text(start: int, rows: str) -> str:
    if not start:
        return rows
    return str(start + int(rows)) if rows.isdigit() else f"{start} + {rows}"
