"""Stacking: iterations whose tiles have few partitions run together, one above the other.

An engine takes as long for 64 partitions as for 128. Where all work of an iteration keeps partitions
apart, tiles of two iterations lie in the two halves of one tile: transfers are made for each half, every
other instruction runs once for both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import libcst as cst

from nki_sim.targets import Target
from targets.nki.rewrites import syntax
from targets.nki.rewrites.arithmetic import substituted
from targets.nki.rewrites.blocking import check_independent
from targets.nki.rewrites.inlining import replaced
from targets.nki.rewrites.model import Access, Kernel, Kind, Loop, Node, Statement
from targets.nki.rewrites.partitions import window, with_rows
from targets.nki.rewrites.staging import shape_texts
from targets.nki.rewrites.transform import Choice, Refused, Transform
from targets.nki.rewrites.values import Affine

ROW_WISE = frozenset(
    (
        "activation", "activation_reduce", "memset", "reciprocal", "scalar_tensor_tensor", "tensor_copy",
        "tensor_reduce", "tensor_scalar", "tensor_scalar_reduce", "tensor_tensor", "tensor_tensor_scan",
    )
)  # fmt: skip
"""What works on every partition by itself."""


@dataclass(frozen=True, slots=True)
class Pile:
    """A loop whose tiles all have `partitions` partitions."""

    loop: Loop
    partitions: int


class Stack(Transform[Loop]):
    """Runs several iterations of a loop on different partitions."""

    id: ClassVar[str] = "stack"
    counter: ClassVar[str] = "vector_engine_active_time_percent"
    keeps: ClassVar[str] = (
        "iterations touch disjoint data and their instructions treat every partition by itself, "
        "so it does not matter on which partitions they run"
    )

    def places(self, kernel: Kernel, target: Target) -> Mapping[str, Loop]:
        return {
            kernel.label(loop): loop
            for loop in kernel.loops
            if any(2 * size <= target.partitions for size in _partitions(loop))
        }

    def choices(self, kernel: Kernel, target: Target, place: Loop) -> tuple[Choice, ...]:
        pile = _pile(kernel, place)
        most = target.partitions // pile.partitions
        counts = [count for count in range(most, 1, -1) if place.trips % count == 0]
        if not counts:
            raise Refused(f"the {place.trips} iterations over {place.var} do not fall into groups")
        return tuple({"iterations": count} for count in counts[:2])

    def apply(self, kernel: Kernel, target: Target, place: Loop, choice: Choice) -> str:
        del target
        return _emit(kernel, _pile(kernel, place), int(choice["iterations"]))


def _partitions(loop: Loop) -> set[int]:
    """The sizes of the first dimension of the tiles that a loop declares."""
    own = [item.tensor for item in loop.body if isinstance(item, Statement) and item.tensor is not None]
    return {tensor.shape[0] for tensor in own if tensor.on_chip}


def _pile(kernel: Kernel, loop: Loop) -> Pile:
    if loop.index_text != loop.var:
        raise Refused(f"the loop over {loop.var} does not count 0, 1, ...")
    sizes = _partitions(loop)
    if len(sizes) != 1:
        raise Refused(f"tiles of the loop over {loop.var} have {len(sizes)} different numbers of partitions")
    pile = Pile(loop, *sizes)
    for node in loop.body:
        _check(kernel, pile, node)
    check_independent(kernel, loop)
    return pile


def _check(kernel: Kernel, pile: Pile, node: Node) -> None:
    if not isinstance(node, Statement):
        raise Refused(f"the loop over {pile.loop.var} holds another loop or a condition")
    if node.kind in {Kind.OPAQUE, Kind.BIND}:
        raise Refused(f"the loop over {pile.loop.var} holds what cannot be moved: {node.reason or 'a name'}")
    tensor = node.tensor
    if tensor is not None and (tensor.copies or not tensor.on_chip or tensor.id in kernel.escaping):
        raise Refused(f"{tensor.name} is a list of tiles, is not on chip, or has a second name")
    if node.kind is Kind.INERT and pile.loop.var in node.uses:
        raise Refused(f"a statement without effect counts the iterations over {pile.loop.var}")
    for access in node.accesses:
        if access.tensor.on_chip:
            _check_tile(kernel, pile, access)
    chips = sum(access.tensor.on_chip for access in node.accesses)
    if node.op == "dma_copy" and chips == 1:
        return
    if node.kind is Kind.OPERATE and (node.op not in ROW_WISE or chips < len(node.accesses)):
        raise Refused(f"{node.op} does not treat every partition by itself")


def _check_tile(kernel: Kernel, pile: Pile, access: Access) -> None:
    """A tile of the iteration's own, taken over all of its partitions in their order."""
    view, name = access.view, access.tensor.name
    declared = kernel.declarations.get(access.tensor.id)
    if declared is None or declared.path[-1:] != (pile.loop,):
        raise Refused(f"{name} is shared by the iterations over {pile.loop.var}")
    rows, first = view.box[0], view.axes[0]
    if (rows.start, rows.size, first.source) != (Affine(0), pile.partitions, 0) or view.within:
        raise Refused(f"{access.role} takes {name} in part or rearranged")
    if pile.loop.id in view.loops:
        raise Refused(f"which part of {name} is meant depends on {pile.loop.var}")


