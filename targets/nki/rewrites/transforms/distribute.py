"""Loop distribution in blocks: several iterations run their first part, then all run their second part.

Engines take instructions nearly in order. Where an iteration makes an engine wait for the others (scores,
their softmax, the product with it), the next iteration's first part can fill the gap if it comes before this
iteration's second part.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from nki_sim.targets import Target
from targets.nki.rewrites.arithmetic import names_in
from targets.nki.rewrites.blocking import (
    BlockPlan,
    BlockWriter,
    check_own_name,
    check_own_variable,
    never_overlap,
)
from targets.nki.rewrites.estimate import ENGINES, estimate_kernel, tile_banks, tile_bytes
from targets.nki.rewrites.kernel_ir import (
    Kernel,
    Loop,
    Node,
    Statement,
    StatementKind,
    list_statements,
    walk_nodes,
)
from targets.nki.rewrites.loop_ranges import dividing_block_sizes
from targets.nki.rewrites.transform import Choice, RewriteRefused, Transform

BUSIEST_ENGINES = 2
"""Cuts are offered before instructions of this many engines, the busiest ones."""


@dataclass(frozen=True, slots=True)
class LoopSplit:
    """A loop's body cut in two parts before its node number `at`."""

    loop: Loop
    at: int

    def split_nodes(self, kernel: Kernel) -> tuple[list[Node], list[Node]]:
        """The nodes of both parts; a tile that only the second part uses is declared there."""
        early, late = self.loop.body[: self.at], self.loop.body[self.at :]
        users = set(list_statements(early))
        moved = [
            item
            for item in early
            if isinstance(item, Statement)
            and item.tensor is not None
            and users.isdisjoint(kernel.users_of(item.tensor))
        ]
        return [item for item in early if item not in moved], [*moved, *late]


class Distribute(Transform[LoopSplit]):
    """Runs the first part of a loop's body for several iterations before their second part."""

    id: ClassVar[str] = "distribute"
    counter: ClassVar[str] = "total_time"
    keeps: ClassVar[str] = (
        "the first part of an iteration touches nothing that the second part of another one writes; "
        "what the second part needs of the first has a place of its own for each iteration"
    )

    def find_sites(self, kernel: Kernel, target: Target) -> Mapping[str, LoopSplit]:
        busy = estimate_kernel(kernel, target).busy_ns
        engines = sorted(set(ENGINES) - {"dma", "descriptor"}, key=lambda name: (-busy[name], name))[
            :BUSIEST_ENGINES
        ]
        return find_loop_splits(kernel, engines, _fills_a_gap)

    def list_choices(self, kernel: Kernel, target: Target, place: LoopSplit) -> tuple[Choice, ...]:
        plan = plan_loop_split(kernel, place)
        most = max_buffers(plan, target)
        sizes = [size for size in (*dividing_block_sizes(place.loop), place.loop.trips) if size <= most]
        if not sizes:
            raise RewriteRefused(f"no block of iterations over {place.loop.var} fits on chip")
        return tuple({"iterations": size} for size in sizes)

    def apply(self, kernel: Kernel, target: Target, place: LoopSplit, choice: Choice) -> str:
        del target
        plan = plan_loop_split(kernel, place)
        var = place.loop.var
        constant = kernel.fresh_name(f"AHEAD_{var.removeprefix('i_').upper()}")
        writer = BlockWriter(plan, int(choice["iterations"]), constant)
        first, second = place.split_nodes(kernel)
        body = [*writer.write_run(first), *writer.write_run(second)]
        return writer.write_module(body, f"iterations over {var} whose first part runs ahead")


def find_loop_splits(
    kernel: Kernel, engines: Collection[str], pays: Callable[[Sequence[str], str], bool]
) -> dict[str, LoopSplit]:
    """Cuts before instructions of these engines that tiles cross, by loop and instruction.

    `pays` gets the engines that worked before a cut, in order, and the engine that goes on after it.
    """
    found: dict[str, LoopSplit] = {}
    for loop in kernel.loops:
        for at in range(1, len(loop.body)):
            cut = LoopSplit(loop, at)
            first = _first_instruction(loop.body[at], engines)
            before = [
                item.engine for item in list_statements(loop.body[:at]) if item.kind is StatementKind.OPERATE
            ]
            if first is not None and pays(before, first.engine) and _crossing_tiles(kernel, cut):
                found.setdefault(
                    f"{kernel.unique_label(loop)} before {describe_instruction(kernel, first)}", cut
                )
    return found


