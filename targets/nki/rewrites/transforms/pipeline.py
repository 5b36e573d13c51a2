"""Software pipelining: the first part of each iteration runs before the second part of the one before it.

Engines take instructions nearly in order. `distribute` fills the gaps inside a block of iterations and
leaves one between blocks. Here an engine always has the first part of the next iteration to go on with,
and what the parts hand over needs two places, however many iterations there are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import libcst as cst

from nki_sim.targets import Target
from targets.nki.rewrites import syntax
from targets.nki.rewrites.blocking import Block, PlaceWriter
from targets.nki.rewrites.estimate import ENGINES
from targets.nki.rewrites.model import Kernel, Node
from targets.nki.rewrites.splitting import ordered_range_name, range_name
from targets.nki.rewrites.transform import Choice, Refused, Transform
from targets.nki.rewrites.transforms.distribute import Cut, cuts, most_places, plan_cut

PLACES = 2
"""Places of a tile that the first part leaves to the second: one is written while the other is read."""
COMPUTING = frozenset(ENGINES) - {"dma", "descriptor"}
"""Engines whose gaps are filled; loads run ahead by themselves, as far as there is room."""
LEAST = 4
"""Iterations from which some of them run in a loop, behind those at the ends."""


class Pipeline(Transform[Cut]):
    """Runs the first part of a loop's body one iteration ahead of the second."""

    id: ClassVar[str] = "pipeline"
    counter: ClassVar[str] = "total_time"
    keeps: ClassVar[str] = (
        "the first part of an iteration touches nothing that the second part of another one writes; "
        "what the second part needs of the first stays in one of two places until it has run"
    )

    def places(self, kernel: Kernel, target: Target) -> Mapping[str, Cut]:
        del target
        return cuts(kernel, COMPUTING, _is_handed_over)

    def choices(self, kernel: Kernel, target: Target, place: Cut) -> tuple[Choice, ...]:
        if most_places(_planned(kernel, place), target) < PLACES:
            raise Refused(f"two places of what an iteration over {place.loop.var} hands over do not fit")
        return ({},)

    def apply(self, kernel: Kernel, target: Target, place: Cut, choice: Choice) -> str:
        del target, choice
        made = _pipelined(kernel, place)

        def emit(node: Node) -> list[cst.BaseStatement] | None:
            if node is not place.loop:
                return None
            front = [*syntax.leading(place.loop.node), *syntax.leading(made[0])]
            return [syntax.at_front(made[0], front), *made[1:]]

        return syntax.source_of(kernel, syntax.rebuild(kernel.body, emit))


def _is_handed_over(before: Sequence[str], engine: str) -> bool:
    """Whether an engine goes on behind the cut with what another one made."""
    made = [name for name in before if name in COMPUTING]
    return bool(made) and made[-1] != engine


def _planned(kernel: Kernel, cut: Cut) -> Block:
    loop = cut.loop
    if loop.index_text != loop.var:
        raise Refused(f"the loop over {loop.var} does not count 0, 1, ...")
    if loop.trips < LEAST or loop.trips % PLACES:
        raise Refused(f"{loop.trips} iterations over {loop.var} are no even number from {LEAST} on")
    plan = plan_cut(kernel, cut)
    for item in kernel.operations():
        dst = item.access("dst")
        starts = item.op == "nc_matmul" and item.arguments.get("accumulate") is None
        if starts and dst is not None and dst.tensor.id in plan.copied:
            raise Refused(f"products add up in {dst.tensor.name}, which has to be new for each iteration")
    return plan


def _pipelined(kernel: Kernel, cut: Cut) -> list[cst.BaseStatement]:
    """In turns the first part of the next iteration and the second of this one, what is left at the ends."""
    loop = cut.loop
    writer = PlaceWriter(_planned(kernel, cut), str(PLACES))
    first, second = cut.parts(kernel)
    run, ordered = range_name(kernel, loop), ordered_range_name(kernel, loop)
    end = syntax.grouped(loop.stop, first=True)
    pair, turn = kernel.fresh(f"{loop.var}_pair"), kernel.fresh(f"{loop.var}_turn")
    now = f"{pair} * {PLACES} + {turn}"
    steady = [
        *writer.part(first, f"{run}({now} + 1, {now} + 2)", f"1 - {turn}"),
        *writer.part(second, f"{run}({now}, {now} + 1)", turn),
    ]
    return [
        *writer.declared(first),
        *writer.part(first, f"{run}(1)", "0"),
        syntax.loop(
            pair,
            f"{ordered}({end} // {PLACES} - 1)",
            [syntax.loop(turn, f"{ordered}({PLACES})", steady)],
        ),
        *writer.part(first, f"{run}({end} - 1, {end})", "1"),
        *writer.part(second, f"{run}({end} - 2, {end})", f"{loop.var} % {PLACES}"),
    ]
