"""Loop interchange: swaps two loops, one directly inside the other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import libcst as cst

from nki_sim.targets import Target
from targets.nki.rewrites import syntax
from targets.nki.rewrites.blocking import check_independent
from targets.nki.rewrites.kernel_ir import Kernel, Loop, Node, Statement, StatementKind, walk_nodes
from targets.nki.rewrites.transform import Choice, RewriteRefused, Transform


class Interchange(Transform[tuple[Loop, Loop]]):
    """Swaps the headers of two nested loops."""

    id: ClassVar[str] = "interchange"
    counter: ClassVar[str] = "hbm_read_bytes"
    keeps: ClassVar[str] = (
        "iterations of one of the loops touch disjoint data, so what depends on each other keeps its order"
    )

    def find_sites(self, kernel: Kernel, target: Target) -> Mapping[str, tuple[Loop, Loop]]:
        del target
        return {
            f"{kernel.unique_label(loop)} and {kernel.unique_label(inner)}": (loop, inner)
            for loop in kernel.loops
            for inner in loop.body
            if isinstance(inner, Loop)
        }

    def list_choices(self, kernel: Kernel, target: Target, place: tuple[Loop, Loop]) -> tuple[Choice, ...]:
        del target
        _check_interchange(kernel, *place)
        return ({},)

    def apply(self, kernel: Kernel, target: Target, place: tuple[Loop, Loop], choice: Choice) -> str:
        del target, choice
        return swap_loops(kernel, *place)


def swap_loops(kernel: Kernel, outer: Loop, inner: Loop) -> str:
    """The module's source with two nested loops swapped.

    Raises:
        RewriteRefused: iterations depend on each other, or the loops are not directly nested.
    """
    _check_interchange(kernel, outer, inner)
    body = [item.node for item in inner.body]
    under = outer.node.with_changes(leading_lines=inner.node.leading_lines)
    swapped = syntax.replace_body(inner.node, [syntax.replace_body(under, body)])
    swapped = swapped.with_changes(leading_lines=outer.node.leading_lines)

    def emit(node: Node) -> list[cst.BaseStatement] | None:
        return [swapped] if node is outer else None

    return syntax.render_module(kernel, syntax.rebuild_block(kernel.body, emit))


def _check_interchange(kernel: Kernel, outer: Loop, inner: Loop) -> None:
    if len(outer.body) != 1:
        raise RewriteRefused(f"the loop over {outer.var} holds more than the loop over {inner.var}")
    if outer.id in inner.start.loops:
        raise RewriteRefused(f"the range of {inner.var} depends on {outer.var}")
    for node in walk_nodes(inner.body):
        if not isinstance(node, Statement | Loop):
            raise RewriteRefused("a condition picks out one iteration")
        if isinstance(node, Statement) and node.kind in {StatementKind.OPAQUE, StatementKind.BIND}:
            raise RewriteRefused(f"the loop over {inner.var} holds a statement that cannot be reordered")
    try:
        check_independent(kernel, outer)
    except RewriteRefused as refusal:
        # What outer iterations share stays in order if each iteration of the inner loop has its own.
        try:
            check_independent(kernel, inner, whatever=[outer])
        except RewriteRefused:
            raise refusal from None
