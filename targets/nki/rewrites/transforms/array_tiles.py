"""Tiles of the tensor engine's array: short products of several iterations run side by side.

A product over 64 rows or fewer leaves half of the array's rows or more idle. Rows are fed by the partitions
of the same number: what both sides of the products are made of is put on several stretches of partitions,
and iterations take turns between them. Loads and copies of the operands are made once for each stretch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import libcst as cst

from nki_sim.targets import Target
from targets.nki.rewrites import syntax
from targets.nki.rewrites.blocking import PlaceWriter
from targets.nki.rewrites.inlining import replaced
from targets.nki.rewrites.model import Access, Kernel, Kind, Loop, Node, Statement
from targets.nki.rewrites.partitions import window, with_rows
from targets.nki.rewrites.splitting import range_name
from targets.nki.rewrites.staging import shape_texts
from targets.nki.rewrites.transform import Choice, Refused, Transform
from targets.nki.rewrites.transforms.distribute import Cut, described, most_places, plan_cut
from targets.nki.rewrites.transforms.stack import ROW_WISE
from targets.nki.rewrites.values import Affine, Tensor

OPERANDS = ("stationary", "moving")
COPYING = ROW_WISE | {"dma_copy"}
"""What may write an operand: it does the same wherever the partitions lie."""
MODES = frozenset({"accumulate", "is_transpose", "perf_mode", "tile_position", "tile_size"})
"""What a product may not say of itself here: it is whole, and on the whole array."""
QUARTERS = 3
"""Generation from which a tile may have a quarter of the array's rows; before, half of them."""


@dataclass(frozen=True, slots=True)
class Product:
    """A product in the body of the loop whose iterations are to run side by side."""

    loop: Loop
    item: Statement


@dataclass(frozen=True, slots=True)
class Products:
    """All products of the same two tiles: what those hold is put on several stretches for all of them."""

    each: tuple[Product, ...]
    operands: tuple[Tensor, ...]
    """The tiles of both sides, each once."""

    @property
    def rows(self) -> int:
        """How many rows of the array they take."""
        return self.operands[0].shape[0]


class ArrayTiles(Transform[Products]):
    """Gives the products of neighbouring iterations rows of the array of their own."""

    id: ClassVar[str] = "array_tiles"
    counter: ClassVar[str] = "tensor_engine_active_time_percent"
    keeps: ClassVar[str] = (
        "each stretch of partitions holds the same operands, so it does not matter which one a product "
        "takes; what follows a product waits for it as before"
    )

    def places(self, kernel: Kernel, target: Target) -> Mapping[str, Products]:
        alike: dict[frozenset[int], list[Product]] = {}
        tensors: dict[int, Tensor] = {}
        for loop in kernel.loops:
            for item in loop.body:
                if isinstance(item, Statement) and item.op == "nc_matmul":
                    sides = {access.tensor.id: access.tensor for access in _operands(item)}
                    if sides and all(2 * tensor.shape[0] <= target.partitions for tensor in sides.values()):
                        tensors |= sides
                        each = alike.setdefault(frozenset(sides), [])
                        if all(one.loop is not loop for one in each):  # a second one stays where it is
                            each.append(Product(loop, item))
        found: dict[str, Products] = {}
        for ids, each in alike.items():
            first = each[0]
            place = Products(tuple(each), tuple(tensors[number] for number in sorted(ids)))
            found.setdefault(f"{described(kernel, first.item)} over {kernel.label(first.loop)}", place)
        return found

    def choices(self, kernel: Kernel, target: Target, place: Products) -> tuple[Choice, ...]:
        _check(kernel, place)
        most = min(most_places(plan_cut(kernel, _cut(kernel, one)), target) for one in place.each)
        least = target.partitions // (4 if target.generation >= QUARTERS else 2)
        counts = [
            count
            for count in (4, 2)
            if max(place.rows, least) <= target.partitions // count
            and all(one.loop.trips % count == 0 for one in place.each)
            and count <= most
        ]
        if not counts:
            loop = place.each[0].loop
            raise Refused(
                f"the {loop.trips} iterations over {loop.var} do not fall into groups whose "
                f"products of {place.rows} rows fit side by side"
            )
        return tuple({"iterations": count} for count in counts)

    def apply(self, kernel: Kernel, target: Target, place: Products, choice: Choice) -> str:
        _check(kernel, place)
        count = int(choice["iterations"])
        height = target.partitions // count
        made = {one.loop: _side_by_side(kernel, place, one, height, count) for one in place.each}
        users = {item for tensor in place.operands for item in kernel.users(tensor)}
        starts = [number * height for number in range(count)]

        def emit(node: Node) -> list[cst.BaseStatement] | None:
            if isinstance(node, Loop) and node in made:
                return [syntax.at_front(made[node], syntax.leading(node.node))]
            if not isinstance(node, Statement):
                return None
            if node.tensor is not None and node.tensor in place.operands:
                return [_taller(kernel, node, starts[-1])]
            if node in users:
                written = any(item.writes and item.tensor in place.operands for item in node.accesses)
                copies = [_moved(kernel, place, node, start) for start in (starts if written else [0])]
                return [copies[0], *(syntax.at_front(copy, []) for copy in copies[1:])]
            return None

        return syntax.source_of(kernel, syntax.rebuild(kernel.body, emit))


def _operands(item: Statement) -> list[Access]:
    return [access for access in item.accesses if access.role in OPERANDS]


