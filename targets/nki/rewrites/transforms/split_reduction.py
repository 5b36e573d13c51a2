"""Split reductions: a tile made part by part is also reduced part by part, and the results at the end.

A reduction of a whole tile waits for the last part. Reduced inside the loop that makes the parts, each part
is read while the next one is made, and no second pass over the tile is needed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import libcst as cst

from nki_sim.dtypes import DTYPES
from nki_sim.targets import Target
from targets.nki.rewrites import syntax
from targets.nki.rewrites.arithmetic import names_in
from targets.nki.rewrites.declarations import shape_texts
from targets.nki.rewrites.kernel_ir import Access, Kernel, Loop, Node, Statement, StatementKind
from targets.nki.rewrites.reader import read_kernel
from targets.nki.rewrites.reductions import free_axes_text, reduces_rows
from targets.nki.rewrites.slices import covering_loops
from targets.nki.rewrites.transform import Choice, RewriteRefused, Transform
from targets.nki.rewrites.transforms.fuse_reduction import FuseReduction, ReductionPair, find_reduction_pair
from targets.nki.rewrites.values import Affine

FUSE_REDUCTION = FuseReduction()
"""Merges the reduction of a part with the instruction that makes it, if one instruction does both."""


@dataclass(frozen=True, eq=False)
class ReductionSplit:
    """`reduction` reads the tile that `producer` fills part by part in the nest of `loops`."""

    reduction: Statement
    producer: Statement
    part: Access
    name: str
    """Name of the tile with the parts' results."""
    loops: tuple[Loop, ...]


class SplitReduction(Transform[Statement]):
    """Moves a reduction along rows into the loop that makes the rows."""

    id: ClassVar[str] = "split_reduction"
    counter: ClassVar[str] = "total_time"
    keeps: ClassVar[str] = (
        "the parts are all of the tile and do not change before it is reduced; the largest of the parts' "
        "maxima is the maximum, a sum or product in float32 is the same but for the order of its terms"
    )

    def find_sites(self, kernel: Kernel, target: Target) -> Mapping[str, Statement]:
        del target
        found: dict[str, Statement] = {}
        for item in kernel.operations():
            dst = item.find_access("dst")
            if item.op == "tensor_reduce" and dst is not None:
                found.setdefault(f"{item.op} to {kernel.unique_label(dst.tensor)}", item)
        return found

    def list_choices(self, kernel: Kernel, target: Target, place: Statement) -> tuple[Choice, ...]:
        plan = _plan_split(kernel, place)
        try:
            fused = FUSE_REDUCTION.list_choices(*self._apply_split(kernel, target, plan))
        except RewriteRefused:
            return ({},)
        return (*fused, {})

    def apply(self, kernel: Kernel, target: Target, place: Statement, choice: Choice) -> str:
        plan = _plan_split(kernel, place)
        return (
            FUSE_REDUCTION.apply(*self._apply_split(kernel, target, plan), choice)
            if choice
            else _emit_split(kernel, plan)
        )

    def _apply_split(
        self, kernel: Kernel, target: Target, plan: ReductionSplit
    ) -> tuple[Kernel, Target, ReductionPair]:
        """The kernel after the split, with its target and the pair that may be fused there."""
        child = read_kernel(_emit_split(kernel, plan), kernel.arguments, target)
        made = (item for item in child.operations() if item.texts.get("dst", "").startswith(f"{plan.name}["))
        pair = find_reduction_pair(child, next(made))
        if pair is None:
            raise RewriteRefused(f"no instruction does what {plan.producer.op} does and reduces")
        return child, target, pair


def _emit_split(kernel: Kernel, plan: ReductionSplit) -> str:
    outer = plan.loops[0]

    def emit(node: Node) -> list[cst.BaseStatement] | None:
        if node is plan.reduction:
            return [_reduce_partials(kernel, plan)]
        if node is plan.producer:
            return [node.node, _reduce_part(kernel, plan)]
        if node is outer:
            rest = syntax.replace_body(outer.node, syntax.rebuild_block(outer.body, emit))
            line = syntax.with_leading_lines(
                _declare_partials(kernel, plan), syntax.leading_lines(outer.node)
            )
            return [line, syntax.with_leading_lines(rest, [])]
        return None

    return syntax.render_module(kernel, syntax.rebuild_block(kernel.body, emit))


def _declare_partials(kernel: Kernel, plan: ReductionSplit) -> cst.BaseStatement:
    rows = shape_texts(kernel, kernel.declarations[plan.part.tensor.id])[0]
    counts = _product_text([_trip_count_text(kernel, plan, loop) for loop in plan.loops])
    nl = kernel.nl
    return syntax.parse_statement(
        f"{plan.name} = {nl}.ndarray(({rows}, {counts}), dtype={nl}.float32, buffer={nl}.sbuf)"
    )


