"""Pairs of loops that follow one another, and how both come to go through the same range.

A loop of 32 iterations runs as often as a nest of 4 times 8, and is written as one. A loop around another one
moves inside it, if that one goes through the other loop's range: what it holds besides is made before it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import libcst as cst

from nki_sim.targets import Target
from targets.nki.rewrites import staging, syntax
from targets.nki.rewrites.estimate import tile_bytes
from targets.nki.rewrites.inlining import replace_names
from targets.nki.rewrites.kernel_ir import Kernel, Loop, Node, Statement, walk_nodes
from targets.nki.rewrites.loop_ranges import range_name
from targets.nki.rewrites.transform import RewriteRefused, read_rewritten
from targets.nki.rewrites.transforms.interchange import move_outside
from targets.nki.rewrites.values import Affine

MAX_LOOPS_BETWEEN = 2
"""Loops between two that are fused; they move before both."""

LoopRange = tuple[Affine, int, int]
"""Where a loop begins, its step, and its trips."""


@dataclass(frozen=True, slots=True)
class LoopPair:
    """Two loops of one block, and the statements and other loops between them."""

    first: Loop
    between: tuple[Statement | Loop, ...]
    second: Loop

    @property
    def loops_between(self) -> int:
        return sum(isinstance(node, Loop) for node in self.between)

    def find_fused(self, kernel: Kernel, made: Kernel) -> Loop:
        """The loop that both became; loops between them, and in these, come before it now."""
        moved = sum(isinstance(node, Loop) for node in walk_nodes(list(self.between)))
        return made.loops[kernel.loops.index(self.first) + moved]


def pair_loops(block: Sequence[Node]) -> list[LoopPair]:
    """Loops that follow one another; and loops over the same range with at most two other loops between."""
    found: list[LoopPair] = []
    for number, first in enumerate(block):
        between: list[Statement | Loop] = []
        for node in block[number + 1 :] if isinstance(first, Loop) else ():
            if not isinstance(node, Statement | Loop):
                break
            if isinstance(node, Loop) and isinstance(first, Loop):
                pair = LoopPair(first, tuple(between), node)
                if pair.loops_between > MAX_LOOPS_BETWEEN:
                    break
                if not pair.loops_between or range_of(first) == range_of(node):
                    found.append(pair)
            between.append(node)
    return found


def range_of(loop: Loop) -> LoopRange:
    return loop.start, loop.step, loop.trips


def list_alignments(
    kernel: Kernel, target: Target, pair: LoopPair, *, late: bool
) -> list[Callable[[], tuple[Kernel, LoopPair]]]:
    """The ways to a kernel in which both loops go through the same range; each may be refused.

    If `late`, the first ways are to move a loop inside the other one, and to make there, in the first
    iteration, what it makes for the loop in it.
    """
    first, second = pair.first, pair.second
    if range_of(first) == range_of(second):
        return [lambda: (kernel, pair)]
    orders = ((second, first), (first, second))
    splits = [partial(_split_loop, kernel, target, pair, *both) for both in orders if _can_split(*both)]
    sinks = [
        partial(_sink_loop, kernel, target, pair, sunk=one, late=late)
        for one, other in orders
        if _holds_range(one, other)
    ]
    return [*sinks, *splits] if late else [*splits, *sinks]


def _split_loop(
    kernel: Kernel, target: Target, pair: LoopPair, loop: Loop, other: Loop
) -> tuple[Kernel, LoopPair]:
    """Replace one of the loops by a nest like that of the other one."""
    made = read_rewritten(_write_split(kernel, loop, other.trips), kernel.arguments, target)
    return made, _find_pair(kernel, made, pair)


def _can_split(loop: Loop, other: Loop) -> bool:
    """Whether a loop can become a nest like that of another loop and one in it."""
    count, rest = divmod(loop.trips, other.trips)
    counted = loop.index_text == loop.var and other.index_text == other.var
    fits = any(isinstance(node, Loop) and node.trips == count for node in walk_nodes(other.body))
    return counted and not rest and count > 1 and fits


def _write_split(kernel: Kernel, loop: Loop, trips: int) -> str:
    """The source with a nest of two loops, the outer one of `trips` iterations, in place of a loop."""
    if any(isinstance(node, Loop) and node.var == loop.var for node in walk_nodes(loop.body)):
        raise RewriteRefused(f"{loop.var} is bound again in its loop")
    outer, inner = kernel.fresh_name(f"{loop.var}_block"), kernel.fresh_name(f"{loop.var}_in_block")
    count, name = loop.trips // trips, range_name(kernel, loop)
    index = {loop.var: f"{outer} * {count} + {inner}"}
    body = [replace_names(item.node, index) for item in loop.body]
    nest = syntax.make_loop(outer, f"{name}({trips})", [syntax.make_loop(inner, f"{name}({count})", body)])

    def emit(node: Node) -> list[cst.BaseStatement] | None:
        if node is not loop:
            return None
        return [syntax.with_leading_lines(nest, syntax.leading_lines(loop.node))]

    return syntax.render_module(kernel, syntax.rebuild_block(kernel.body, emit))


def makes_tiles_first(pair: LoopPair) -> bool:
    """Whether a loop can move inside another one that needs tiles which it makes before."""
    orders = ((pair.first, pair.second), (pair.second, pair.first))
    apart = range_of(pair.first) != range_of(pair.second)
    return apart and any(_holds_range(one, other) and len(one.body) > 1 for one, other in orders)


def _holds_range(loop: Loop, other: Loop) -> bool:
    """Whether the last loop directly in a loop goes through another one's range, or a part of it."""
    inner = [node for node in loop.body if isinstance(node, Loop)]
    return bool(inner) and (range_of(inner[-1]) == range_of(other) or _can_split(other, inner[-1]))


