"""Moves the production of a tile in front of a loop: the common core of hoisting and of wider transfers.

The production of a tile is every statement inside the loop that contributes to its contents. It moves if
nothing else needs its intermediate results and nothing it reads changes inside the loop. If it contains inner
loops, the tile gets a dimension for each of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby

import libcst as cst

from targets.nki.rewrites import syntax
from targets.nki.rewrites.blocking import never_overlap
from targets.nki.rewrites.declarations import shape_texts
from targets.nki.rewrites.kernel_ir import (
    Access,
    Guard,
    Kernel,
    Loop,
    Node,
    Statement,
    StatementKind,
    loop_contains,
    walk_nodes,
)
from targets.nki.rewrites.slices import (
    SourceWindow,
    base_name,
    find_walked_dimension,
    full_span,
    parse_windows,
    widen_window,
)
from targets.nki.rewrites.transform import Choice, RewriteRefused
from targets.nki.rewrites.values import Tensor

FIRST_ITERATION: Choice = {"when": "in the first iteration"}
"""The choice to make tiles in the first iteration of a loop, not in front of it."""


@dataclass(frozen=True, eq=False)
class StagePlan:
    """A production that can move: `group` in front of `loop`, `tensor` with a dimension per `grown` loop."""

    kernel: Kernel
    tensor: Tensor
    loop: Loop
    group: frozenset[Statement]
    grown: tuple[Loop, ...]
    dropped: frozenset[str]
    """Loops around the production on which it does not depend."""
    stays: str = ""
    """Why the production cannot come before the loop, only be left out in later iterations."""

    @property
    def bytes_factor(self) -> int:
        factor = 1
        for loop in self.grown:
            factor *= loop.trips
        return factor

    @property
    def sole_load(self) -> Statement | None:
        """The load from HBM, if the production consists of nothing else."""
        operations = [item for item in self.group if item.kind is StatementKind.OPERATE]
        one = operations[0] if len(operations) == 1 else None
        if one is None or one.op != "dma_copy" or not _is_plain_load(one):
            return None
        return one


def plan_stage(kernel: Kernel, tensor: Tensor, loop: Loop) -> StagePlan:
    """Find what moves with a tile that is declared inside the loop.

    Raises:
        RewriteRefused: it cannot move; the message says why.
    """
    if tensor.buffer != "sbuf":
        raise RewriteRefused(f"{tensor.name} lives in {tensor.buffer}")
    opaque = [
        item for item in kernel.statements if item.kind is StatementKind.OPAQUE and loop_contains(loop, item)
    ]
    if opaque:
        raise RewriteRefused(f"the loop over {loop.var} holds what cannot be read: {opaque[0].reason}")
    group, inputs = _production_group(kernel, tensor, loop)
    stays = ""
    if any(item.guards for item in group):
        _check_conditions(kernel, tensor, loop, group=group)
        stays = f"{tensor.name} is made under a condition"
    elif inputs:
        stays = f"{min(inputs)} is made in the loop over {loop.var}"
    _check_complete(kernel, tensor, group)
    _check_names(kernel, loop, group)
    declared = kernel.declarations[tensor.id]
    between = declared.path[declared.path.index(loop) :]
    used = frozenset().union(*(item.loops for item in group))
    grown = tuple(item for item in between if item.id in used)
    dropped = frozenset(item.id for item in between) - used
    _check_dropped_loops(kernel, group, dropped)
    for item in grown:
        if item.index_text is None:
            raise RewriteRefused(f"the loop over {item.var} does not count by one")
        _check_index(kernel, tensor, item)
    return StagePlan(kernel, tensor, loop, group, grown, dropped, stays)


def check_may_precede(plan: StagePlan) -> None:
    """Check that the production may come before its loop.

    Raises:
        RewriteRefused: it needs what the loop makes, or is in a condition.
    """
    if plan.stays:
        raise RewriteRefused(plan.stays)


def check_is_no_list(plan: StagePlan) -> None:
    """Check that a tile that gets dimensions for loops is none of a list.

    Raises:
        RewriteRefused: it is one.
    """
    if plan.grown and plan.tensor.copies:
        raise RewriteRefused(f"{plan.tensor.name} is a list of tiles already")


def _production_group(
    kernel: Kernel, tensor: Tensor, loop: Loop
) -> tuple[frozenset[Statement], frozenset[str]]:
    """The statements that make a tile, and the names of inputs that only the loop's first iteration makes."""
    group: set[Statement] = set()
    inputs: set[str] = set()
    seen: dict[int, Tensor] = {}
    pending = [tensor]
    while pending:
        tile = pending.pop()
        if tile.id in seen:
            continue
        seen[tile.id] = tile
        if tile.id in kernel.escaping_ids:
            raise RewriteRefused(f"{tile.name} has a second name or is used by what cannot be read")
        group.add(kernel.declarations[tile.id])
        for writer in (item for item in kernel.users_of(tile) if item.writes_tensor(tile)):
            group.add(writer)
            for access in writer.accesses:
                if _is_made_in(kernel, access.tensor, loop):
                    pending.append(access.tensor)
                elif _is_made_by_first_iteration(kernel, writer, access, loop):
                    inputs.add(access.tensor.name)
    for tile in seen.values():
        others = [item for item in kernel.users_of(tile) if item not in group]
        if tile.id != tensor.id and others:
            raise RewriteRefused(
                f"{tile.name}, which {tensor.name} is made from, is also used by {others[0].op}"
            )
    return frozenset(group), frozenset(inputs)


