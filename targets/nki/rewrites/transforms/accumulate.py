"""Accumulation in PSUM: products of several iterations are summed where they are made.

A product adds to the contents of PSUM at no cost. A loop that sums in SBUF needs a VectorE pass for each
block. That pass waits for the block and keeps the next one out of its bank.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import libcst as cst

from nki_sim.targets import Target
from targets.nki.rewrites import syntax
from targets.nki.rewrites.arithmetic import names_in
from targets.nki.rewrites.kernel_ir import Kernel, Node, Statement, loop_contains
from targets.nki.rewrites.psum_accumulation import (
    LoopSum,
    collect_in_psum,
    copy_from_psum,
    find_adders,
    find_loop_sum,
)
from targets.nki.rewrites.slices import covering_loops
from targets.nki.rewrites.transform import Choice, RewriteRefused, Transform

ProductStatements = tuple[Statement, ...]


class Accumulate(Transform[Statement]):
    """Lets the products accumulate in PSUM what VectorE summed in SBUF."""

    id: ClassVar[str] = "accumulate"
    counter: ClassVar[str] = "vector_engine_active_time_percent"
    keeps: ClassVar[str] = "the same products are added up in float32, one by one instead of block by block"

    def find_sites(self, kernel: Kernel, target: Target) -> Mapping[str, Statement]:
        del target
        return find_adders(kernel)

    def list_choices(self, kernel: Kernel, target: Target, place: Statement) -> tuple[Choice, ...]:
        del target
        plan = find_loop_sum(kernel, place)
        _find_products(kernel, plan)
        return ({},)

    def apply(self, kernel: Kernel, target: Target, place: Statement, choice: Choice) -> str:
        del choice
        plan = find_loop_sum(kernel, place)
        products, declared = _find_products(kernel, plan), kernel.declarations[plan.added_tile.id]
        bank = kernel.fresh_name(f"{plan.total.name}_sum")
        goal = _psum_part(plan, bank)

        first: Node = next(iter(products[0].path[len(place.path) :]), products[0])
        lines = syntax.merge_leading_lines(declared.node, first.node, place.node)

        def others(node: Node) -> list[cst.BaseStatement] | None:
            if node is place or node is declared:
                return []
            if node is plan.clear:
                return [] if plan.from_zero else [plan.clear.node]
            new: cst.BaseStatement
            if node in products:
                new = syntax.replace_arguments(node.node, {"dst": goal})
            elif node is first and not isinstance(first, Statement):
                new = syntax.replace_body(first.node, syntax.rebuild_block(first.body, others))
            else:
                return None
            return [syntax.with_leading_lines(new, lines) if node is first else new]

        emit = collect_in_psum(kernel, plan, bank, _copies_to_total(kernel, target, plan, bank=bank), others)
        return syntax.render_module(kernel, syntax.rebuild_block(kernel.body, emit))


def _psum_part(plan: LoopSum, bank: str) -> str:
    """The source of the part of the PSUM tile that an iteration adds to."""
    return syntax.rename_in_expression(plan.adder.texts["dst"], plan.total.name, bank)


def _copies_to_total(kernel: Kernel, target: Target, plan: LoopSum, *, bank: str) -> list[cst.BaseStatement]:
    """Copy to the total part by part, so that no copy waits for other products; else all at once."""
    total, text = plan.total.name, plan.adder.texts["dst"]
    inner = plan.adder.path[len(plan.loop.path) + 1 :]
    walked = [loop for loop in inner if loop.id in plan.view.loops]
    bound = {plan.loop.var, *(loop.var for loop in inner if loop not in walked)}.union(
        *(item.binds for item in kernel.statements if loop_contains(plan.loop, item))
    )
    used = names_in(text).union(*(loop.mentions for loop in walked))
    if plan.loop.id in plan.view.loops or used & bound:
        return [_finish_total(kernel, target, plan, names=(total, bank))]
    body = [_finish_total(kernel, target, plan, names=(text, _psum_part(plan, bank)))]
    for loop in reversed(walked):
        body = [syntax.with_leading_lines(syntax.replace_body(loop.node, body), [])]
    return body


def _finish_total(
    kernel: Kernel, target: Target, plan: LoopSum, *, names: tuple[str, str]
) -> cst.BaseStatement:
    """The total, or a part of it, from PSUM; added to what it begins with."""
    total, bank = names
    if plan.from_zero:
        return copy_from_psum(kernel, target, total, bank)
    words = {"dst": total, "data1": total, "data2": bank, "op": f"{kernel.nl}.add"}
    return syntax.make_call(f"{kernel.nisa}.tensor_tensor", words)


def _find_products(kernel: Kernel, plan: LoopSum) -> ProductStatements:
    """Return the products that make the added tile, in the iteration that adds it.

    Raises:
        RewriteRefused: something else makes or uses the tile, or such parts do not make up the sum.
    """
    adder, part = plan.adder, plan.added_tile
    declared = kernel.declarations.get(part.id)
    if part.buffer != "psum" or declared is None or not (plan.added.is_whole and plan.added.plain):
        raise RewriteRefused(f"{part.name} is not in PSUM, or is added in part")
    if plan.total.buffer != "sbuf":
        raise RewriteRefused(f"{plan.total.name} is in PSUM already")
    if (declared.path, declared.guards) != (adder.path, adder.guards):
        raise RewriteRefused(f"{part.name} is not made in the iteration that adds it")
    *products, last = kernel.users_of(part)
    if (
        last is not adder
        or not products
        or not all(_accumulates_whole_tile(item, adder) for item in products)
    ):
        raise RewriteRefused(f"{part.name} is not made by products alone, or is used otherwise, too")
    around = adder.path[len(kernel.declarations[plan.total.id].path) :]
    if not plan.view.plain or covering_loops(plan.view, around) is None:
        raise RewriteRefused(f"{plan.total.name} is not made up of what is added")
    text = adder.texts["dst"]
    if any(kernel.may_rebind(text, item, adder) for item in products):
        raise RewriteRefused(f"{text} may be something else where its products are made")
    return tuple(products)


def _accumulates_whole_tile(item: Statement, adder: Statement) -> bool:
    """Whether an instruction accumulates products in its whole tile, the first one overwriting it."""
    dst = item.find_access("dst")
    whole = dst is not None and dst.view.is_whole and dst.view.plain
    once = dst is not None and sum(access.tensor.id == dst.tensor.id for access in item.accesses) == 1
    near = item.path[: len(adder.path)] == adder.path and item.guards == adder.guards
    plain = not item.texts.keys() & {"accumulate", "is_transpose"}
    return item.op == "nc_matmul" and whole and once and near and plain
