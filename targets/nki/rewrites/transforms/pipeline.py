"""Software pipelining: the first part of each iteration runs before the second part of the previous one.

Engines take instructions nearly in order. `distribute` fills the gaps inside a block of iterations and leaves
one between blocks. With pipelining an engine can always go on with the first part of the next iteration.
Tiles passed between the parts need two buffers, however many iterations there are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import libcst as cst

from nki_sim.targets import Target
from targets.nki.rewrites import syntax
from targets.nki.rewrites.blocking import BlockPlan, MultiBufferWriter
from targets.nki.rewrites.estimate import ENGINES
from targets.nki.rewrites.kernel_ir import Kernel, Loop, Node, StatementKind, list_statements
from targets.nki.rewrites.loop_ranges import ordered_range_name, range_name
from targets.nki.rewrites.transform import Choice, RewriteRefused, Transform
from targets.nki.rewrites.transforms.distribute import (
    LoopSplit,
    find_loop_splits,
    max_buffers,
    plan_loop_split,
)

BUFFER_COUNT = 2
"""Buffers of a tile that crosses the cut: one is written while the other is read."""
COMPUTE_ENGINES = frozenset(ENGINES) - {"dma", "descriptor"}
"""Engines whose gaps are filled."""
MIN_TRIPS = 4
"""Number of iterations from which some are left for a loop besides those at the ends."""


class Pipeline(Transform[LoopSplit]):
    """Runs the first part of a loop's body one iteration ahead of the second."""

    id: ClassVar[str] = "pipeline"
    counter: ClassVar[str] = "total_time"
    keeps: ClassVar[str] = (
        "the first part of an iteration touches nothing that the second part of another one writes; "
        "what the second part needs of the first stays in one of two places until it has run"
    )

    def find_sites(self, kernel: Kernel, target: Target) -> Mapping[str, LoopSplit]:
        del target
        found = find_loop_splits(kernel, COMPUTE_ENGINES, _is_handed_over)
        return {site: cut for site, cut in found.items() if not _only_loads(cut) or _is_long(cut)}

    def list_choices(self, kernel: Kernel, target: Target, place: LoopSplit) -> tuple[Choice, ...]:
        if max_buffers(_plan_pipeline(kernel, place), target) < BUFFER_COUNT:
            raise RewriteRefused(
                f"two places of what an iteration over {place.loop.var} hands over do not fit"
            )
        return ({},)

    def apply(self, kernel: Kernel, target: Target, place: LoopSplit, choice: Choice) -> str:
        del target, choice
        made = _write_pipeline(kernel, place)

        def emit(node: Node) -> list[cst.BaseStatement] | None:
            if node is not place.loop:
                return None
            front = [*syntax.leading_lines(place.loop.node), *syntax.leading_lines(made[0])]
            return [syntax.with_leading_lines(made[0], front), *made[1:]]

        return syntax.render_module(kernel, syntax.rebuild_block(kernel.body, emit))


def _is_handed_over(before: Sequence[str], engine: str) -> bool:
    """Whether the engine after the cut goes on with what another engine made, or with what was loaded."""
    made = [name for name in before if name in COMPUTE_ENGINES]
    return made[-1] != engine if made else bool(before)


def _only_loads(cut: LoopSplit) -> bool:
    items = list_statements(cut.loop.body[: cut.at])
    return not any(item.engine in COMPUTE_ENGINES for item in items if item.kind is StatementKind.OPERATE)


def _is_long(cut: LoopSplit) -> bool:
    """Whether loops follow the cut. Only of long iterations loads do not run ahead of themselves.

    Transfers are issued in order, so the next iteration's loads follow all that this one still has to load.
    """
    return any(isinstance(node, Loop) for node in cut.loop.body[cut.at :])


def _plan_pipeline(kernel: Kernel, cut: LoopSplit) -> BlockPlan:
    loop = cut.loop
    if loop.index_text != loop.var:
        raise RewriteRefused(f"the loop over {loop.var} does not count 0, 1, ...")
    if loop.trips < MIN_TRIPS or loop.trips % BUFFER_COUNT:
        raise RewriteRefused(
            f"{loop.trips} iterations over {loop.var} are no even number from {MIN_TRIPS} on"
        )
    plan = plan_loop_split(kernel, cut)
    for item in kernel.operations():
        dst = item.find_access("dst")
        starts = item.op == "nc_matmul" and item.arguments.get("accumulate") is None
        if starts and dst is not None and dst.tensor.id in plan.copied:
            raise RewriteRefused(
                f"products add up in {dst.tensor.name}, which has to be new for each iteration"
            )
    return plan


def _write_pipeline(kernel: Kernel, cut: LoopSplit) -> list[cst.BaseStatement]:
    """Alternate the next iteration's first part with this one's second; the ends get what is left."""
    loop = cut.loop
    writer = MultiBufferWriter(_plan_pipeline(kernel, cut), str(BUFFER_COUNT))
    first, second = cut.split_nodes(kernel)
    run, ordered = range_name(kernel, loop), ordered_range_name(kernel, loop)
    end = syntax.group_factor(loop.stop, first=True)
    pair, turn = kernel.fresh_name(f"{loop.var}_pair"), kernel.fresh_name(f"{loop.var}_turn")
    now = f"{pair} * {BUFFER_COUNT} + {turn}"
    steady = [
        *writer.write_loop(first, f"{run}({now} + 1, {now} + 2)", f"1 - {turn}"),
        *writer.write_loop(second, f"{run}({now}, {now} + 1)", turn),
    ]
    return [
        *writer.declare_buffers(first),
        *writer.write_loop(first, f"{run}(1)", "0"),
        syntax.make_loop(
            pair,
            f"{ordered}({end} // {BUFFER_COUNT} - 1)",
            [syntax.make_loop(turn, f"{ordered}({BUFFER_COUNT})", steady)],
        ),
        *writer.write_loop(first, f"{run}({end} - 1, {end})", "1"),
        *writer.write_loop(second, f"{run}({end} - 2, {end})", f"{loop.var} % {BUFFER_COUNT}"),
    ]