def _is_made_in(kernel: Kernel, tensor: Tensor, loop: Loop) -> bool:
    declared = kernel.declarations.get(tensor.id)
    return tensor.is_on_chip and declared is not None and loop in declared.path


def _is_made_by_first_iteration(kernel: Kernel, item: Statement, access: Access, loop: Loop) -> bool:
    """Whether the first iteration of a loop, and no later one, writes what a statement in the loop reads.

    Raises:
        RewriteRefused: other iterations write it, too, or the first one does after the statement.
    """
    tensor = access.tensor
    writers = [one for one in kernel.users_of(tensor) if one.writes_tensor(tensor) and loop in one.path]
    if all(_only_comes_first(kernel, writer, item, access=access, loop=loop) for writer in writers):
        return bool(writers)
    raise RewriteRefused(f"{tensor.name} changes inside the loop over {loop.var}")


def _only_comes_first(
    kernel: Kernel, writer: Statement, item: Statement, *, access: Access, loop: Loop
) -> bool:
    """Whether what a statement reads is written in the loop's first iteration only, and before it."""
    if not any(guard.loops == (loop,) and guard.is_first for guard in writer.guards):
        return False
    if writer.order > item.order or access.tensor.id in kernel.escaping_ids:
        return False
    parts = [one for one in writer.accesses if one.writes and one.tensor.id == access.tensor.id]
    inner = [one for one in writer.path[writer.path.index(loop) + 1 :] if one in item.path]
    return all(never_overlap(kernel, one, part, access) for one in inner for part in parts)


def _check_complete(kernel: Kernel, tensor: Tensor, group: frozenset[Statement]) -> None:
    """Check that the tile is finished before it is used, or that no part of it is written twice."""
    home = set(tensor.home)
    users = kernel.users_of(tensor)
    writers = [item for item in users if item.writes_tensor(tensor)]
    once = _is_written_once(kernel, tensor, writers)
    for writer in writers:
        for reader in (item for item in users if item not in group):
            shared = {loop.id for loop in writer.path if loop in reader.path}
            if reader.order < writer.order or not (once or shared <= home):
                raise RewriteRefused(f"{tensor.name} is used by {reader.op} before it is finished")


def _is_written_once(kernel: Kernel, tensor: Tensor, writers: Sequence[Statement]) -> bool:
    """Whether one instruction writes a tile, each time another part."""
    made = [access for item in writers for access in item.accesses if access.tensor.id == tensor.id]
    return len(made) == 1 and all(
        never_overlap(kernel, loop, made[0], made[0])
        for loop in writers[0].free_loops
        if loop.id not in tensor.home
    )