def _reduce_part(kernel: Kernel, plan: ReductionSplit) -> cst.BaseStatement:
    index = _part_index_text(kernel, plan)
    words = {
        "dst": f"{plan.name}[:, {index} : {index} + 1]",
        "op": plan.reduction.texts["op"],
        "data": plan.producer.texts["dst"],
        "axis": free_axes_text(plan.part.view),
    }
    return syntax.make_call(f"{kernel.nisa}.tensor_reduce", words)


def _reduce_partials(kernel: Kernel, plan: ReductionSplit) -> cst.BaseStatement:
    words = {**plan.reduction.texts, "data": plan.name, "axis": "1"}
    made = syntax.make_call(f"{kernel.nisa}.tensor_reduce", words)
    return syntax.with_leading_lines(made, syntax.leading_lines(plan.reduction.node))


def _plan_split(kernel: Kernel, reduction: Statement) -> ReductionSplit:
    data, result = reduction.find_access("data"), reduction.find_access("dst")
    assert data is not None
    assert result is not None
    tile = data.tensor
    if not reduces_rows(reduction):
        raise RewriteRefused("it does not reduce all of the free axes")
    if not (data.view.is_whole and data.view.plain) or tile.copies or tile.id in kernel.escaping_ids:
        raise RewriteRefused(f"it does not reduce all of {tile.name}")
    for tensor in (tile, result.tensor):
        if DTYPES[tensor.dtype].kind != "float":
            raise RewriteRefused(f"{tensor.name} does not hold floating-point numbers")
    writers = [item for item in kernel.users_of(tile) if item.writes_tensor(tile)]
    declared = kernel.declarations.get(tile.id)
    if declared is None or len(writers) != 1:
        raise RewriteRefused(f"{len(writers)} instructions write {tile.name}, not one in a loop")
    producer = writers[0]
    loops = producer.path[len(reduction.path) :]
    if (
        producer.path[: len(reduction.path)] != reduction.path
        or not loops
        or producer.order > reduction.order
    ):
        raise RewriteRefused(f"{tile.name} is not made part by part by a loop in front of the reduction")
    if declared.path != reduction.path or {*producer.guards, *declared.guards, *reduction.guards}:
        raise RewriteRefused(f"{tile.name} is declared elsewhere, or made under a condition")
    part = next(access for access in producer.accesses if access.writes and access.tensor.id == tile.id)
    _check_part(kernel, producer, part, loops=loops)
    if kernel.may_rebind(declared.texts["shape"], declared, reduction):
        raise RewriteRefused(f"{declared.texts['shape']} means something else in front of the reduction")
    return ReductionSplit(reduction, producer, part, kernel.fresh_name(f"{result.tensor.name}_parts"), loops)


def _check_part(kernel: Kernel, producer: Statement, part: Access, *, loops: Sequence[Loop]) -> None:
    """Refuse unless the parts are distinct, in order, cover the tile, and are written whole and left
    unchanged.
    """
    tile = part.tensor
    if part.role != "dst" or part.reads or not part.view.plain:
        raise RewriteRefused(f"{producer.op} does not simply write its part of {tile.name}")
    if any(loop.index_text is None for loop in loops):
        raise RewriteRefused(f"the loop over {loops[0].var} does not count by one")
    if covering_loops(part.view, loops) != frozenset(loop.id for loop in loops) or part.view.within:
        raise RewriteRefused(f"the parts that {producer.op} writes do not make up {tile.name}")
    opaque = [
        item for item in kernel.statements if item.kind is StatementKind.OPAQUE and loops[0] in item.path
    ]
    if opaque:
        raise RewriteRefused(f"the loop over {loops[0].var} holds what cannot be read: {opaque[0].reason}")


def _product_text(counts: Sequence[str]) -> str:
    factors = [syntax.group_factor(text, first=not number) for number, text in enumerate(counts)]
    return " * ".join(factors) if len(factors) > 1 else counts[0]


def _trip_count_text(kernel: Kernel, plan: ReductionSplit, loop: Loop) -> str:
    """The number of a loop's iterations, as an expression that is valid before the nest."""
    inside = [item for item in kernel.statements if plan.loops[0] in item.path]
    bound = {name for item in inside for name in item.binds} | {item.var for item in plan.loops}
    return str(loop.trips) if names_in(loop.count_text) & bound else loop.count_text


def _part_index_text(kernel: Kernel, plan: ReductionSplit) -> str:
    """The part's number: the loops' indices as digits, or the one index that counts all parts."""
    number, text = Affine(0), ""
    for loop in plan.loops:
        number = number.scale_by(loop.trips) + Affine(0, ((loop.id, 1),))
        digit = str(loop.index_text)
        if text:
            trips = syntax.group_factor(_trip_count_text(kernel, plan, loop))
            text = f"{syntax.group_factor(text)} * {trips} + {digit}"
        else:
            text = digit
    values = {loop.var: loop.start + Affine(0, ((loop.id, loop.step),)) for loop in plan.loops}
    return next((name for name, value in values.items() if value == number), text)
