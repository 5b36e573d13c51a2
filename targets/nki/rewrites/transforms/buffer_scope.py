"""Buffer scope: a buffer that each iteration fills completely is declared inside the loop.

So are the tiles of a list, if each iteration fills those that it reads: the list becomes a tile, or a list of
the tiles of one iteration.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

import libcst as cst

from nki_sim.targets import Target
from targets.nki.rewrites import syntax
from targets.nki.rewrites.kernel_ir import Kernel, Loop, Node, Statement, loop_contains
from targets.nki.rewrites.list_tiles import OwnTiles, find_own_tiles
from targets.nki.rewrites.slices import covering_loops
from targets.nki.rewrites.transform import Choice, RewriteRefused, Transform
from targets.nki.rewrites.values import Tensor


class BufferScope(Transform[tuple[Tensor, Loop]]):
    """Moves a declaration into the loop that uses it, so that iterations do not wait for each other."""

    id: ClassVar[str] = "buffer_scope"
    counter: ClassVar[str] = "total_time"
    keeps: ClassVar[str] = "every iteration writes all of the buffer before it reads any of it"

    def find_sites(self, kernel: Kernel, target: Target) -> Mapping[str, tuple[Tensor, Loop]]:
        del target
        return {
            f"{kernel.unique_label(item.tensor)} into {kernel.unique_label(loop)}": (item.tensor, loop)
            for item in kernel.declarations.values()
            if item.tensor is not None and item.tensor.is_on_chip
            for loop in kernel.loops
            if loop.path[: len(item.path)] == item.path
            and any(loop_contains(loop, user) for user in kernel.users_of(item.tensor))
        }

    def list_choices(self, kernel: Kernel, target: Target, place: tuple[Tensor, Loop]) -> tuple[Choice, ...]:
        del target
        _check_scope(kernel, *place)
        return ({},)

    def apply(self, kernel: Kernel, target: Target, place: tuple[Tensor, Loop], choice: Choice) -> str:
        del target, choice
        return scope_buffer(kernel, *place)


def scope_buffer(kernel: Kernel, tensor: Tensor, loop: Loop) -> str:
    """The module's source with a declaration moved into a loop.

    Raises:
        RewriteRefused: not every iteration fills the buffer before it uses it, or something else uses it.
    """
    tiles = _check_scope(kernel, tensor, loop)
    declared = kernel.declarations[tensor.id]

    def emit(node: Node) -> list[cst.BaseStatement] | None:
        if node is declared:
            return []
        if node is loop:
            tile = _declare_tiles(declared, tiles) if tensor.copies else declared.node
            return [syntax.replace_body(loop.node, [tile, *syntax.rebuild_block(loop.body, emit)])]
        if tensor.copies and isinstance(node, Statement):
            return _use_tile(node, tensor, tiles)
        return None

    return syntax.render_module(kernel, syntax.rebuild_block(kernel.body, emit))


def list_tile_scopes(kernel: Kernel, around: Loop) -> Iterator[tuple[Tensor, Loop]]:
    """Lists of tiles that only one loop uses, which is `around` or in it; each with the innermost."""
    for declared in kernel.declarations.values():
        tensor = declared.tensor
        if tensor is None or not tensor.copies or not tensor.is_on_chip:
            continue
        paths = [item.path for item in kernel.users_of(tensor)]
        shared = [loops[0] for loops in zip(*paths, strict=False) if len(set(loops)) == 1]
        if around in shared and shared[-1] not in declared.path:
            yield tensor, shared[-1]


def _check_scope(kernel: Kernel, tensor: Tensor, loop: Loop) -> OwnTiles | None:
    """Return the tiles that an iteration uses, if these are several tiles of a list."""
    users = kernel.users_of(tensor)
    outside = [item for item in users if not loop_contains(loop, item)]
    if outside:
        raise RewriteRefused(f"{tensor.name} is also used outside the loop over {loop.var}")
    if kernel.declarations[tensor.id].guards:
        raise RewriteRefused(f"{tensor.name} is declared under a condition")
    if tensor.id in kernel.escaping_ids:
        raise RewriteRefused(f"{tensor.name} has a second name or is used by what cannot be read")
    tiles = None
    if tensor.copies and not _uses_one_tile(kernel, tensor, loop):
        tiles = find_own_tiles(kernel, tensor, loop)
    first, declared = users[0], kernel.declarations[tensor.id]
    if any(kernel.may_rebind(text, declared, first) for text in declared.texts.values()):
        raise RewriteRefused(
            f"the declaration of {tensor.name} means something else in the loop over {loop.var}"
        )
    between = (item for item in kernel.statements if declared.order < item.order < first.order)
    if any(tensor.name in item.mentions for item in between):
        raise RewriteRefused(f"something is said of {tensor.name} in front of the loop over {loop.var}")
    if tiles is None and not _fills_tensor(kernel, loop, first, tensor=tensor):
        raise RewriteRefused(f"iterations over {loop.var} do not start by filling {tensor.name}")
    return tiles


def _uses_one_tile(kernel: Kernel, tensor: Tensor, loop: Loop) -> bool:
    """Whether all operands in one iteration are the same tile of a list."""
    outer = frozenset(item.id for item in (*loop.path, loop))
    uses = kernel.uses_of(tensor)
    picks = {access.view.picks for _, access in uses}
    if len(picks) != 1 or any(pick.loops - outer for pick in next(iter(picks))):
        return False
    return all(access.role in item.texts for item, access in uses)


def _declare_tiles(declared: Statement, tiles: OwnTiles | None) -> cst.BaseStatement:
    """The declaration of one tile of a list, or of a list of the tiles of an iteration."""
    node = declared.node
    assert isinstance(node, cst.SimpleStatementLine)
    (line,) = node.body
    assert isinstance(line, cst.Assign)
    value = line.value
    while isinstance(value, cst.ListComp):
        value = value.elt
    if tiles is not None:
        value = syntax.parse_expression(f"[{syntax.code_of(value)} for _ in range({tiles.count})]")
    return node.with_changes(body=[line.with_changes(value=value)])


def _use_tile(item: Statement, tensor: Tensor, tiles: OwnTiles | None) -> list[cst.BaseStatement] | None:
    """The instruction with the tile, or with the tile of the shorter list, in place of the list's tile."""
    changes: dict[str, str | None] = {}
    for access in item.accesses:
        if access.tensor.id == tensor.id:
            text = syntax.parse_expression(item.texts[access.role])
            picks = [] if tiles is None else [tiles.texts[pick] for pick in access.view.picks]
            changes[access.role] = syntax.code_of(_replace_picks(text, len(tensor.copies), picks))
    return [syntax.replace_arguments(item.node, changes)] if changes else None