def _check_conditions(kernel: Kernel, tensor: Tensor, loop: Loop, *, group: frozenset[Statement]) -> None:
    """Refuse all conditions but that loops inside those around the tile are in their first iteration."""
    declared = kernel.declarations[tensor.id]
    for guard in {guard for item in group for guard in item.guards}:
        if loop not in guard.path or not guard.is_first or {*guard.loops} & {*declared.path}:
            raise RewriteRefused(f"{tensor.name} is made under a condition")


def _check_names(kernel: Kernel, loop: Loop, group: frozenset[Statement]) -> None:
    """Check that Python names that the production uses mean the same in front of the loop."""
    others = [item for item in kernel.statements if loop_contains(loop, item) and item not in group]
    named = {name for item in others if item.kind is StatementKind.BIND for name in item.binds}
    tiles = {name for item in others if item.kind is StatementKind.DECLARE for name in item.binds}
    for item in sorted(group, key=lambda item: item.order):
        clash = sorted((item.uses & named) | (item.mentions & tiles))
        if clash:
            raise RewriteRefused(
                f"it uses the name {clash[0]}, which is bound inside the loop over {loop.var}"
            )


def _check_index(kernel: Kernel, tensor: Tensor, loop: Loop) -> None:
    """Check that a loop's index means that loop wherever the tile is used, because it will select one."""
    for item in kernel.users_of(tensor):
        if [one for one in item.path if one.var == loop.var][-1:] != [loop]:
            raise RewriteRefused(f"{loop.var} is bound again around {item.op}, which uses {tensor.name}")
    if any(loop.var in item.binds for item in kernel.statements if loop_contains(loop, item)):
        raise RewriteRefused(f"{loop.var} is bound again in its loop")


def _check_dropped_loops(kernel: Kernel, group: frozenset[Statement], dropped: frozenset[str]) -> None:
    """Check that each iteration of a dropped loop starts from scratch."""
    for item in group:
        for loop in (step for step in item.path if step.id in dropped):
            for access in item.accesses:
                declared = kernel.declarations.get(access.tensor.id)
                if access.writes and (declared is None or loop not in declared.path):
                    raise RewriteRefused(f"{access.tensor.name} collects over the loop over {loop.var}")


def _is_plain_load(item: Statement) -> bool:
    dst, src = item.find_access("dst"), item.find_access("src")
    if dst is None or src is None or src.tensor.is_on_chip:
        return False
    filled = dst.view.is_whole and dst.view.plain and not dst.reads
    return filled and src.view.plain and dst.view.shape == src.view.shape


# -- emitting ------------------------------------------------------------------------------------


def emit_staged(plan: StagePlan, merged: Sequence[Loop] = ()) -> str:
    """The source with the production in front of the loop; `merged` loops become part of one transfer.

    Raises:
        RewriteRefused: a loop cannot be merged into the transfer, nothing is left in the loop, or the
            production needs what the loop makes.
    """
    check_may_precede(plan)
    kernel, name = plan.kernel, _new_name(plan)
    change = partial(_index_staged_tile, plan, name)

    def before(node: Node) -> list[cst.BaseStatement] | None:
        if isinstance(node, Guard):
            return []
        if isinstance(node, Loop):
            keep = node.id not in plan.dropped and node not in merged
            if not any(loop_contains(node, item) for item in plan.group):
                return []
            return None if keep else syntax.rebuild_block(node.body, before)
        if node not in plan.group or node.tensor == plan.tensor:
            return []
        if merged and node is plan.sole_load:
            return [_write_merged_load(plan, node, name, merged=merged)]
        return [change(node)]

    def after(node: Node) -> list[cst.BaseStatement] | None:
        if node is plan.loop:
            rest = syntax.rebuild_block(plan.loop.body, after)
            if not rest:
                raise RewriteRefused(f"the loop over {plan.loop.var} only makes {plan.tensor.name}")
            moved = syntax.rebuild_block([plan.loop], before)
            return [_declare_staged_tile(plan, name), *moved, syntax.replace_body(plan.loop.node, rest)]
        if not isinstance(node, Statement):
            return None
        return [] if node in plan.group else [change(node)]

    return syntax.render_module(kernel, syntax.rebuild_block(kernel.body, after))


