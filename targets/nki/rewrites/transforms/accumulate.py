"""Accumulation in PSUM: products of several iterations are added up where they are made.

A product adds to what is in PSUM for nothing. What a loop collects in SBUF, block by block, costs a pass of
VectorE for each block, which waits for the block and keeps the next one out of its bank.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import libcst as cst

from nki_sim.targets import Target
from targets.nki.rewrites import syntax
from targets.nki.rewrites.arithmetic import names_in
from targets.nki.rewrites.model import Kernel, Node, Statement, inside
from targets.nki.rewrites.slices import covered
from targets.nki.rewrites.summing import Sum, adders, brought_back, collected, sum_of
from targets.nki.rewrites.transform import Choice, Refused, Transform

Products = tuple[Statement, ...]


class Accumulate(Transform[Statement]):
    """Collects in PSUM, by the products themselves, what VectorE collected in SBUF."""

    id: ClassVar[str] = "accumulate"
    counter: ClassVar[str] = "vector_engine_active_time_percent"
    keeps: ClassVar[str] = "the same products are added up in float32, one by one instead of block by block"

    def places(self, kernel: Kernel, target: Target) -> Mapping[str, Statement]:
        del target
        return adders(kernel)

    def choices(self, kernel: Kernel, target: Target, place: Statement) -> tuple[Choice, ...]:
        del target
        plan = sum_of(kernel, place)
        _products(kernel, plan)
        return ({},)

    def apply(self, kernel: Kernel, target: Target, place: Statement, choice: Choice) -> str:
        del choice
        plan = sum_of(kernel, place)
        products, declared = _products(kernel, plan), kernel.declarations[plan.part.id]
        bank = kernel.fresh(f"{plan.total.name}_sum")
        goal = _part(plan, bank)

        first: Node = next(iter(products[0].path[len(place.path) :]), products[0])
        lines = syntax.leading_of_all(declared.node, first.node, place.node)

        def others(node: Node) -> list[cst.BaseStatement] | None:
            if node is place or node is declared:
                return []
            new: cst.BaseStatement
            if node in products:
                new = syntax.with_arguments(node.node, {"dst": goal})
            elif node is first and not isinstance(first, Statement):
                new = syntax.with_body(first.node, syntax.rebuild(first.body, others))
            else:
                return None
            return [syntax.at_front(new, lines) if node is first else new]

        emit = collected(kernel, plan, bank, _copies(kernel, target, plan, bank), others)
        return syntax.source_of(kernel, syntax.rebuild(kernel.body, emit))


def _part(plan: Sum, bank: str) -> str:
    """The source of the part of the tile in PSUM that an iteration adds to."""
    return syntax.renamed_in(plan.adder.texts["dst"], plan.total.name, bank)


def _copies(kernel: Kernel, target: Target, plan: Sum, bank: str) -> list[cst.BaseStatement]:
    """Copies to the total, part by part, so that none waits for products of others; else of all at once."""
    total, text = plan.total.name, plan.adder.texts["dst"]
    inner = plan.adder.path[len(plan.loop.path) + 1 :]
    walked = [loop for loop in inner if loop.id in plan.view.loops]
    bound = {plan.loop.var, *(loop.var for loop in inner if loop not in walked)}.union(
        *(item.binds for item in kernel.statements if inside(plan.loop, item))
    )
    used = names_in(text).union(*(loop.mentions for loop in walked))
    if plan.loop.id in plan.view.loops or used & bound:
        return [brought_back(kernel, target, total, bank)]
    body = [brought_back(kernel, target, text, _part(plan, bank))]
    for loop in reversed(walked):
        body = [syntax.at_front(syntax.with_body(loop.node, body), [])]
    return body


def _products(kernel: Kernel, plan: Sum) -> Products:
    """The products that make what is added, in the iteration that adds it.

    Raises:
        Refused: something else makes it or uses it, or the sum is not made up of such parts.
    """
    adder, part = plan.adder, plan.part
    declared = kernel.declarations.get(part.id)
    if part.buffer != "psum" or declared is None or not (plan.added.whole and plan.added.plain):
        raise Refused(f"{part.name} is not in PSUM, or is added in part")
    if plan.total.buffer != "sbuf":
        raise Refused(f"{plan.total.name} is in PSUM already")
    if (declared.path, declared.guards) != (adder.path, adder.guards):
        raise Refused(f"{part.name} is not made in the iteration that adds it")
    *products, last = kernel.users(part)
    if last is not adder or not products or not all(_adds_up(item, adder) for item in products):
        raise Refused(f"{part.name} is not made by products alone, or is used otherwise, too")
    around = adder.path[len(kernel.declarations[plan.total.id].path) :]
    if not plan.view.plain or covered(plan.view, around) is None:
        raise Refused(f"{plan.total.name} is not made up of what is added")
    text = adder.texts["dst"]
    if any(kernel.rebinds(text, item, adder) for item in products):
        raise Refused(f"{text} may be something else where its products are made")
    return tuple(products)


def _adds_up(item: Statement, adder: Statement) -> bool:
    """Whether an instruction adds a product to all of its tile, after the first one, which overwrites it."""
    dst = item.access("dst")
    whole = dst is not None and dst.view.whole and dst.view.plain
    once = dst is not None and sum(access.tensor.id == dst.tensor.id for access in item.accesses) == 1
    near = item.path[: len(adder.path)] == adder.path and item.guards == adder.guards
    plain = not item.texts.keys() & {"accumulate", "is_transpose"}
    return item.op == "nc_matmul" and whole and once and near and plain