def _sink_loop(
    kernel: Kernel, target: Target, pair: LoopPair, *, sunk: Loop, late: bool
) -> tuple[Kernel, LoopPair]:
    """Move one of the loops into the last loop in it; tiles that it makes for that one are made before it.

    If `late`, they are made in it, in the first iteration of the loop that is outside then.
    """
    second, staged = sunk is pair.second, 0
    while len(sunk.body) > 1:
        source = _stage_tile(kernel, target, sunk, in_one=not late)
        made = read_rewritten(source, kernel.arguments, target)
        kernel, pair = made, _find_pair(kernel, made, pair, from_end=not second)
        sunk, staged = pair.second if second else pair.first, staged + 1
    (inner,) = sunk.body
    if not isinstance(inner, Loop):  # it was part of what made a tile
        raise RewriteRefused(f"the loop over {sunk.var} holds no loop but those that can precede it")
    made = read_rewritten(move_outside(kernel, (sunk, inner)), kernel.arguments, target)
    pair = _find_pair(kernel, made, pair)
    if late and staged:
        outer = pair.second if second else pair.first
        source, before = _make_inside(made, outer, sunk.var, count=staged), made
        made = read_rewritten(source, kernel.arguments, target)
        pair = _find_pair(before, made, pair, from_end=not second)
    outer, other = (pair.second, pair.first) if second else (pair.first, pair.second)
    return (
        (made, pair) if range_of(outer) == range_of(other) else _split_loop(made, target, pair, other, outer)
    )


def _make_inside(kernel: Kernel, outer: Loop, var: str, *, count: int) -> str:
    """The source with the last `count` loops over `var` before a loop as part of the loop over `var` in it.

    They are those that `_stage_tile` made, each with one declaration. There they run in the first iteration
    of the loop that is outside.
    """
    (inner,) = outer.body
    assert isinstance(inner, Loop)
    block = _block_around(kernel, kernel, outer)
    moved = [node for node in block[: block.index(outer)] if isinstance(node, Loop) and node.var == var][
        -count:
    ]
    names = {outer.var: kernel.fresh_name(outer.var)}
    made = [replace_names(item.node, names) for loop in moved for item in loop.body]
    body = [syntax.make_condition(f"{outer.var} == {outer.first}", made), *(item.node for item in inner.body)]

    def emit(node: Node) -> list[cst.BaseStatement] | None:
        if node is inner:
            return [syntax.replace_body(inner.node, body)]
        return [] if node in moved else None

    return syntax.render_module(kernel, syntax.rebuild_block(kernel.body, emit))


def _stage_tile(kernel: Kernel, target: Target, loop: Loop, *, in_one: bool) -> str:
    """The source with one of the tiles that a loop declares made before it, for all its iterations.

    Its data is loaded `in_one` transfer for all, if that can be.
    """
    tensor = next((item.tensor for item in loop.body if isinstance(item, Statement) and item.tensor), None)
    if tensor is None:
        raise RewriteRefused(f"the loop over {loop.var} holds more than one loop and what can precede it")
    plan = staging.plan_stage(kernel, tensor, loop)
    if not in_one and loop not in plan.grown:  # It would not be made in a loop like this one.
        raise RewriteRefused(f"{tensor.name} does not depend on {loop.var}: hoist it instead")
    if len(tensor.copies) > 1:
        raise RewriteRefused(f"{tensor.name} is a list of lists")
    if plan.bytes_factor * tile_bytes(tensor) > target.sbuf_usable_bytes:
        raise RewriteRefused(f"{tensor.name} for all iterations over {loop.var} does not fit SBUF")
    merged = [loop] if in_one and loop in staging.mergeable_loops(plan) else []
    return staging.emit_staged(plan, merged)


def _find_pair(kernel: Kernel, made: Kernel, pair: LoopPair, *, from_end: bool = False) -> LoopPair:
    """The pair in a rewritten kernel, which may have more nodes right before one of the loops.

    If `from_end`, they are before the first loop, else before the second one.
    """
    before, after = (_block_around(one, kernel, pair.first) for one in (kernel, made))
    end = len(after) - len(before)
    first = after[before.index(pair.first) + (end if from_end else 0)]
    at = before.index(pair.second) + end
    second = after[at]
    if not isinstance(first, Loop) or not isinstance(second, Loop):
        raise RewriteRefused(f"the loops over {pair.first.var} and {pair.second.var} read differently")
    between = tuple(node for node in after[after.index(first) + 1 : at] if isinstance(node, Statement | Loop))
    return LoopPair(first, between, second)


def _block_around(one: Kernel, kernel: Kernel, loop: Loop) -> Sequence[Node]:
    """The block of `one` in the place of the block of `kernel` that a loop is in."""
    return one.loops[kernel.loops.index(loop.path[-1])].body if loop.path else one.body