def _replace_picks(text: cst.BaseExpression, count: int, picks: Sequence[str]) -> cst.BaseExpression:
    """An expression with these in place of the first `count` subscripts of its name."""
    chain = [text]
    while not isinstance(chain[-1], cst.Name):
        inner = chain[-1]
        if not isinstance(inner, cst.Subscript | cst.Attribute | cst.Call):
            raise RewriteRefused(f"{syntax.code_of(text)} does not index a list by its name")
        chain.append(inner.func if isinstance(inner, cst.Call) else inner.value)
    made: cst.BaseExpression = chain.pop()
    for pick in picks:
        made = cst.Subscript(made, syntax.parse_subscript_elements(pick))
    for number, part in enumerate(reversed(chain)):
        if number >= count:
            made = part.with_changes(**{"func" if isinstance(part, cst.Call) else "value": made})
    return made


def _fills_tensor(kernel: Kernel, loop: Loop, first: Statement, *, tensor: Tensor) -> bool:
    """Whether the first user in the loop, alone or over loops of its own, writes all of the tensor."""
    mine = [access for access in first.accesses if access.tensor.id == tensor.id]
    inner = first.path[len(loop.path) + 1 :]
    reading = [
        item for item in kernel.users_of(tensor) if item is not first and inner and inner[0] in item.path
    ]
    alone = first.path[: len(loop.path) + 1] == (*loop.path, loop) and not first.guards and not reading
    return alone and all(
        item.writes and not item.reads and item.view.plain and covering_loops(item.view, inner) is not None
        for item in mine
    )
