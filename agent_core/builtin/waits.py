"""How long engines wait inside an iteration: what a static estimate can say without making a schedule.

An engine takes its instructions nearly in order. Where it needs what other engines make of its own earlier
results (scores, their softmax, the product with it), it waits for them, and what comes later in the program
waits behind it, unless the waiting instructions are so few that the engine looks past them. Loops inside are
taken for pipelined: they last as long as their busiest engine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from agent_core.builtin.model import Kernel, Kind, Loop, Node, Statement
from nki_sim.targets import Target

CHIP = ("tensor", "vector", "scalar", "gpsimd")
"""Engines that take instructions nearly in order; transfers are issued long before they are needed."""

Costs = Mapping[Statement, Mapping[str, float]]


@dataclass(slots=True)
class _Work:
    """What a node takes of each engine, waits included, and the tensors that it reads and writes."""

    ns: dict[str, float] = field(default_factory=dict)
    count: dict[str, float] = field(default_factory=dict)
    reads: set[int] = field(default_factory=set)
    writes: set[int] = field(default_factory=set)

    @property
    def length(self) -> float:
        return max(self.ns.values(), default=0.0)


def with_waits(kernel: Kernel, costs: Costs, target: Target) -> dict[str, float]:
    """Nanoseconds of each engine of the chip, busy or waiting for the results of others."""
    return _Reader(costs, target).block(kernel.body).ns


class _Reader:
    def __init__(self, costs: Costs, target: Target) -> None:
        self._costs = costs
        self._window = target.issue_window
        self._hop_ns = target.semaphore_ns

    def block(self, nodes: Sequence[Node]) -> _Work:
        works = [work for node in nodes if (work := self._work(node)).ns]
        total = _Work()
        for work in works:
            total.reads |= work.reads
            total.writes |= work.writes
            for name in work.ns:
                total.count[name] = total.count.get(name, 0.0) + work.count[name]
        total.ns = {name: self._engine(name, works) for name in total.count}
        return total

    def _work(self, node: Node) -> _Work:
        if isinstance(node, Statement):
            return self._statement(node)
        times = node.trips if isinstance(node, Loop) else 1.0 / prod(loop.trips for loop in node.loops)
        inner = self.block(node.body)
        ns = {name: times * value for name, value in inner.ns.items()}
        count = {name: times * value for name, value in inner.count.items()}
        return _Work(ns, count, inner.reads, inner.writes)

    def _statement(self, item: Statement) -> _Work:
        if item.kind is not Kind.OPERATE:
            return _Work()
        ns = {name: value for name, value in self._costs[item].items() if name in CHIP}
        reads = {access.tensor.id for access in item.accesses if access.reads}
        writes = {access.tensor.id for access in item.accesses if access.writes}
        return _Work(ns, dict.fromkeys(ns, 1.0), reads, writes)

    def _engine(self, name: str, works: Sequence[_Work]) -> float:
        """The time of an engine in one pass over a block.

        `late` says for how long after the engine has finished its last work a tensor is not ready yet.
        """
        late: dict[int, float] = {}
        spent = 0.0
        ahead = sum(work.count.get(name, 0.0) for work in works)
        for work in works:
            mine = work.ns.get(name)
            wait = max((late[key] for key in work.reads if key in late), default=0.0)
            if mine is None:
                if late.keys() & work.reads:
                    late.update(dict.fromkeys(work.writes, wait + work.length + self._hop_ns))
                continue
            waited = wait if ahead > self._window else 0.0
            ahead -= work.count[name]
            spent += waited + mine
            late = {key: value - waited - mine for key, value in late.items()}
            left = work.length - mine + self._hop_ns
            late.update(dict.fromkeys(work.writes, left))
        return spent