def _fills_a_gap(before: Sequence[str], engine: str) -> bool:
    """Whether the engine after the cut also worked before it, and waits for another engine at the cut."""
    return engine in before and before[-1] != engine


def _first_instruction(node: Node, engines: Collection[str]) -> Statement | None:
    """The first instruction in a node that runs on one of these engines."""
    items = (item for item in walk_nodes([node]) if isinstance(item, Statement))
    return next(
        (item for item in items if item.kind is StatementKind.OPERATE and item.engine in engines), None
    )


def describe_instruction(kernel: Kernel, item: Statement) -> str:
    """Describe an instruction as site names do."""
    dst = item.find_access("dst")
    return item.op if dst is None else f"{item.op} to {kernel.unique_label(dst.tensor)}"


def _crossing_tiles(kernel: Kernel, cut: LoopSplit) -> frozenset[int]:
    """Ids of the tiles that the first part declares and the second uses."""
    first, second = map(list_statements, cut.split_nodes(kernel))
    declared = [item.tensor for item in first if item.tensor is not None]
    return frozenset(tensor.id for tensor in declared if not set(second).isdisjoint(kernel.users_of(tensor)))


def max_buffers(plan: BlockPlan, target: Target) -> int:
    """How many on-chip buffers the tiles that cross the cut may have."""
    copied = [item.tensor for item in plan.tainted if item.tensor is not None]
    copied = [tensor for tensor in copied if tensor.id in plan.copied]
    sbuf = sum(tile_bytes(tensor) for tensor in copied if tensor.buffer == "sbuf")
    banks = sum(tile_banks(tensor, target) for tensor in copied if tensor.buffer == "psum")
    fit = plan.loop.trips if not sbuf else target.sbuf_usable_bytes // sbuf
    return min(fit, target.psum_banks // banks) if banks else fit


def plan_loop_split(kernel: Kernel, cut: LoopSplit) -> BlockPlan:
    """What the parts touch, and the tiles that need a buffer for each iteration.

    Raises:
        RewriteRefused: an iteration's first part must not run before an earlier iteration's second part.
    """
    loop, crossing = cut.loop, _crossing_tiles(kernel, cut)
    if loop.index_text is None:
        raise RewriteRefused(f"the loop over {loop.var} does not count by one")
    check_own_variable(loop)
    statements = list_statements(loop.body)
    for item in statements:
        if item.kind is StatementKind.OPAQUE:
            raise RewriteRefused(f"the loop over {loop.var} holds what cannot be read: {item.reason}")
        if item.tensor is not None and item.tensor.id in crossing:
            _check_copied_tile(kernel, cut, item)
    _check_order(kernel, cut)
    _check_names(kernel, cut)
    return BlockPlan(kernel, loop, frozenset(statements), crossing)


def _check_order(kernel: Kernel, cut: LoopSplit) -> None:
    """Refuse if the first part of later iterations touches or overwrites what the second part leaves."""
    first, second = map(list_statements, cut.split_nodes(kernel))
    for a in (access for item in first for access in item.accesses):
        for b in (access for item in second for access in item.accesses):
            same = a.tensor.id == b.tensor.id and (a.writes or b.writes)
            if same and not never_overlap(kernel, cut.loop, a, b):
                raise RewriteRefused(
                    f"an iteration over {cut.loop.var} leaves {a.tensor.name} to the next one"
                )


def _check_copied_tile(kernel: Kernel, cut: LoopSplit, item: Statement) -> None:
    assert item.tensor is not None
    name = item.tensor.name
    if item not in cut.loop.body:
        raise RewriteRefused(f"{name} is declared in a loop or under a condition, and used after it")
    inside = [other for other in kernel.statements if cut.loop in other.path]
    check_own_name(kernel, item, inside)
    own = item.uses & {cut.loop.var, *(bound for other in inside for bound in other.binds - {name})}
    if own:
        raise RewriteRefused(
            f"{name} is declared with {min(own)}, which only the loop over {cut.loop.var} knows"
        )


def _check_names(kernel: Kernel, cut: LoopSplit) -> None:
    first, second = cut.split_nodes(kernel)
    heads = [item for item in walk_nodes(second) if isinstance(item, Loop)]
    used = frozenset().union(*(item.uses for item in list_statements(second)))
    used = used.union(*(names_in(f"{loop.first}, {loop.stop}") for loop in heads))
    bound = frozenset().union(
        *(item.binds for item in list_statements(first) if item.kind is StatementKind.BIND)
    )
    if bound & used:
        raise RewriteRefused(f"{min(bound & used)} is bound in one part of the loop and used in the other")
