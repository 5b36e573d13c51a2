"""Coalesces what the iterations of a loop move piece by piece, so that one instruction moves it at once.

An instruction at the end of a loop's body takes a tile of the iteration and writes a part of a larger tensor.
If a tile holds the results of several iterations side by side, the instruction runs once for all of them,
after the loop. Stores, PSUM drains and copies of transposed tiles all have this form.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter

import libcst as cst

from targets.nki.rewrites import syntax
from targets.nki.rewrites.blocking import are_apart, check_own_variable
from targets.nki.rewrites.declarations import shape_texts
from targets.nki.rewrites.elementwise import has_plain_arguments
from targets.nki.rewrites.kernel_ir import Access, Kernel, Loop, Node, Statement, StatementKind, loop_contains
from targets.nki.rewrites.loop_ranges import range_name
from targets.nki.rewrites.slices import (
    IterationSpan,
    find_walked_dimension,
    full_span,
    split_windows,
    widen_window,
)
from targets.nki.rewrites.transform import RewriteRefused
from targets.nki.rewrites.values import Tensor

MOVED_OPERANDS = {"dma_copy": "src", "tensor_copy": "src", "activation": "data", "tensor_scalar": "data"}
"""Instructions that treat all elements alike, and the operand that they move."""


@dataclass(frozen=True, eq=False)
class CoalescePlan:
    """`movers` can leave `loop` if `tile` holds the pieces of several iterations along `axis`."""

    kernel: Kernel
    loop: Loop
    movers: tuple[Statement, ...]
    """Instructions that move the tile, each to a place of its own along the same dimension, in order.

    Followers are among them: they combine the tile with what the first one made of it, as the lower half of a
    split operand is what its upper half leaves.
    """
    tile: Tensor
    dim: int
    """The dimension of the destination along which iterations are neighbours."""
    axis: int
    """The axis of the tile that grows, or the position of its new axis."""
    grows: bool
    """Whether an axis grows; else the tile gets a new one."""


def plan_coalesce(kernel: Kernel, loop: Loop, mover: Statement) -> CoalescePlan:
    """Find how an instruction directly in a loop can serve several iterations.

    Raises:
        RewriteRefused: it cannot; the message says why.
    """
    if mover.path[-1:] != (loop,) or mover.guards:
        raise RewriteRefused(f"{mover.op} does not run once in every iteration over {loop.var}")
    if loop.step != 1 or loop.index_text is None:
        raise RewriteRefused(f"the loop over {loop.var} does not count by one")
    check_own_variable(loop)
    source, goal = mover.find_access(MOVED_OPERANDS[mover.op]), mover.find_access("dst")
    if source is None or goal is None:
        raise RewriteRefused(f"{mover.op} does not move a tile")
    followers = [item for item in loop.body if isinstance(item, Statement) and _follows(item, mover, goal)]
    _check_interference(kernel, loop, mover, goal=goal, moved=(source,), leaving=followers)
    _check_tile(kernel, loop, mover, tile=source.tensor)
    axes = _find_axes(kernel, loop, mover, source=source, goal=goal)
    for item in followers:
        made, *operands = item.accesses
        _check_interference(kernel, loop, item, goal=made, moved=operands)
        taken = next(access for access in operands if access.tensor.id == source.tensor.id)
        if _find_axes(kernel, loop, item, source=taken, goal=made) != axes:
            raise RewriteRefused(f"{item.op} puts its result in another order than {mover.op}")
    others = [
        item
        for item in loop.body
        if item is not mover
        and isinstance(item, Statement)
        and _moves_alike(kernel, loop, item, tile=source.tensor, axes=axes)
    ]
    movers = sorted((mover, *followers, *others), key=attrgetter("order"))
    return CoalescePlan(kernel, loop, tuple(movers), source.tensor, *axes)


def _follows(item: Statement, mover: Statement, goal: Access) -> bool:
    """Whether an instruction combines the tile that the mover moves with what the mover made of it."""
    source = mover.find_access(MOVED_OPERANDS[mover.op])
    if item.op != "tensor_tensor" or item.guards or item.order < mover.order or not has_plain_arguments(item):
        return False
    made, *operands = item.accesses
    return (
        source is not None
        and made.role == "dst"
        and made.tensor.id not in {source.tensor.id, goal.tensor.id}
        and sorted(access.tensor.id for access in operands) == sorted((source.tensor.id, goal.tensor.id))
        and any(access.view == goal.view for access in operands)
    )


def _moves_alike(
    kernel: Kernel, loop: Loop, item: Statement, *, tile: Tensor, axes: tuple[int, int, bool]
) -> bool:
    """Whether an instruction moves the same tile, and can leave the loop in the same way."""
    source, goal = item.find_access(MOVED_OPERANDS.get(item.op, "")), item.find_access("dst")
    if source is None or goal is None or source.tensor.id != tile.id or item.guards:
        return False
    try:
        _check_interference(kernel, loop, item, goal=goal, moved=(source,))
        _check_tile(kernel, loop, item, tile=tile)
        return _find_axes(kernel, loop, item, source=source, goal=goal) == axes
    except RewriteRefused:
        return False


def _check_interference(
    kernel: Kernel,
    loop: Loop,
    mover: Statement,
    *,
    goal: Access,
    moved: Sequence[Access],
    leaving: Sequence[Statement] = (),
) -> None:
    """Check that nothing else in the loop touches the destination, or changes what the mover reads.

    Another part of the destination may be touched, if no iteration of the mover gets there. Those `leaving`
    with the mover may touch it, too. The operands `moved` are the pieces of each iteration.
    """
    if goal.reads:
        raise RewriteRefused(f"{mover.op} adds to what {goal.tensor.name} holds")
    for item in (item for item in kernel.statements if loop_contains(loop, item) and item is not mover):
        if item.kind is StatementKind.OPAQUE:
            raise RewriteRefused(f"the loop over {loop.var} holds what cannot be read: {item.reason}")
        same = [access for access in item.accesses if access.tensor.id == goal.tensor.id]
        if item not in leaving and not all(are_apart(kernel, loop, goal, access) for access in same):
            raise RewriteRefused(f"{item.op} in the loop over {loop.var} also uses {goal.tensor.name}")
        if item.kind is StatementKind.BIND and item.binds & mover.uses:
            raise RewriteRefused(
                f"{mover.op} uses {min(item.binds & mover.uses)}, which is bound in the loop"
            )
    for access in mover.accesses:
        if access in (*moved, goal):
            continue
        changed = any(
            loop_contains(loop, item) and item.writes_tensor(access.tensor) for item in kernel.statements
        )
        column = access.view.tensor.is_on_chip and access.view.shape[1:] in {(), (1,)}
        if access.writes or changed or loop.id in access.view.loops or not column:
            raise RewriteRefused(
                f"{access.tensor.name} is not the same column for all iterations over {loop.var}"
            )


def _check_tile(kernel: Kernel, loop: Loop, mover: Statement, *, tile: Tensor) -> None:
    """Check that the tile belongs to one iteration and is finished when it is moved."""
    declared = kernel.declarations.get(tile.id)
    if declared is None or declared.path != mover.path or declared.guards or not tile.is_on_chip:
        raise RewriteRefused(f"{tile.name} is not a tile of one iteration over {loop.var}")
    for tensor in (access.tensor for access in mover.accesses):
        if tensor.id in kernel.escaping_ids:
            raise RewriteRefused(f"{tensor.name} has a second name or is used by what cannot be read")
    if tile.copies:
        raise RewriteRefused(f"{tile.name} is a list of tiles")
    bound = (item.binds for item in kernel.statements if loop_contains(loop, item))
    if declared.mentions & frozenset({loop.var}).union(*bound):
        raise RewriteRefused(f"the shape of {tile.name} is only known in the loop over {loop.var}")
    late = [item for item in kernel.users_of(tile) if item.writes_tensor(tile) and item.order > mover.order]
    if late:
        raise RewriteRefused(f"{late[0].op} writes {tile.name} after {mover.op} has moved it")


def _find_axes(
    kernel: Kernel, loop: Loop, mover: Statement, *, source: Access, goal: Access
) -> tuple[int, int, bool]:
    """(dimension of the destination, axis of the tile, whether that axis grows)."""
    if not (source.view.is_whole and source.view.plain and goal.view.plain):
        raise RewriteRefused(f"{mover.op} takes part of {source.tensor.name}, or rearranges it")
    if source.view.shape != goal.view.shape:
        raise RewriteRefused(f"{mover.op} reshapes {source.tensor.name}")
    dim = find_walked_dimension(goal.view, loop)
    if dim is None or any(loop.id in pick.loops for pick in goal.view.picks):
        raise RewriteRefused(
            f"iterations over {loop.var} do not write neighbouring parts of {goal.tensor.name}"
        )
    _, parts = split_windows(kernel, mover.texts["dst"], goal.tensor)
    axis = sum(part.kept for part in parts[:dim])
    if axis == 0:
        raise RewriteRefused(f"the parts of {goal.tensor.name} lie in different partitions")
    if axis > 1 and source.tensor.buffer == "psum":
        raise RewriteRefused(f"the pieces of {source.tensor.name} would not lie in banks of their own")
    return dim, axis, parts[dim].kept


def emit_coalesced(plan: CoalescePlan, size: int, constant: str) -> str:
    """The source with the mover after the loop, or after blocks of `size` iterations of it.

    Raises:
        RewriteRefused: the size does not divide the number of iterations.
    """
    kernel, loop = plan.kernel, plan.loop
    if loop.trips % size or (size != loop.trips and loop.index_text != loop.var):
        raise RewriteRefused(f"blocks of {size} do not divide the {loop.trips} iterations over {loop.var}")
    writer = _CoalesceWriter(plan, size, constant)
    lines = [] if size == loop.trips else [f"{constant} = {size}  # iterations over {loop.var} moved at once"]

    def visit(node: Node) -> list[cst.BaseStatement] | None:
        return writer.write_loop() if node is loop else None

    return syntax.render_module(kernel, syntax.rebuild_block(kernel.body, visit), lines)


class _CoalesceWriter:
    """Writes the loop, the tile of several iterations in front of it and the mover after it."""

    def __init__(self, plan: CoalescePlan, size: int, constant: str) -> None:
        self._plan, self._constant = plan, constant
        self._name = plan.kernel.fresh_name(_wide_name(plan.tile.name))
        self._partial = size != plan.loop.trips
        self._outer = plan.kernel.fresh_name(f"{plan.loop.var}_block")
        self._span = full_span(plan.loop)
        self._count, self._index = plan.loop.count_text, str(plan.loop.index_text)
        if self._partial:
            first, stop = f"{self._outer} * {constant}", f"({self._outer} + 1) * {constant}"
            self._span = IterationSpan(first, stop, size)
            self._count, self._index = constant, f"{plan.loop.var} % {constant}"

    def write_loop(self) -> list[cst.BaseStatement]:
        loop = self._plan.loop
        body = syntax.rebuild_block(loop.body, self._rewrite_node)
        front = syntax.leading_lines(loop.node)
        if not self._partial:
            rest = syntax.with_leading_lines(loop.node, [])
            assert isinstance(rest, cst.For)
            made = [syntax.replace_body(rest, body)] if body else []
            return [self._declare_wide_tile(front), *made, *self._write_movers()]
        name = range_name(self._plan.kernel, loop)
        inner = syntax.make_loop(loop.var, f"{name}({self._span.first}, {self._span.stop})", body)
        block = [self._declare_wide_tile(), inner, *self._write_movers()]
        outer = syntax.make_loop(
            self._outer, f"{name}({syntax.group_factor(loop.stop, first=True)} // {self._constant})", block
        )
        return [syntax.with_leading_lines(outer, front)]

    def _rewrite_node(self, node: Node) -> list[cst.BaseStatement] | None:
        if not isinstance(node, Statement):
            return None
        if node in self._plan.movers or node.tensor == self._plan.tile:
            return []
        return (
            [syntax.reindex_tensor(node.node, self._plan.tile.name, self._index_piece)]
            if self._uses_tile(node)
            else None
        )

    def _uses_tile(self, node: Statement) -> bool:
        return node.touches_tensor(self._plan.tile)

    def _index_piece(self, parts: list[cst.SubscriptElement] | None) -> cst.BaseExpression:
        """The part of the large tile that stands for this iteration's tile."""
        whole = [syntax.parse_subscript_elements(":")[0]] * len(self._plan.tile.shape)
        old = [*(parts or []), *whole[len(parts or []) :]]
        axis = self._plan.axis
        if not self._plan.grows:
            return syntax.make_subscript(
                self._name, [*old[:axis], *syntax.parse_subscript_elements(self._index), *old[axis:]]
            )
        shifted = syntax.parse_subscript_elements(self._shift_subscript(old[axis]))
        return syntax.make_subscript(self._name, [*old[:axis], *shifted, *old[axis + 1 :]])

    def _shift_subscript(self, part: cst.SubscriptElement) -> str:
        """A subscript along the growing axis, within this iteration's piece."""
        code = self._plan.kernel.module.code_for_node
        index = f"({self._index})" if " " in self._index else self._index
        base = f"{index} * {syntax.group_factor(self._tile_sizes()[self._plan.axis])}"
        if not isinstance(part.slice, cst.Slice):
            return f"{base} + {code(part.slice)}"
        if part.slice.step is not None:
            raise RewriteRefused(f"{self._plan.tile.name} is taken in steps")
        end = f"({index} + 1) * {syntax.group_factor(self._tile_sizes()[self._plan.axis])}"
        lower, upper = part.slice.lower, part.slice.upper
        start = f"{base} + {code(lower)}" if lower else base
        return f"{start} : {base} + {code(upper)}" if upper else f"{start} : {end}"

    def _tile_sizes(self) -> list[str]:
        return shape_texts(self._plan.kernel, self._plan.kernel.declarations[self._plan.tile.id])

    def _declare_wide_tile(self, front: Sequence[cst.EmptyLine] = ()) -> cst.BaseStatement:
        item = self._plan.kernel.declarations[self._plan.tile.id]
        sizes, axis = self._tile_sizes(), self._plan.axis
        if self._plan.grows:
            sizes[axis] = (
                f"{syntax.group_factor(self._count, first=True)} * {syntax.group_factor(sizes[axis])}"
            )
        else:
            sizes.insert(axis, self._count)
        words = ", ".join(f"{key}={item.texts[key]}" for key in ("dtype", "buffer") if key in item.texts)
        new = syntax.parse_statement(
            f"{self._name} = {self._plan.kernel.nl}.ndarray(({', '.join(sizes)}), {words})"
        )
        comments = [line for line in syntax.leading_lines(item.node) if line.comment]
        return syntax.with_leading_lines(new, [*front, *comments])

    def _write_movers(self) -> list[cst.BaseStatement]:
        return list(map(self._write_mover, self._plan.movers))

    def _write_mover(self, mover: Statement) -> cst.BaseStatement:
        """The instruction for all iterations: the wide tile, and the parts of all of them."""
        changes: dict[str, str | None] = {
            access.role: self._name
            if access.tensor.id == self._plan.tile.id
            else self._widen_part(mover.texts[access.role], access)
            for access in mover.accesses
            if access.tensor.id == self._plan.tile.id or self._plan.loop.id in access.view.loops
        }
        return syntax.replace_arguments(mover.node, changes)

    def _widen_part(self, text: str, access: Access) -> str:
        plan = self._plan
        base, parts = split_windows(plan.kernel, text, access.tensor)
        words = [part.text for part in parts]
        words[plan.dim] = widen_window(access.view, plan.dim, plan.loop, parts[plan.dim].lower, self._span)
        return f"{base}[{', '.join(words)}]"


def _wide_name(name: str) -> str:
    return f"{name}s" if name.endswith("tile") else f"{name}_wide"


def find_movers(kernel: Kernel) -> Sequence[tuple[Loop, Statement]]:
    """Instructions that move a tile at the end of a loop, each with its innermost loop."""
    return [(item.path[-1], item) for item in kernel.operations() if item.op in MOVED_OPERANDS and item.path]
