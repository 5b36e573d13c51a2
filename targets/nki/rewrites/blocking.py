"""Unroll-and-jam without unrolling: cuts a loop into blocks, and runs a block's iterations innermost.

Statements that do not depend on the loop's index then run once per block instead of once per iteration: data
loaded for one iteration serves all of them. Each run of statements that depend on the index gets a short loop
over the block. A tile that lives from one run to another gets a copy for each iteration of the block.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter

import libcst as cst

from targets.nki.rewrites import syntax
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
from targets.nki.rewrites.loop_ranges import range_name
from targets.nki.rewrites.transform import RewriteRefused
from targets.nki.rewrites.values import Affine, DimensionRange, Tensor, make_affine

MAX_DISTANCES = 64
"""Iterations of a loop up to which all distances between two are looked at."""


@dataclass(frozen=True, eq=False)
class BlockPlan:
    """A loop that can be cut into blocks: the statements that depend on its index, and the tiles to copy.

    A tile to copy gets one copy per iteration of a block.
    """

    kernel: Kernel
    loop: Loop
    tainted: frozenset[Statement]
    copied: frozenset[int]


def plan_block(kernel: Kernel, loop: Loop) -> BlockPlan:
    """Find what depends on a loop's index.

    Raises:
        RewriteRefused: its iterations are not independent, or they would share nothing.
    """
    nodes = list(walk_nodes(loop.body))
    _check_readable(loop, nodes)
    check_independent(kernel, loop)
    statements = [node for node in nodes if isinstance(node, Statement)]
    tainted = _index_dependents(kernel, loop, statements)
    shared = [item for item in statements if item.kind is StatementKind.OPERATE and item not in tainted]
    if not shared:
        raise RewriteRefused(f"every instruction in the loop over {loop.var} depends on {loop.var}")
    return BlockPlan(kernel, loop, tainted, _tiles_to_copy(kernel, loop, tainted))


def _check_readable(loop: Loop, nodes: Sequence[Node]) -> None:
    if loop.index_text != loop.var:
        raise RewriteRefused(f"the loop over {loop.var} does not count 0, 1, ...")
    check_own_variable(loop)
    for node in nodes:
        if isinstance(node, Guard):
            raise RewriteRefused(f"the loop over {loop.var} holds a condition")
        if isinstance(node, Statement) and node.kind in {StatementKind.OPAQUE, StatementKind.BIND}:
            raise RewriteRefused(
                f"the loop over {loop.var} holds a statement that cannot be moved: {node.reason or 'a name'}"
            )
        if isinstance(node, Loop) and loop.id in node.start.loops:
            raise RewriteRefused(f"the bounds of the loop over {node.var} depend on {loop.var}")


def check_own_variable(loop: Loop) -> None:
    """Check that a loop's variable is its iteration everywhere inside, so that it can pick a tile there.

    Raises:
        RewriteRefused: an inner loop counts with it, or a statement binds it.
    """
    nodes = list(walk_nodes(loop.body))
    counted = {node.var for node in nodes if isinstance(node, Loop)}
    bound = (node.binds for node in nodes if isinstance(node, Statement))
    if loop.var in counted.union(*bound):
        raise RewriteRefused(f"{loop.var} means something else in a part of its loop")


def check_independent(
    kernel: Kernel, loop: Loop, *, but: Collection[int] = (), whatever: Collection[Loop] = ()
) -> None:
    """Check that no iteration touches what another one writes, except disjoint parts of shared tiles.

    The tensors in `but` are left out, by their ids. The loops in `whatever`, which are around this one, may
    be at different iterations; all other loops around it are at the same iteration.
    """
    touched = [
        (item, access)
        for item in kernel.statements
        if loop_contains(loop, item)
        for access in item.accesses
        if access.tensor.id not in but
    ]
    for item, written in touched:
        if not written.writes:
            continue
        for _, other in touched:
            if other.tensor.id == written.tensor.id and not never_overlap(
                kernel, loop, written, other, whatever
            ):
                raise RewriteRefused(f"iterations over {loop.var} share {item.op}'s {written.tensor.name}")


def never_overlap(kernel: Kernel, loop: Loop, a: Access, b: Access, whatever: Collection[Loop] = ()) -> bool:
    """Whether two accesses to one tensor never meet in different iterations of a loop.

    The loops in `whatever`, which are around it, may be at different iterations.
    """
    around = frozenset(item.id for item in loop.path if item not in whatever)
    return _is_private(kernel, loop, a.tensor) or _are_disjoint(kernel, loop, a, b=b, around=around)


def are_apart(kernel: Kernel, loop: Loop, a: Access, b: Access) -> bool:
    """Whether two accesses to one tensor never meet, in whatever iterations of a loop and of those inside.

    The loops around it are at the same iteration.
    """
    around = frozenset(item.id for item in loop.path)
    for first, second in _pair_ranges(a, b):
        low, high = _difference_range(kernel, first, second, around, kernel.trips.keys() - around)
        if low >= second.extent or -high >= first.extent:
            return True
    return False


def _difference_range(
    kernel: Kernel,
    first: DimensionRange,
    second: DimensionRange,
    around: Collection[str],
    inside: Collection[str],
) -> tuple[int, int]:
    """The smallest and largest distance from where one range starts to where the other one does.

    Loops `around` are at the same iteration for both, those `inside` at any; all others do not count.
    """
    low, high = _affine_part(first.start - second.start, around, const=True).value_range(kernel.trips)
    mine, theirs = (_affine_part(item.start, inside).value_range(kernel.trips) for item in (first, second))
    return low + mine[0] - theirs[1], high + mine[1] - theirs[0]


def _pair_ranges(a: Access, b: Access) -> Iterator[tuple[DimensionRange, DimensionRange]]:
    """The ranges of two accesses to one tensor along each dimension, and which tiles of a list they pick."""
    return zip((*_picked_tiles(a), *a.view.box), (*_picked_tiles(b), *b.view.box), strict=True)


def _is_private(kernel: Kernel, loop: Loop, tensor: Tensor) -> bool:
    declared = kernel.declarations.get(tensor.id)
    return declared is not None and loop in declared.path


def _are_disjoint(kernel: Kernel, loop: Loop, a: Access, *, b: Access, around: frozenset[str]) -> bool:
    """Whether different iterations of the loop touch different parts: both walk it along some dimension.

    The loops in `around` are at the same iteration for both accesses; all others may differ.
    """
    for first, second in _pair_ranges(a, b):
        step = first.start.coefficient(loop.id)
        same = step == second.start.coefficient(loop.id)
        inside = kernel.trips.keys() - around - {loop.id}
        low, high = _difference_range(kernel, first, second, around, inside)
        reach = max(high + first.extent, second.extent - low)
        if same and abs(step) >= reach > 0:
            return True
        if _never_congruent(kernel, loop, first, second, around=around):
            return True
    return False


def _never_congruent(
    kernel: Kernel, loop: Loop, first: DimensionRange, second: DimensionRange, *, around: frozenset[str]
) -> bool:
    """Whether windows of different iterations stay apart, if need be modulo what a loop moves them by.

    So are the tiles of a list with 16 for each block of rows in each of 4 blocks of columns, which lie 64
    apart: modulo 64, each block of rows has tiles of its own.
    """
    if loop.trips > MAX_DISTANCES:
        return False
    step = first.start.coefficient(loop.id)
    same = step == second.start.coefficient(loop.id)
    fixed = around | {loop.id} if same else around
    parts = [
        _affine_part(first.start - second.start, around),
        _affine_part(first.start, kernel.trips.keys() - fixed),
        _affine_part(second.start, kernel.trips.keys() - fixed).scale_by(-1),
    ]
    moves = [(factor, kernel.trips[name] - 1) for part in parts for name, factor in part.terms]
    distances = range(1, loop.trips) if same else (0,)
    const = first.start.const - second.start.const
    spans = [
        (modulus, *_reduced_span(const, moves, modulus)) for modulus in {0, *(abs(one) for one, _ in moves)}
    ]
    return all(
        any(
            not _holds_multiple(offset + low - second.extent + 1, offset + high + first.extent - 1, modulus)
            for modulus, low, high in spans
        )
        for offset in {sign * step * distance for distance in distances for sign in (1, -1)}
    )


def _reduced_span(const: int, moves: Sequence[tuple[int, int]], modulus: int) -> tuple[int, int]:
    """The smallest and largest sum, each part of it as near to zero as it can be modulo a number."""

    def reduce(value: int) -> int:
        return (value + modulus // 2) % modulus - modulus // 2 if modulus else value

    ends = [reduce(factor) * count for factor, count in moves]
    base = reduce(const)
    return base + sum(min(0, end) for end in ends), base + sum(max(0, end) for end in ends)


def _holds_multiple(low: int, high: int, modulus: int) -> bool:
    """Whether an interval holds a multiple of a number; of 0: whether it holds 0."""
    return low <= (high // modulus * modulus if modulus else 0) <= high


def _picked_tiles(access: Access) -> tuple[DimensionRange, ...]:
    """Which tile of a list an access means, as one element along each dimension of the list."""
    return tuple(DimensionRange(start, 1) for start in access.view.picks)


def _affine_part(value: Affine, loops: Collection[str], *, const: bool = False) -> Affine:
    """The part of a value that comes from these loops, with or without the constant."""
    return make_affine(
        value.const if const else 0, {name: step for name, step in value.terms if name in loops}
    )


def _index_dependents(kernel: Kernel, loop: Loop, statements: Sequence[Statement]) -> frozenset[Statement]:
    """Statements that depend on the index, also through tiles; declarations follow their tiles."""
    tiles: set[int] = set()
    found: set[Statement] = set()
    while True:
        more = {
            item
            for item in statements
            if item not in found
            and (loop.id in item.loops or any(a.tensor.id in tiles for a in item.accesses))
        }
        if not more:
            break
        found |= more
        tiles |= {a.tensor.id for item in more for a in item.accesses if a.writes}
    declared = {kernel.declarations[key] for key in tiles if key in kernel.declarations}
    return frozenset(found | (declared & set(statements)))


def _tiles_to_copy(kernel: Kernel, loop: Loop, tainted: frozenset[Statement]) -> frozenset[int]:
    """Tiles that one run of index-dependent statements writes and another one uses.

    Raises:
        RewriteRefused: one has a second name, or its name means something else where its declaration moves.
    """
    stretches = list(_dependent_runs(loop.body, tainted))
    stretch = {item: number for number, run in enumerate(stretches) for item in run}
    copied: set[int] = set()
    for item in sorted(tainted, key=attrgetter("order")):
        tensor = item.tensor
        if tensor is None:
            continue
        used = {stretch[user] for user in kernel.users_of(tensor)}
        if len(used) > 1 or (used and used != {stretch[item]}):
            for number in used | {stretch[item]}:
                _check_copy_name(kernel, item, stretches[number])
            copied.add(tensor.id)
    return frozenset(copied)


def _check_copy_name(kernel: Kernel, declared: Statement, run: Sequence[Statement]) -> None:
    """Check the name of a tile to copy: its declaration moves to the start of its run."""
    check_own_name(kernel, declared, run)
    assert declared.tensor is not None
    name = declared.tensor.name
    if declared in run and any(name in item.uses for item in run[: run.index(declared)]):
        raise RewriteRefused(f"{name} is said before it is declared, of something else")


def check_own_name(kernel: Kernel, declared: Statement, among: Iterable[Statement]) -> None:
    """Check that a tile to copy is known only by its name, and that the name means nothing else.

    Raises:
        RewriteRefused: it has a second name, or one of these statements gives its name to something else.
    """
    assert declared.tensor is not None
    name = declared.tensor.name
    if declared.tensor.id in kernel.escaping_ids:
        raise RewriteRefused(f"{name} has a second name or is used by what cannot be read")
    if any(name in item.binds for item in among if item is not declared):
        raise RewriteRefused(f"{name} is the name of several things where it is made or used")


def _dependent_runs(nodes: Sequence[Node], tainted: frozenset[Statement]) -> Iterable[list[Statement]]:
    """Runs of neighbouring nodes of one block that all depend on the index."""
    for ours, run in groupby(nodes, key=lambda node: _is_dependent(node, tainted)):
        members = list(run)
        if ours:
            yield [item for item in walk_nodes(members) if isinstance(item, Statement)]
            continue
        for node in members:
            if not isinstance(node, Statement):
                yield from _dependent_runs(node.body, tainted)


def _is_dependent(node: Node, tainted: frozenset[Statement]) -> bool:
    return all(item in tainted for item in walk_nodes([node]) if isinstance(item, Statement))


def emit_block(plan: BlockPlan, size: int, constant: str) -> str:
    """The source with the loop cut into blocks of `size` iterations; a module constant names the size.

    Raises:
        RewriteRefused: the size does not divide the number of iterations.
    """
    writer = BlockWriter(plan, size, constant)
    comment = f"iterations over {plan.loop.var} that share what they load"
    return writer.write_module(writer.write_block(plan.loop.body), comment)


class MultiBufferWriter:
    """Writes parts of a loop one after another; tiles that several parts use get `count` copies."""

    def __init__(self, plan: BlockPlan, count: str) -> None:
        self._plan, self._count = plan, count
        self._copied = [
            item.tensor for item in plan.tainted if item.tensor is not None and item.tensor.id in plan.copied
        ]

    def declare_buffers(self, members: Sequence[Node]) -> list[cst.BaseStatement]:
        """The declarations, with copies, of tiles that these nodes make and other parts use."""
        return [self._declare_buffer(item) for item in members if self._is_copied(item)]

    def write_loop(
        self,
        members: Sequence[Node],
        iterations: str,
        index: str,
        syntax_of: Callable[[Statement], cst.BaseStatement] = attrgetter("node"),
    ) -> list[cst.BaseStatement]:
        """A loop over these iterations; `index` selects the copy of each tile. Empty without members."""

        def own(node: Node) -> list[cst.BaseStatement] | None:
            if not isinstance(node, Statement):
                return None
            return [] if self._is_copied(node) else [self.index_buffers(syntax_of(node), node, index)]

        kept = syntax.rebuild_block(members, own)
        return [syntax.make_loop(self._plan.loop.var, iterations, kept)] if kept else []

    def _is_copied(self, node: Node) -> bool:
        return isinstance(node, Statement) and node.tensor is not None and node.tensor.id in self._plan.copied

    def _declare_buffer(self, node: Node) -> cst.BaseStatement:
        """A declaration with a new dimension after the partitions; in PSUM a list, as a tile is one bank."""
        assert isinstance(node, Statement)
        assert node.tensor is not None
        words = ", ".join(f"{key}={node.texts[key]}" for key in ("dtype", "buffer") if key in node.texts)
        nl = self._plan.kernel.nl
        if _is_list(node.tensor):
            old = self._plan.kernel.module.code_for_node(_assigned_value(node))
            made = f"{node.tensor.name} = [{old} for _ in range({self._count})]"
        else:
            sizes = shape_texts(self._plan.kernel, node)
            grown = ", ".join([sizes[0], self._count, *sizes[1:]])
            made = f"{node.tensor.name} = {nl}.ndarray(({grown}), {words})"
        return syntax.with_leading_lines(syntax.parse_statement(made), syntax.leading_lines(node.node))

    def index_buffers(self, node: cst.BaseStatement, item: Statement, index: str) -> cst.BaseStatement:
        """The syntax of a statement with this copy of the tiles that it touches."""
        for tensor in sorted(self._copied, key=lambda tensor: tensor.id):
            if item.touches_tensor(tensor):
                node = _index_buffer(node, tensor, index)
        return node


class BlockWriter(MultiBufferWriter):
    """Writes a loop over blocks of `size` iterations, with inner loops over a block's iterations.

    A block of all iterations needs no outer loop.

    Raises:
        RewriteRefused: the size does not divide the number of iterations.
    """

    def __init__(self, plan: BlockPlan, size: int, constant: str) -> None:
        loop, code = plan.loop, plan.kernel.module.code_for_node
        if loop.trips % size:
            raise RewriteRefused(f"{size} does not divide the {loop.trips} iterations over {loop.var}")
        self._size, self._whole = size, size == loop.trips
        super().__init__(plan, loop.count_text if self._whole else constant)
        self._index, self._inner = str(loop.index_text), code(loop.node.iter)
        if not self._whole:
            name, outer = range_name(plan.kernel, loop), plan.kernel.fresh_name(f"{loop.var}_block")
            self._index, self._outer = f"{loop.var} % {constant}", outer
            self._head = f"{name}({syntax.group_factor(loop.stop, first=True)} // {constant})"
            self._inner = f"{name}({outer} * {constant}, ({outer} + 1) * {constant})"

    def write_module(self, body: Sequence[cst.BaseStatement], comment: str) -> str:
        """The module with the body of the loop over blocks, and its constant with a comment."""
        plan = self._plan

        def visit(node: Node) -> list[cst.BaseStatement] | None:
            if node is not plan.loop:
                return None
            front = syntax.leading_lines(plan.loop.node)
            if self._whole:
                return [
                    syntax.with_leading_lines(body[0], [*front, *syntax.leading_lines(body[0])]),
                    *body[1:],
                ]
            return [syntax.with_leading_lines(syntax.make_loop(self._outer, self._head, body), front)]

        lines = [] if self._whole else [f"{self._count} = {self._size}  # {comment}"]
        return syntax.render_module(plan.kernel, syntax.rebuild_block(plan.kernel.body, visit), lines)

    def write_block(self, nodes: Sequence[Node]) -> list[cst.BaseStatement]:
        """The body of a block: index-dependent parts in loops over its iterations, the rest once."""
        out: list[cst.BaseStatement] = []
        for ours, run in groupby(nodes, key=lambda node: _is_dependent(node, self._plan.tainted)):
            members = list(run)
            out.extend(self.write_run(members) if ours else syntax.rebuild_block(members, self._write_shared))
        return out

    def write_run(self, members: Sequence[Node]) -> list[cst.BaseStatement]:
        """A loop over the iterations of a block, after the declarations of tiles that later loops use."""
        return [*self.declare_buffers(members), *self.write_loop(members, self._inner, self._index)]

    def _write_shared(self, node: Node) -> list[cst.BaseStatement] | None:
        if isinstance(node, Statement):
            return None
        return [syntax.replace_body(node.node, self.write_block(node.body))]


def _index_buffer(node: cst.BaseStatement, tensor: Tensor, place: str) -> cst.BaseStatement:
    index = syntax.parse_subscript_elements(place)
    whole = [syntax.parse_subscript_elements(":")[0]] * len(tensor.shape)

    def change(parts: list[cst.SubscriptElement] | None) -> cst.BaseExpression:
        if _is_list(tensor):
            picked = syntax.make_subscript(tensor.name, index)
            return picked.with_changes(value=picked, slice=parts) if parts else picked
        old = [*(parts or []), *whole[len(parts or []) :]]
        return syntax.make_subscript(tensor.name, [old[0], *index, *old[1:]])

    return syntax.reindex_tensor(node, tensor.name, change)


def _is_list(tensor: Tensor) -> bool:
    return tensor.buffer == "psum" or bool(tensor.copies)


def _assigned_value(item: Statement) -> cst.BaseExpression:
    assert isinstance(item.node, cst.SimpleStatementLine)
    assign = item.node.body[0]
    assert isinstance(assign, cst.Assign)
    return assign.value