def emit_in_first_iteration(plan: StagePlan) -> str:
    """The source with the tile declared in front of the loop, but produced in the loop's first iteration.

    The production stays where it was, under `if index == first:`. So nothing waits for all of it: its parts
    run in the order in which they are needed.

    Raises:
        RewriteRefused: the index means something else inside.
    """
    var, nodes = plan.loop.var, list(walk_nodes(plan.loop.body))
    bound = [node for node in nodes if isinstance(node, Loop) and node.var == var]
    if bound or any(isinstance(node, Statement) and var in node.binds for node in nodes):
        raise RewriteRefused(f"{var} is bound again in its loop")
    name = _new_name(plan)

    def block(nodes: Sequence[Node]) -> list[cst.BaseStatement]:
        out: list[cst.BaseStatement] = []
        for ours, run in groupby(nodes, key=partial(_is_production, plan)):
            made = syntax.rebuild_block(list(run), visit)
            out.extend(
                [syntax.make_condition(f"{plan.loop.var} == {plan.loop.first}", made)]
                if ours and made
                else made
            )
        return out

    def visit(node: Node) -> list[cst.BaseStatement] | None:
        if isinstance(node, Statement):
            return [] if node.tensor == plan.tensor else [_index_staged_tile(plan, name, node)]
        if _is_production(plan, node):
            return None
        body = block(node.body)
        inner: list[cst.BaseStatement] = [syntax.replace_body(node.node, body)] if body else []
        return [_declare_staged_tile(plan, name), *inner] if node is plan.loop else inner

    return syntax.render_module(plan.kernel, syntax.rebuild_block(plan.kernel.body, visit))


def _is_production(plan: StagePlan, node: Node) -> bool:
    """Whether a node consists only of the production."""
    return all(item in plan.group for item in walk_nodes([node]) if isinstance(item, Statement))


def _new_name(plan: StagePlan) -> str:
    name = plan.tensor.name
    twins = [item for item in plan.kernel.declarations.values() if name in item.binds]
    if not plan.grown and len(twins) == 1:
        return name
    return plan.kernel.fresh_name(f"{name}s" if name.endswith("tile") else f"{name}_all")


def _declare_staged_tile(plan: StagePlan, name: str) -> cst.BaseStatement:
    """The tile's declaration with a dimension per grown loop after the partition dimension."""
    item = plan.kernel.declarations[plan.tensor.id]
    if not plan.grown:
        return syntax.rename_variable(item.node, plan.tensor.name, name)
    sizes = shape_texts(plan.kernel, item)
    grown = [sizes[0], *(loop.count_text for loop in plan.grown), *sizes[1:]]
    words = ", ".join(f"{key}={item.texts[key]}" for key in ("dtype", "buffer") if key in item.texts)
    made = f"{plan.kernel.nl}.ndarray(({', '.join(grown)}), {words})"
    for count in reversed(plan.tensor.copies):
        made = f"[{made} for _ in range({count})]"
    new = syntax.parse_statement(f"{name} = {made}")
    return syntax.with_leading_lines(new, syntax.leading_lines(item.node))


