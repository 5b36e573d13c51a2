"""Loop interchange: moves a loop outside the one around it, or outside several.

Tiles of a list that does not fit in SBUF come back whenever a loop gets to them again. How often depends on
the order of all loops of a nest, and a single swap may change nothing. In kernels with such lists, a loop may
therefore move past several others at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

import libcst as cst

from nki_sim.targets import Target
from targets.nki.rewrites import syntax
from targets.nki.rewrites.blocking import check_independent
from targets.nki.rewrites.kernel_ir import Kernel, Loop, Node, Statement, StatementKind, walk_nodes
from targets.nki.rewrites.tile_reloads import find_long_lists
from targets.nki.rewrites.transform import Choice, RewriteRefused, Transform

LoopNest = tuple[Loop, ...]
"""Loops, each directly inside the one before; the last one moves outside all others."""


class Interchange(Transform[LoopNest]):
    """Moves a loop outside others."""

    id: ClassVar[str] = "interchange"
    counter: ClassVar[str] = "hbm_read_bytes"
    keeps: ClassVar[str] = (
        "iterations of one of the loops touch disjoint data, so what depends on each other keeps its order"
    )

    def find_sites(self, kernel: Kernel, target: Target) -> Mapping[str, LoopNest]:
        nests = list(_list_pairs(kernel))
        if find_long_lists(kernel, target):
            nests += _list_longer_nests(kernel)
        return {f"{kernel.unique_label(nest[0])} and {kernel.unique_label(nest[-1])}": nest for nest in nests}

    def list_choices(self, kernel: Kernel, target: Target, place: LoopNest) -> tuple[Choice, ...]:
        del target
        _check_interchange(kernel, place)
        return ({},)

    def apply(self, kernel: Kernel, target: Target, place: LoopNest, choice: Choice) -> str:
        del target, choice
        return move_outside(kernel, place)


def _list_pairs(kernel: Kernel) -> Iterator[LoopNest]:
    return ((loop, inner) for loop in kernel.loops for inner in loop.body if isinstance(inner, Loop))


def _list_longer_nests(kernel: Kernel) -> Iterator[LoopNest]:
    """Nests of three and more loops that hold nothing but one another."""
    for loop in kernel.loops:
        nest = [loop]
        while len(nest[-1].body) == 1 and isinstance(inner := nest[-1].body[0], Loop):
            nest.append(inner)
            if len(nest) > len("ab"):
                yield tuple(nest)


def move_outside(kernel: Kernel, nest: LoopNest) -> str:
    """The module's source with the last loop of a nest outside the others.

    Raises:
        RewriteRefused: iterations depend on each other, or the loops are not directly nested.
    """
    _check_interchange(kernel, nest)
    *others, inner = nest
    body: Sequence[cst.BaseStatement] = [item.node for item in inner.body]
    for loop, next_inner in zip(reversed(others), reversed(nest[1:]), strict=True):
        header = loop.node.with_changes(leading_lines=next_inner.node.leading_lines)
        body = [syntax.replace_body(header, body)]
    moved = syntax.replace_body(inner.node, body).with_changes(leading_lines=nest[0].node.leading_lines)

    def emit(node: Node) -> list[cst.BaseStatement] | None:
        return [moved] if node is nest[0] else None

    return syntax.render_module(kernel, syntax.rebuild_block(kernel.body, emit))


def _check_interchange(kernel: Kernel, nest: LoopNest) -> None:
    *others, inner = nest
    for loop, held in zip(others, nest[1:], strict=True):
        if loop.var == inner.var:
            raise RewriteRefused(f"two loops of the nest count {inner.var}")
        if len(loop.body) != 1:
            raise RewriteRefused(f"the loop over {loop.var} holds more than the loop over {held.var}")
        if loop.id in inner.start.loops:
            raise RewriteRefused(f"the range of {inner.var} depends on {loop.var}")
    for node in walk_nodes(inner.body):
        if not isinstance(node, Statement | Loop):
            raise RewriteRefused("a condition picks out one iteration")
        if isinstance(node, Statement) and node.kind in {StatementKind.OPAQUE, StatementKind.BIND}:
            raise RewriteRefused(f"the loop over {inner.var} holds a statement that cannot be reordered")
    for place, loop in enumerate(others):
        _check_order(kernel, loop, inner, passed=others[place:])


def _check_order(kernel: Kernel, outer: Loop, inner: Loop, *, passed: Sequence[Loop]) -> None:
    """Refuse if iterations of both loops share data; the inner one has `passed` all from the outer one on."""
    try:
        check_independent(kernel, outer)
    except RewriteRefused as refusal:
        # What outer iterations share stays in order if each iteration of the inner loop has its own.
        try:
            check_independent(kernel, inner, whatever=passed)
        except RewriteRefused:
            raise refusal from None
