"""Gathers what the iterations of a loop move piece by piece, so that one instruction moves it at once.

An instruction at the end of a loop's body takes a tile of the iteration and writes a part of a larger
tensor. With a tile that holds the results of several iterations side by side, it runs once for all of
them, after the loop. Stores, drains of PSUM and copies of transposed tiles are all of this form.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import libcst as cst

from targets.nki.rewrites import syntax
from targets.nki.rewrites.model import Access, Kernel, Kind, Loop, Node, Statement, inside
from targets.nki.rewrites.slices import Span, all_of, base_name, walked_dimension, widened, windows
from targets.nki.rewrites.splitting import range_name
from targets.nki.rewrites.staging import shape_texts
from targets.nki.rewrites.transform import Refused
from targets.nki.rewrites.values import Tensor

MOVERS = {"dma_copy": "src", "tensor_copy": "src", "activation": "data", "tensor_scalar": "data"}
"""Instructions that treat every element alike, and the operand that they move."""


@dataclass(frozen=True, eq=False)
class Gather:
    """`mover` can leave `loop`, when `tile` has the pieces of several iterations along `axis`."""

    kernel: Kernel
    loop: Loop
    mover: Statement
    tile: Tensor
    dim: int
    """The dimension of the destination along which iterations are neighbours."""
    axis: int
    """The axis of the tile that grows, or where it gets a new one."""
    grows: bool
    """Whether an axis grows; else the tile gets a new one."""


def plan_gather(kernel: Kernel, loop: Loop, mover: Statement) -> Gather:
    """Work out how an instruction directly in a loop can serve several iterations.

    Raises:
        Refused: it cannot; the message says why.
    """
    if mover.path[-1:] != (loop,) or mover.guards:
        raise Refused(f"{mover.op} does not run once in every iteration over {loop.var}")
    if loop.step != 1 or loop.index_text is None:
        raise Refused(f"the loop over {loop.var} does not count by one")
    source, goal = mover.access(MOVERS[mover.op]), mover.access("dst")
    if source is None or goal is None:
        raise Refused(f"{mover.op} does not move a tile")
    _check_others(kernel, loop, mover, source, goal)
    _check_tile(kernel, loop, mover, source.tensor)
    dim, axis, grows = _direction(kernel, loop, mover, source, goal)
    return Gather(kernel, loop, mover, source.tensor, dim, axis, grows)


def _check_others(kernel: Kernel, loop: Loop, mover: Statement, source: Access, goal: Access) -> None:
    """Nothing else in the loop may touch the destination, or change what the mover reads."""
    if goal.reads:
        raise Refused(f"{mover.op} adds to what {goal.tensor.name} holds")
    for item in (item for item in kernel.statements if inside(loop, item) and item is not mover):
        if item.kind is Kind.OPAQUE:
            raise Refused(f"the loop over {loop.var} holds what cannot be read: {item.reason}")
        if item.touches(goal.tensor):
            raise Refused(f"{item.op} in the loop over {loop.var} also uses {goal.tensor.name}")
        if item.kind is Kind.BIND and item.binds & mover.uses:
            raise Refused(f"{mover.op} uses {min(item.binds & mover.uses)}, which is bound in the loop")
    for access in mover.accesses:
        if access in (source, goal):
            continue
        changed = any(inside(loop, item) and item.writes(access.tensor) for item in kernel.statements)
        column = access.view.tensor.on_chip and access.view.shape[1:] in {(), (1,)}
        if access.writes or changed or loop.id in access.view.loops or not column:
            raise Refused(f"{access.tensor.name} is not the same column for all iterations over {loop.var}")


def _check_tile(kernel: Kernel, loop: Loop, mover: Statement, tile: Tensor) -> None:
    """The tile must belong to one iteration and be finished when it is moved."""
    declared = kernel.declarations.get(tile.id)
    if declared is None or declared.path != mover.path or declared.guards or not tile.on_chip:
        raise Refused(f"{tile.name} is not a tile of one iteration over {loop.var}")
    for tensor in (access.tensor for access in mover.accesses):
        if tensor.id in kernel.escaping:
            raise Refused(f"{tensor.name} has a second name or is used by what cannot be read")
    if tile.copies:
        raise Refused(f"{tile.name} is a list of tiles")
    bound = (item.binds for item in kernel.statements if inside(loop, item))
    if declared.mentions & frozenset({loop.var}).union(*bound):
        raise Refused(f"the shape of {tile.name} is only known in the loop over {loop.var}")
    late = [item for item in kernel.users(tile) if item.writes(tile) and item.order > mover.order]
    if late:
        raise Refused(f"{late[0].op} writes {tile.name} after {mover.op} has moved it")


def _direction(
    kernel: Kernel, loop: Loop, mover: Statement, source: Access, goal: Access
) -> tuple[int, int, bool]:
    """(dimension of the destination, axis of the tile, whether that axis grows)."""
    if not (source.view.whole and source.view.plain and goal.view.plain):
        raise Refused(f"{mover.op} takes part of {source.tensor.name}, or rearranges it")
    if source.view.shape != goal.view.shape:
        raise Refused(f"{mover.op} reshapes {source.tensor.name}")
    dim = walked_dimension(goal.view, loop)
    if dim is None:
        raise Refused(f"iterations over {loop.var} do not write neighbouring parts of {goal.tensor.name}")
    parts = windows(kernel, mover.texts["dst"], len(goal.tensor.shape))
    axis = sum(part.kept for part in parts[:dim])
    if axis == 0:
        raise Refused(f"the parts of {goal.tensor.name} lie in different partitions")
    if axis > 1 and source.tensor.buffer == "psum":
        raise Refused(f"the pieces of {source.tensor.name} would not lie in banks of their own")
    return dim, axis, parts[dim].kept


def emit_gather(plan: Gather, size: int, constant: str) -> str:
    """The source with the mover behind the loop, or behind blocks of `size` iterations of it.

    Raises:
        Refused: the size does not divide the number of iterations.
    """
    kernel, loop = plan.kernel, plan.loop
    if loop.trips % size or (size != loop.trips and loop.index_text != loop.var):
        raise Refused(f"blocks of {size} do not divide the {loop.trips} iterations over {loop.var}")
    writer = _Writer(plan, size, constant)
    lines = [] if size == loop.trips else [f"{constant} = {size}  # iterations over {loop.var} moved at once"]

    def visit(node: Node) -> list[cst.BaseStatement] | None:
        return writer.loop() if node is loop else None

    return syntax.source_of(kernel, syntax.rebuild(kernel.body, visit), lines)


class _Writer:
    """Writes the loop, the tile of several iterations in front of it and the mover behind it."""

    def __init__(self, plan: Gather, size: int, constant: str) -> None:
        self._plan, self._constant = plan, constant
        self._name = plan.kernel.fresh(_plural(plan.tile.name))
        self._partial = size != plan.loop.trips
        self._outer = plan.kernel.fresh(f"{plan.loop.var}_block")
        self._span = all_of(plan.loop)
        self._count, self._index = plan.loop.count_text, str(plan.loop.index_text)
        if self._partial:
            first, stop = f"{self._outer} * {constant}", f"({self._outer} + 1) * {constant}"
            self._span = Span(first, stop, size)
            self._count, self._index = constant, f"{plan.loop.var} % {constant}"

    def loop(self) -> list[cst.BaseStatement]:
        loop = self._plan.loop
        body = syntax.rebuild(loop.body, self._own)
        front = syntax.leading(loop.node)
        if not self._partial:
            rest = syntax.at_front(loop.node, [])
            assert isinstance(rest, cst.For)
            made = [syntax.with_body(rest, body)] if body else []
            return [self._declaration(front), *made, self._moved()]
        name = range_name(self._plan.kernel, loop)
        inner = syntax.loop(loop.var, f"{name}({self._span.first}, {self._span.stop})", body)
        block = [self._declaration(), inner, self._moved()]
        outer = syntax.loop(
            self._outer, f"{name}({syntax.grouped(loop.stop, first=True)} // {self._constant})", block
        )
        return [syntax.at_front(outer, front)]

    def _own(self, node: Node) -> list[cst.BaseStatement] | None:
        if not isinstance(node, Statement):
            return None
        if node is self._plan.mover or node.tensor == self._plan.tile:
            return []
        return [syntax.reindex(node.node, self._plan.tile.name, self._piece)] if self._touches(node) else None

    def _touches(self, node: Statement) -> bool:
        return node.touches(self._plan.tile)

    def _piece(self, parts: list[cst.SubscriptElement] | None) -> cst.BaseExpression:
        """The part of the large tile that stands for the tile of this iteration."""
        whole = [syntax.elements(":")[0]] * len(self._plan.tile.shape)
        old = [*(parts or []), *whole[len(parts or []) :]]
        axis = self._plan.axis
        if not self._plan.grows:
            return syntax.subscript(self._name, [*old[:axis], *syntax.elements(self._index), *old[axis:]])
        shifted = syntax.elements(self._shifted(old[axis]))
        return syntax.subscript(self._name, [*old[:axis], *shifted, *old[axis + 1 :]])

    def _shifted(self, part: cst.SubscriptElement) -> str:
        """A subscript along the axis that grows, in the piece of this iteration."""
        code = self._plan.kernel.module.code_for_node
        index = f"({self._index})" if " " in self._index else self._index
        base = f"{index} * {syntax.grouped(self._sizes()[self._plan.axis])}"
        if not isinstance(part.slice, cst.Slice):
            return f"{base} + {code(part.slice)}"
        if part.slice.step is not None:
            raise Refused(f"{self._plan.tile.name} is taken in steps")
        end = f"({index} + 1) * {syntax.grouped(self._sizes()[self._plan.axis])}"
        lower, upper = part.slice.lower, part.slice.upper
        start = f"{base} + {code(lower)}" if lower else base
        return f"{start} : {base} + {code(upper)}" if upper else f"{start} : {end}"

    def _sizes(self) -> list[str]:
        return shape_texts(self._plan.kernel, self._plan.kernel.declarations[self._plan.tile.id])

    def _declaration(self, front: Sequence[cst.EmptyLine] = ()) -> cst.BaseStatement:
        item = self._plan.kernel.declarations[self._plan.tile.id]
        sizes, axis = self._sizes(), self._plan.axis
        if self._plan.grows:
            sizes[axis] = f"{syntax.grouped(self._count, first=True)} * {syntax.grouped(sizes[axis])}"
        else:
            sizes.insert(axis, self._count)
        words = ", ".join(f"{key}={item.texts[key]}" for key in ("dtype", "buffer") if key in item.texts)
        new = syntax.statement(
            f"{self._name} = {self._plan.kernel.nl}.ndarray(({', '.join(sizes)}), {words})"
        )
        comments = [line for line in syntax.leading(item.node) if line.comment]
        return syntax.at_front(new, [*front, *comments])

    def _moved(self) -> cst.BaseStatement:
        plan, goal = self._plan, self._plan.mover.access("dst")
        assert goal is not None
        parts = windows(plan.kernel, plan.mover.texts["dst"], len(goal.tensor.shape))
        words = [part.text for part in parts]
        words[plan.dim] = widened(goal.view, plan.dim, plan.loop, parts[plan.dim].lower, self._span)
        changes: dict[str, str | None] = {
            "dst": f"{base_name(plan.mover.texts['dst'])}[{', '.join(words)}]",
            MOVERS[plan.mover.op]: self._name,
        }
        return syntax.with_arguments(plan.mover.node, changes)


def _plural(name: str) -> str:
    return f"{name}s" if name.endswith("tile") else f"{name}_wide"


def candidates(kernel: Kernel) -> Sequence[tuple[Loop, Statement]]:
    """Instructions that move a tile at the end of a loop, each with its innermost loop."""
    return [(item.path[-1], item) for item in kernel.operations() if item.op in MOVERS and item.path]
