"""Stacking: iterations whose tiles have few partitions run together, on different partitions of one tile.

An engine takes as long for 64 partitions as for 128. If an iteration never mixes partitions, the tiles of two
iterations can share the two halves of one tile. Transfers run once per half, all other instructions once for
both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import libcst as cst

from nki_sim.targets import Target
from targets.nki.rewrites import syntax
from targets.nki.rewrites.arithmetic import substitute_names
from targets.nki.rewrites.blocking import check_independent
from targets.nki.rewrites.declarations import shape_texts
from targets.nki.rewrites.inlining import replace_names
from targets.nki.rewrites.kernel_ir import Access, Kernel, Loop, Node, Statement, StatementKind
from targets.nki.rewrites.partitions import partition_window, select_partitions
from targets.nki.rewrites.transform import Choice, RewriteRefused, Transform
from targets.nki.rewrites.values import Affine

ROW_WISE_INSTRUCTIONS = frozenset(
    (
        "activation", "activation_reduce", "memset", "reciprocal", "scalar_tensor_tensor", "tensor_copy",
        "tensor_reduce", "tensor_scalar", "tensor_scalar_reduce", "tensor_tensor", "tensor_tensor_scan",
    )
)  # fmt: skip
"""Instructions that work on every partition separately."""


@dataclass(frozen=True, slots=True)
class StackPlan:
    """A loop in which every tile has `partitions` partitions."""

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

    def find_sites(self, kernel: Kernel, target: Target) -> Mapping[str, Loop]:
        return {
            kernel.unique_label(loop): loop
            for loop in kernel.loops
            if any(2 * size <= target.partitions for size in _partition_sizes(loop))
        }

    def list_choices(self, kernel: Kernel, target: Target, place: Loop) -> tuple[Choice, ...]:
        pile = _plan_stack(kernel, place)
        most = target.partitions // pile.partitions
        counts = [count for count in range(most, 1, -1) if place.trips % count == 0]
        if not counts:
            raise RewriteRefused(f"the {place.trips} iterations over {place.var} do not fall into groups")
        return tuple({"iterations": count} for count in counts[:2])

    def apply(self, kernel: Kernel, target: Target, place: Loop, choice: Choice) -> str:
        del target
        return _emit_stacked(kernel, _plan_stack(kernel, place), int(choice["iterations"]))


def _partition_sizes(loop: Loop) -> set[int]:
    """The sizes of the first dimension of the tiles that a loop declares."""
    own = [item.tensor for item in loop.body if isinstance(item, Statement) and item.tensor is not None]
    return {tensor.shape[0] for tensor in own if tensor.is_on_chip}


def _plan_stack(kernel: Kernel, loop: Loop) -> StackPlan:
    if loop.index_text != loop.var:
        raise RewriteRefused(f"the loop over {loop.var} does not count 0, 1, ...")
    sizes = _partition_sizes(loop)
    if len(sizes) != 1:
        raise RewriteRefused(
            f"tiles of the loop over {loop.var} have {len(sizes)} different numbers of partitions"
        )
    pile = StackPlan(loop, *sizes)
    for node in loop.body:
        _check_node(kernel, pile, node)
    check_independent(kernel, loop)
    return pile


def _check_node(kernel: Kernel, pile: StackPlan, node: Node) -> None:
    if not isinstance(node, Statement):
        raise RewriteRefused(f"the loop over {pile.loop.var} holds another loop or a condition")
    if node.kind in {StatementKind.OPAQUE, StatementKind.BIND}:
        raise RewriteRefused(
            f"the loop over {pile.loop.var} holds what cannot be moved: {node.reason or 'a name'}"
        )
    tensor = node.tensor
    if tensor is not None and (tensor.copies or not tensor.is_on_chip or tensor.id in kernel.escaping_ids):
        raise RewriteRefused(f"{tensor.name} is a list of tiles, is not on chip, or has a second name")
    if node.kind is StatementKind.INERT and pile.loop.var in node.uses:
        raise RewriteRefused(f"a statement without effect counts the iterations over {pile.loop.var}")
    for access in node.accesses:
        if access.tensor.is_on_chip:
            _check_tile(kernel, pile, access)
    chips = sum(access.tensor.is_on_chip for access in node.accesses)
    if node.op == "dma_copy" and chips == 1:
        return
    if node.kind is StatementKind.OPERATE and (
        node.op not in ROW_WISE_INSTRUCTIONS or chips < len(node.accesses)
    ):
        raise RewriteRefused(f"{node.op} does not treat every partition by itself")


def _check_tile(kernel: Kernel, pile: StackPlan, access: Access) -> None:
    """Check that the tile belongs to the iteration and is used over all its partitions in order."""
    view, name = access.view, access.tensor.name
    declared = kernel.declarations.get(access.tensor.id)
    if declared is None or declared.path[-1:] != (pile.loop,):
        raise RewriteRefused(f"{name} is shared by the iterations over {pile.loop.var}")
    rows, first = view.box[0], view.axes[0]
    if (rows.start, rows.size, first.source) != (Affine(0), pile.partitions, 0) or view.within:
        raise RewriteRefused(f"{access.role} takes {name} in part or rearranged")
    if pile.loop.id in view.loops:
        raise RewriteRefused(f"which part of {name} is meant depends on {pile.loop.var}")


def _emit_stacked(kernel: Kernel, pile: StackPlan, count: int) -> str:
    loop = pile.loop
    body: list[cst.BaseStatement] = []
    for node in loop.body:
        assert isinstance(node, Statement)
        if node.tensor is not None:
            body.append(_declare_taller(kernel, node, count))
        elif node.op == "dma_copy":
            body.extend(_write_transfers(kernel, pile, node, count=count))
        else:
            body.append(_select_all_partitions(node))
    trips = substitute_names(f"trips // {count}", {"trips": loop.count_text})
    called = loop.node.iter
    assert isinstance(called, cst.Call)
    function = kernel.module.code_for_node(called.func)
    head = loop.node.with_changes(iter=syntax.parse_expression(f"{function}({trips})"))
    note = cst.EmptyLine(
        comment=cst.Comment(f"# {count} iterations at a time, each on partitions of its own.")
    )
    new = syntax.with_leading_lines(syntax.replace_body(head, body), [*syntax.leading_lines(loop.node), note])

    def emit(node: Node) -> list[cst.BaseStatement] | None:
        return [new] if node is loop else None

    return syntax.render_module(kernel, syntax.rebuild_block(kernel.body, emit))


def _declare_taller(kernel: Kernel, item: Statement, count: int) -> cst.BaseStatement:
    """The declaration with `count` times as many partitions."""
    rows, *rest = shape_texts(kernel, item)
    rows = substitute_names(f"{count} * rows", {"rows": rows})
    words = ", ".join(f"{key}={item.texts[key]}" for key in ("dtype", "buffer") if key in item.texts)
    assert item.tensor is not None
    shape = f"({', '.join([rows, *rest])}{'' if rest else ','})"
    new = syntax.parse_statement(f"{item.tensor.name} = {kernel.nl}.ndarray({shape}, {words})")
    return syntax.with_leading_lines(new, syntax.leading_lines(item.node))


def _write_transfers(
    kernel: Kernel, pile: StackPlan, item: Statement, *, count: int
) -> list[cst.BaseStatement]:
    """One transfer per iteration, to or from the iteration's own partitions."""
    tile = next(access.tensor for access in item.accesses if access.tensor.is_on_chip)
    rows = shape_texts(kernel, kernel.declarations[tile.id])[0]
    made: list[cst.BaseStatement] = []
    for number in range(count):
        index = f"{count} * {pile.loop.var}" + (f" + {number}" if number else "")
        part = partition_window(_multiple_text(rows, number), _multiple_text(rows, number + 1))
        moved = replace_names(item.node, {pile.loop.var: index})
        moved = select_partitions(moved, tile.name, len(tile.shape), part)
        made.append(moved if not number else syntax.with_leading_lines(moved, []))
    return made


def _multiple_text(rows: str, factor: int) -> str:
    if factor == 0:
        return "0"
    return substitute_names("n" if factor == 1 else f"{factor} * n", {"n": rows})


def _select_all_partitions(item: Statement) -> cst.BaseStatement:
    """The instruction over all partitions, however it selected them before."""
    node = item.node
    for tensor in {access.tensor.id: access.tensor for access in item.accesses}.values():
        node = syntax.reindex_tensor(node, tensor.name, partial(_index_all_rows, tensor.name))
    return node


def _index_all_rows(name: str, parts: list[cst.SubscriptElement] | None) -> cst.BaseExpression:
    return (
        syntax.make_subscript(name, [syntax.parse_subscript_elements(":")[0], *parts[1:]])
        if parts
        else cst.Name(name)
    )
