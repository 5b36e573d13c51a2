"""Two passes: the maximum of all tiles is found first, so that no sum is rescaled when the maximum grows.

An online softmax keeps a running maximum and multiplies its sums by the exponential of each change. That
chains the iterations to one another, and costs several small instructions for each tile. A first loop that
only finds the maximum is shorter, and both loops then reduce tiles of any size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import libcst as cst

from nki_sim.targets import Target
from targets.nki.rewrites import syntax
from targets.nki.rewrites.blocking import BlockPlan, MultiBufferWriter, check_own_name
from targets.nki.rewrites.kernel_ir import (
    Kernel,
    Loop,
    Node,
    Statement,
    StatementKind,
    list_statements,
    walk_nodes,
)
from targets.nki.rewrites.running_maximum import RescaledSums, read_rescaled_sums
from targets.nki.rewrites.transform import Choice, RewriteRefused, Transform
from targets.nki.rewrites.transforms.distribute import max_buffers
from targets.nki.rewrites.values import Tensor

KEPT, AGAIN = "kept", "made again"


@dataclass(frozen=True, eq=False)
class PassPlan:
    """The nodes of both loops; `crossing` are tiles that the first one makes and the second one uses."""

    found: RescaledSums
    first: tuple[Node, ...]
    second: tuple[Node, ...]
    crossing: tuple[Tensor, ...]


class TwoPass(Transform[Loop]):
    """Splits a loop with a running maximum in two: one finds the maximum, the other one sums up."""

    id: ClassVar[str] = "two_pass"
    counter: ClassVar[str] = "total_time"
    keeps: ClassVar[str] = (
        "every term is scaled by the exponential of the running maximum, so the sum of terms that are scaled "
        "by the last maximum equals the sum that was rescaled at each change"
    )

    def find_sites(self, kernel: Kernel, target: Target) -> Mapping[str, Loop]:
        del target
        return {kernel.unique_label(loop): loop for loop in kernel.loops if _keeps_extremum(kernel, loop)}

    def list_choices(self, kernel: Kernel, target: Target, place: Loop) -> tuple[Choice, ...]:
        plan = _plan_passes(kernel, place)
        if not plan.crossing:
            return ({},)
        fits = place.trips <= max_buffers(_block_plan(kernel, plan, plan.crossing), target)
        return ({"tiles": KEPT}, {"tiles": AGAIN}) if fits else ({"tiles": AGAIN},)

    def apply(self, kernel: Kernel, target: Target, place: Loop, choice: Choice) -> str:
        del target
        plan = _plan_passes(kernel, place)
        again = choice.get("tiles") == AGAIN
        return _write_passes(kernel, plan, again=again)


def _keeps_extremum(kernel: Kernel, loop: Loop) -> bool:
    """Whether an instruction in a loop's body takes the maximum or minimum with a tile it changes."""
    return any(
        isinstance(item, Statement)
        and item.op in {"tensor_tensor", "tensor_scalar"}
        and {"maximum", "minimum"} & {getattr(value, "leaf", "") for value in item.arguments.values()}
        and any(_is_changed_inside(kernel, loop, access.tensor) for access in item.accesses if access.reads)
        for item in loop.body
    )


def _is_changed_inside(kernel: Kernel, loop: Loop, tensor: Tensor) -> bool:
    declared = kernel.declarations.get(tensor.id)
    inside = [user for user in kernel.users_of(tensor) if loop in user.path]
    return (
        declared is not None
        and loop not in declared.path
        and any(one.writes_tensor(tensor) for one in inside)
    )


def _plan_passes(kernel: Kernel, loop: Loop) -> PassPlan:
    """Divide a loop's nodes among two loops.

    Raises:
        RewriteRefused: the loop is no running maximum with rescaled sums, or cannot be divided.
    """
    if loop.index_text != loop.var:
        raise RewriteRefused(f"the loop over {loop.var} does not count 0, 1, ...")
    for node in walk_nodes(loop.body):
        if not isinstance(node, Loop | Statement):
            raise RewriteRefused(f"the loop over {loop.var} holds a condition")
        if isinstance(node, Statement) and node.kind in {StatementKind.OPAQUE, StatementKind.BIND}:
            raise RewriteRefused(
                f"the loop over {loop.var} holds what cannot be read: {node.reason or 'a name'}"
            )
    found = read_rescaled_sums(kernel, loop)
    work = _nodes_before(kernel, loop, found)
    made = {
        access.tensor.id: access.tensor
        for item in list_statements(work)
        for access in item.accesses
        if access.writes
    }
    declared = [item for item in loop.body if isinstance(item, Statement) and item.tensor is not None]
    own = [item for item in declared if item.tensor is not None and item.tensor.id in made]
    if len(own) != len(made):
        raise RewriteRefused("what the maximum is found from is also used after the loop")
    first = [node for node in loop.body if node in own or node in work]
    gone = {*found.dropped, found.update, *_unused_declarations(kernel, declared, found)}
    rest = [node for node in loop.body if node not in first and node not in gone]
    users = set(list_statements(rest))
    crossing = [item.tensor for item in own if not users.isdisjoint(kernel.users_of(_tensor(item)))]
    for item in own:
        check_own_name(kernel, item, [other for other in kernel.statements if loop in other.path])
    return PassPlan(found, tuple(first), tuple(rest), tuple(one for one in crossing if one is not None))


