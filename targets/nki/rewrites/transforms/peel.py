"""Peeling: a loop whose last tiles are smaller becomes a loop over whole tiles and the remainder after it."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

import libcst as cst

from nki_sim.targets import Target
from targets.nki.rewrites import syntax
from targets.nki.rewrites.inlining import inline_names, replace_names
from targets.nki.rewrites.kernel_ir import Kernel, Loop, Node, Statement, loop_contains
from targets.nki.rewrites.reader import read_kernel
from targets.nki.rewrites.source_tree import SourceError
from targets.nki.rewrites.transform import Choice, RewriteRefused, Transform


@dataclass(frozen=True, eq=False)
class LoopTail:
    """A loop in which the size of a statement's operand changes after some whole tiles."""

    loop: Loop
    item: Statement


class Peel(Transform[LoopTail]):
    """Removes the masks of tails: sizes become constants in each part of the loop."""

    id: ClassVar[str] = "peel"
    counter: ClassVar[str] = "total_time"
    keeps: ClassVar[str] = "the same iterations run in the same order, cut in two where a size changes"

    def find_sites(self, kernel: Kernel, target: Target) -> Mapping[str, LoopTail]:
        del target
        found: dict[str, LoopTail] = {}
        for item in kernel.statements:
            inner = [loop for loop in item.path if item.undecided and loop.id in item.undecided.loops]
            if inner:
                found.setdefault(kernel.unique_label(inner[-1]), LoopTail(inner[-1], item))
        return found

    def list_choices(self, kernel: Kernel, target: Target, place: LoopTail) -> tuple[Choice, ...]:
        self.apply(kernel, target, place, {})
        return ({},)

    def apply(self, kernel: Kernel, target: Target, place: LoopTail, choice: Choice) -> str:
        del choice
        loop, whole = place.loop, _count_whole_iterations(place)
        _check_index(kernel, loop)
        for count in _count_spellings(loop, whole):
            source = syntax.render_module(
                kernel, syntax.rebuild_block(kernel.body, _cut_loop(loop, count, whole))
            )
            made = _read_or_none(source, kernel, target)
            twin = made.loops[kernel.loops.index(loop)] if made is not None else None
            if made is not None and twin is not None and twin.trips == whole:
                return inline_names(made) or source
        raise RewriteRefused(
            f"the loop over {loop.var} cannot be read when it is cut after {whole} iterations"
        )


def _count_whole_iterations(place: LoopTail) -> int:
    """How many iterations run before the masking condition changes."""
    loop, difference = place.loop, place.item.undecided
    assert difference is not None
    if len(difference.terms) != 1:
        raise RewriteRefused(f"where tiles are cut off depends on {len(difference.terms)} loops")
    if loop.step != 1:
        raise RewriteRefused(f"the loop over {loop.var} does not count by one")
    ((_, factor),) = difference.terms
    start = difference.const if factor < 0 else -difference.const
    return start // abs(factor) + 1


def _check_index(kernel: Kernel, loop: Loop) -> None:
    """Refuse if the index is rebound or read after the loop, because the remainder is written without it."""
    tree = ast.parse(textwrap.dedent(kernel.module.code_for_node(loop.node)).strip())
    names = [node for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id == loop.var]
    if sum(not isinstance(node.ctx, ast.Load) for node in names) > 1:
        raise RewriteRefused(f"{loop.var} is bound again inside its loop")
    end = max(item.order for item in kernel.statements if loop_contains(loop, item))
    for item in (item for item in kernel.statements if item.order > end and loop.var in item.uses):
        if not any(other.var == loop.var for other in item.path if other not in loop.path):
            raise RewriteRefused(f"{loop.var} is used after its loop")


def _count_spellings(loop: Loop, whole: int) -> Iterator[str]:
    """Expressions for the number of whole iterations: `n // t` if the loop rounds up, else the number."""
    rounded = re.fullmatch(r"\((.+) \+ (\w+) - 1\) // \2", loop.stop) or re.fullmatch(
        r"-\(-(\w+) // (\w+)\)", loop.stop
    )
    if rounded and loop.first == "0" and _is_simple_expression(rounded[1]):
        yield f"{rounded[1]} // {rounded[2]}"
    yield str(whole) if loop.first == "0" else f"{loop.first} + {whole}"


def _is_simple_expression(code: str) -> bool:
    return isinstance(ast.parse(code, mode="eval").body, ast.Name | ast.Constant)


def _cut_loop(loop: Loop, count: str, whole: int) -> syntax.Emit:
    called = loop.node.iter
    assert isinstance(called, cst.Call)
    function = cst.Module([]).code_for_node(called.func)
    body = [item for item in loop.node.body.body if isinstance(item, cst.BaseStatement)]
    left = loop.trips - whole

    def emit(node: Node) -> list[cst.BaseStatement] | None:
        if node is not loop:
            return None
        first = count if loop.first == "0" else f"{loop.first}, {count}"
        begun = loop.node.with_changes(iter=syntax.parse_expression(f"{function}({first})"))
        if left > 1:
            rest = syntax.parse_expression(f"{function}({count}, {loop.stop})")
            return [begun, loop.node.with_changes(iter=rest, leading_lines=[])]
        return [begun, *(replace_names(item, {loop.var: count}) for item in body)]

    return emit


def _read_or_none(source: str, kernel: Kernel, target: Target) -> Kernel | None:
    try:
        return read_kernel(source, kernel.arguments, target)
    except SourceError:
        return None