def _index_staged_tile(plan: StagePlan, name: str, item: Statement) -> cst.BaseStatement:
    """A statement that uses the tile, with indices for the new dimensions."""
    if not item.touches_tensor(plan.tensor):
        return item.node
    if not plan.grown:
        return syntax.rename_variable(item.node, plan.tensor.name, name)
    inserted = [part for loop in plan.grown for part in syntax.parse_subscript_elements(str(loop.index_text))]

    whole = [syntax.parse_subscript_elements(":")[0]] * len(plan.tensor.shape)

    def change(parts: list[cst.SubscriptElement] | None) -> cst.BaseExpression:
        if plan.tensor.copies:
            if parts is None:  # the name in `name[...]`, which is asked for as well
                return cst.Name(name)
            one = syntax.make_subscript(name, parts)
            return cst.Subscript(one, syntax.make_subscript(name, [whole[0], *inserted, *whole[1:]]).slice)
        old = [*(parts or []), *whole[len(parts or []) :]]
        return syntax.make_subscript(name, [old[0], *inserted, *old[1:]])

    return syntax.reindex_tensor(item.node, plan.tensor.name, change)


# -- one transfer for several iterations ------------------------------------------------------------


def mergeable_loops(plan: StagePlan) -> tuple[Loop, ...]:
    """The grown loops whose iterations load neighbouring data, so that one transfer can serve them all."""
    load = plan.sole_load
    if load is None:
        return ()
    source = load.find_access("src")
    assert source is not None
    return tuple(loop for loop in plan.grown if find_walked_dimension(source.view, loop) is not None)


def _write_merged_load(
    plan: StagePlan, load: Statement, name: str, *, merged: Sequence[Loop]
) -> cst.BaseStatement:
    source = load.find_access("src")
    assert source is not None
    dims = [find_walked_dimension(source.view, loop) for loop in merged]
    if None in dims or len(set(dims)) != len(dims):
        raise RewriteRefused(f"the iterations over {merged[0].var} do not load neighbouring data")
    by_dim = {dim: loop for dim, loop in zip(dims, merged, strict=True) if dim is not None}
    rest = [":"] * (len(plan.tensor.shape) - 1)
    index = [":" if loop in merged else str(loop.index_text) for loop in plan.grown]
    words = [":", *index, *rest]
    tile = (
        syntax.rename_in_expression(load.texts["dst"], plan.tensor.name, name) if plan.tensor.copies else name
    )
    goal = tile if set(words) == {":"} else f"{tile}[{', '.join(words)}]"
    return syntax.replace_arguments(
        load.node, {"dst": goal, "src": _merged_source(plan, load, source, by_dim=by_dim)}
    )


def _merged_source(plan: StagePlan, load: Statement, source: Access, *, by_dim: dict[int, Loop]) -> str:
    view, rank = source.view, len(source.tensor.shape)
    parts = parse_windows(plan.kernel, load.texts["src"], rank)
    words = [
        widen_window(view, dim, by_dim[dim], part.lower, full_span(by_dim[dim]))
        if dim in by_dim
        else part.text
        for dim, part in enumerate(parts)
    ]
    base = base_name(load.texts["src"])  # of a tensor or of a view of it, to which the words refer
    text = base if set(words) == {":"} else f"{base}[{', '.join(words)}]"
    if list(by_dim) == [rank - 1] and parts[-1].kept:
        return text
    return text + _rearranging_calls(plan, parts, by_dim)


def _rearranging_calls(plan: StagePlan, parts: Sequence[SourceWindow], by_dim: dict[int, Loop]) -> str:
    """`.reshape_dim(...)` per merged dimension and the `.permute(...)` that puts partitions first."""
    sizes = iter(shape_texts(plan.kernel, plan.kernel.declarations[plan.tensor.id]))
    calls: list[str] = []
    tiles: list[int] = []
    loops: dict[Loop, int] = {}
    position = axis = 0
    for dim, part in enumerate(parts):
        loop = by_dim.get(dim)
        size = next(sizes) if part.kept else ""
        if loop is not None:
            loops[loop], position = position, position + 1
            calls += [f".reshape_dim({axis}, ({loop.count_text}, {size}))"] if part.kept else []
        if part.kept:
            tiles.append(position)
            position += 1
        axis += part.kept or loop is not None
    order = [tiles[0], *(loops[loop] for loop in plan.grown if loop in loops), *tiles[1:]]
    text = "".join(reversed(calls))
    return text if order == sorted(order) else f"{text}.permute(({', '.join(map(str, order))}))"