def _tensor(declared: Statement) -> Tensor:
    assert declared.tensor is not None
    return declared.tensor


def _nodes_before(kernel: Kernel, loop: Loop, found: RescaledSums) -> list[Node]:
    """The nodes that make what the maximum is taken of, from the first to the last.

    Raises:
        RewriteRefused: they depend on what the loop leaves from one iteration to the next.
    """
    nodes = [node for node in loop.body if node is not found.update and not _declares(node)]
    wanted = {access.tensor.id for access in found.update.accesses if access.reads}
    picked: list[Node] = []
    for node in reversed(nodes):
        items = list_statements([node])
        makes = {access.tensor.id for item in items for access in item.accesses if access.writes}
        if makes & wanted and items[0].order < found.update.order and node not in found.dropped:
            picked.append(node)
            wanted |= {access.tensor.id for item in items for access in item.accesses}
    inside = set(list_statements(loop.body))
    ours = set(list_statements(picked))
    for tensor_id in wanted - {found.peak.id} - {one.id for one in found.copies}:
        writers = [
            item for item in inside if any(a.writes and a.tensor.id == tensor_id for a in item.accesses)
        ]
        outside = tensor_id not in kernel.declarations or loop not in kernel.declarations[tensor_id].path
        if writers and (outside or not ours.issuperset(writers)):
            raise RewriteRefused("what the maximum is taken of changes in the loop")
    return picked[::-1]


def _declares(node: Node) -> bool:
    return isinstance(node, Statement) and node.tensor is not None


def _unused_declarations(
    kernel: Kernel, declared: Sequence[Statement], found: RescaledSums
) -> list[Statement]:
    """Declarations of tiles that only instructions used that are left out; N's readers get the maximum."""
    gone = {*found.dropped, found.update, *found.replaced}
    renamed = {tensor.id for tensor in found.renamed}
    kept = {a.tensor.id for item in found.replaced for a in item.accesses if a.writes}
    return [
        item
        for item in declared
        if _tensor(item).id in renamed
        or (_tensor(item).id not in kept and gone.issuperset(kernel.users_of(_tensor(item))))
    ]


def _block_plan(kernel: Kernel, plan: PassPlan, kept: Sequence[Tensor]) -> BlockPlan:
    loop = plan.found.loop
    inside = frozenset(list_statements(loop.body))
    return BlockPlan(kernel, loop, inside, frozenset(tensor.id for tensor in kept))


def _write_passes(kernel: Kernel, plan: PassPlan, *, again: bool) -> str:
    found, loop = plan.found, plan.found.loop
    crossing = () if again else plan.crossing
    writer = MultiBufferWriter(_block_plan(kernel, plan, crossing), loop.count_text)
    fresh = {tensor.name: kernel.fresh_name(f"{tensor.name}_first") for tensor in plan.crossing if again}

    def in_first(item: Statement) -> cst.BaseStatement:
        node = found.write_update() if item is found.update else item.node
        for old, new in fresh.items():
            node = syntax.rename_variable(node, old, new)
        return node

    def in_second(item: Statement) -> cst.BaseStatement:
        node = found.replaced.get(item)
        made = item.node if node is None else syntax.with_leading_lines(node, syntax.leading_lines(item.node))
        for tensor in found.renamed:
            made = syntax.rename_variable(made, tensor.name, found.peak.name)
        return made

    iterations = kernel.module.code_for_node(loop.node.iter)
    second = plan.second
    if again:
        remade = _made_again(plan, kernel)
        second = tuple(node for node in loop.body if node in remade or node in plan.second)
    lines = [
        *writer.declare_buffers(plan.first),
        *writer.write_loop([*plan.first, found.update], iterations, loop.var, in_first),
        *writer.write_loop(second, iterations, loop.var, in_second),
    ]

    def emit(node: Node) -> list[cst.BaseStatement] | None:
        return lines if node is loop else None

    return syntax.render_module(kernel, syntax.rebuild_block(kernel.body, emit))


def _made_again(plan: PassPlan, kernel: Kernel) -> set[Node]:
    """The nodes of the first loop that the second one repeats: those that lead to what crosses."""
    wanted = {tensor.id for tensor in plan.crossing}
    found: set[Node] = set()
    for node in reversed(plan.first):
        items = list_statements([node])
        makes = {a.tensor.id for item in items for a in item.accesses if a.writes}
        if makes & wanted:
            found.add(node)
            wanted |= {access.tensor.id for item in items for access in item.accesses}
    return found | {kernel.declarations[key] for key in wanted if kernel.declarations.get(key) in plan.first}