def _check(kernel: Kernel, place: Products) -> None:
    loops = {one.loop.id for one in place.each}
    for one in place.each:
        if loops & {loop.id for loop in one.item.path if loop is not one.loop}:
            raise Refused(f"the loop over {one.loop.var} lies in another one with such products")
        said = MODES & one.item.arguments.keys()
        if said:
            raise Refused(f"the product says {min(said)}")
        _cut(kernel, one)
    for tensor in place.operands:
        _check_operand(kernel, place, tensor)


def _cut(kernel: Kernel, one: Product) -> Cut:
    """The loop's body cut behind the product, in front of which there are only declarations."""
    loop, item = one.loop, one.item
    if loop.index_text != loop.var:
        raise Refused(f"the loop over {loop.var} does not count 0, 1, ...")
    cut = Cut(loop, loop.body.index(item) + 1)
    first, _ = cut.parts(kernel)
    if any(
        not isinstance(node, Statement) or node.kind is not Kind.DECLARE for node in first if node is not item
    ):
        raise Refused(f"more than declarations stands before the product in the loop over {loop.var}")
    dst = item.access("dst")
    if dst is None or kernel.declarations[dst.tensor.id] not in first:
        raise Refused(f"the product does not go to a tile of its iteration over {loop.var}")
    return cut


def _check_operand(kernel: Kernel, place: Products, tensor: Tensor) -> None:
    declared = kernel.declarations.get(tensor.id)
    for one in place.each:
        if declared is None or one.loop in declared.path:
            raise Refused(f"{tensor.name} is not declared in front of the loop over {one.loop.var}")
    assert declared is not None
    if tensor.buffer != "sbuf" or tensor.copies or tensor.id in kernel.escaping:
        raise Refused(f"{tensor.name} is a list of tiles, is not in SBUF, or has a second name")
    rows = shape_texts(kernel, declared)[0]
    for user in kernel.users(tensor):
        if kernel.rebinds(rows, declared, user):
            raise Refused(f"the number of rows of {tensor.name} may be called otherwise at {user.op}")
        mine = [access for access in user.accesses if access.tensor.id == tensor.id]
        if any(not _takes_all_rows(access, place.rows) for access in mine):
            raise Refused(f"{user.op} takes partitions of {tensor.name} in part or rearranged")
        if not any(access.writes for access in mine):
            continue
        if any(access.role != "dst" and access.tensor in place.operands for access in user.accesses):
            raise Refused(f"{user.op} makes {tensor.name} of an operand, on other partitions than the rest")
        if user.op not in COPYING or any(one.loop in user.path for one in place.each):
            raise Refused(
                f"{user.op} does not write {tensor.name} alike on any partitions, or does so in the loop"
            )


def _takes_all_rows(access: Access, count: int) -> bool:
    rows, first = access.view.box[0], access.view.axes[0]
    return (rows.start, rows.size, first.source) == (Affine(0), count, 0) and not access.view.within


def _side_by_side(
    kernel: Kernel, place: Products, one: Product, height: int, count: int
) -> cst.BaseStatement:
    """The loop over groups of iterations: their products, then what else they do, one after the other."""
    loop, cut = one.loop, _cut(kernel, one)
    writer = PlaceWriter(plan_cut(kernel, cut), str(count))
    first, second = cut.parts(kernel)
    run, group = range_name(kernel, loop), kernel.fresh(f"{loop.var}_group")
    products: list[cst.BaseStatement] = []
    for number in range(count):
        index = f"{group} * {count}" + (f" + {number}" if number else "")
        made = writer.indexed(_moved(kernel, place, one.item, number * height), one.item, str(number))
        made = syntax.with_arguments(
            replaced(made, {loop.var: index}),
            {"tile_position": f"({number * height}, 0)", "tile_size": f"({height}, 128)"},
        )
        products.append(made if not number else syntax.at_front(made, []))
    rest = writer.part(
        second,
        f"{run}({group} * {count}, ({group} + 1) * {count})",
        f"{loop.var} % {count}",
        partial(_moved, kernel, place, start=0),
    )
    note = cst.EmptyLine(comment=cst.Comment(f"# {count} products at a time, each on rows of its own."))
    products[0] = syntax.at_front(products[0], [*syntax.leading(products[0]), note])
    end = syntax.grouped(loop.stop, first=True)
    return syntax.loop(group, f"{run}({end} // {count})", [*writer.declared(first), *products, *rest])


def _moved(kernel: Kernel, place: Products, item: Statement, start: int) -> cst.BaseStatement:
    """A statement with its operands on the stretch of partitions from `start` on."""
    node = item.node
    for tensor in place.operands:
        if item.touches(tensor):  # the name alone may be that of another tile
            rows = shape_texts(kernel, kernel.declarations[tensor.id])[0]
            node = with_rows(node, tensor.name, len(tensor.shape), window(str(start), _sum(start, rows)))
    return node


def _taller(kernel: Kernel, item: Statement, start: int) -> cst.BaseStatement:
    """The declaration of a tile whose last stretch begins at `start`."""
    rows, *rest = shape_texts(kernel, item)
    words = ", ".join(f"{key}={item.texts[key]}" for key in ("dtype", "buffer") if key in item.texts)
    assert item.tensor is not None
    shape = f"({', '.join([_sum(start, rows), *rest])}{'' if rest else ','})"
    return syntax.at_front(
        syntax.statement(f"{item.tensor.name} = {kernel.nl}.ndarray({shape}, {words})"),
        syntax.leading(item.node),
    )


def _sum(start: int, rows: str) -> str:
    if not start:
        return rows
    return str(start + int(rows)) if rows.isdigit() else f"{start} + {rows}"