def _emit(kernel: Kernel, pile: Pile, count: int) -> str:
    loop = pile.loop
    body: list[cst.BaseStatement] = []
    for node in loop.body:
        assert isinstance(node, Statement)
        if node.tensor is not None:
            body.append(_taller(kernel, node, count))
        elif node.op == "dma_copy":
            body.extend(_pieces(kernel, pile, node, count))
        else:
            body.append(_over_all(node))
    trips = substituted(f"trips // {count}", {"trips": loop.count_text})
    called = loop.node.iter
    assert isinstance(called, cst.Call)
    function = kernel.module.code_for_node(called.func)
    head = loop.node.with_changes(iter=syntax.expression(f"{function}({trips})"))
    note = cst.EmptyLine(
        comment=cst.Comment(f"# {count} iterations at a time, each on partitions of its own.")
    )
    new = syntax.at_front(syntax.with_body(head, body), [*syntax.leading(loop.node), note])

    def emit(node: Node) -> list[cst.BaseStatement] | None:
        return [new] if node is loop else None

    return syntax.source_of(kernel, syntax.rebuild(kernel.body, emit))


def _taller(kernel: Kernel, item: Statement, count: int) -> cst.BaseStatement:
    """The declaration with as many times more partitions."""
    rows, *rest = shape_texts(kernel, item)
    rows = substituted(f"{count} * rows", {"rows": rows})
    words = ", ".join(f"{key}={item.texts[key]}" for key in ("dtype", "buffer") if key in item.texts)
    assert item.tensor is not None
    shape = f"({', '.join([rows, *rest])}{'' if rest else ','})"
    new = syntax.statement(f"{item.tensor.name} = {kernel.nl}.ndarray({shape}, {words})")
    return syntax.at_front(new, syntax.leading(item.node))


def _pieces(kernel: Kernel, pile: Pile, item: Statement, count: int) -> list[cst.BaseStatement]:
    """A transfer for each of the iterations, to or from its own partitions."""
    tile = next(access.tensor for access in item.accesses if access.tensor.on_chip)
    rows = shape_texts(kernel, kernel.declarations[tile.id])[0]
    made: list[cst.BaseStatement] = []
    for number in range(count):
        index = f"{count} * {pile.loop.var}" + (f" + {number}" if number else "")
        part = window(_product(rows, number), _product(rows, number + 1))
        moved = replaced(item.node, {pile.loop.var: index})
        moved = with_rows(moved, tile.name, len(tile.shape), part)
        made.append(moved if not number else syntax.at_front(moved, []))
    return made


def _product(rows: str, factor: int) -> str:
    if factor == 0:
        return "0"
    return substituted("n" if factor == 1 else f"{factor} * n", {"n": rows})


def _over_all(item: Statement) -> cst.BaseStatement:
    """An instruction over all partitions, however it said so."""
    node = item.node
    for tensor in {access.tensor.id: access.tensor for access in item.accesses}.values():
        node = syntax.reindex(node, tensor.name, partial(_rowless, tensor.name))
    return node


def _rowless(name: str, parts: list[cst.SubscriptElement] | None) -> cst.BaseExpression:
    return syntax.subscript(name, [syntax.elements(":")[0], *parts[1:]]) if parts else cst.Name(name)
