"""Estimates how long engines wait inside an iteration, without making a schedule.

An engine takes its instructions almost in order. If it needs what other engines make of its own earlier
results (scores, their softmax, the product with it), it waits for them. Later instructions wait behind,
unless so few are waiting that the engine looks past them. Inner loops are assumed to be pipelined: they last
as long as their busiest engine.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import gcd, prod

from nki_sim.targets import Target
from targets.nki.rewrites.kernel_ir import Access, Kernel, Loop, Node, Statement, StatementKind
from targets.nki.rewrites.values import Affine

IN_ORDER_ENGINES = ("tensor", "vector", "scalar", "gpsimd")
"""Engines that take instructions almost in order; transfers are issued long before they are needed."""

Costs = Mapping[Statement, Mapping[str, float]]

TensorPart = tuple[int, tuple[Affine | None, ...]]
"""A part of a tensor: its id, and its position along the dimensions in which it has one element."""


@dataclass(slots=True)
class _NodeWork:
    """The time that a node takes of each engine, waits included, and the tensor parts it reads and writes.

    `makers` are the engines that work inside the node on a tensor it writes, or on what that is made of.
    """

    ns: dict[str, float] = field(default_factory=dict)
    count: dict[str, float] = field(default_factory=dict)
    reads: dict[int, set[TensorPart]] = field(default_factory=dict)
    writes: set[TensorPart] = field(default_factory=set)
    makers: dict[int, frozenset[str]] = field(default_factory=dict)

    def ready_ns(self, tensor: int) -> float:
        """The time after which a written tensor is finished: that of the busiest engine that works on it."""
        return max((self.ns[name] for name in self.makers[tensor]), default=0.0)


def busy_and_stalled_ns(kernel: Kernel, costs: Costs, target: Target) -> dict[str, float]:
    """Nanoseconds that each engine is busy or waits for the results of others."""
    return _StallEstimator(costs, target).estimate_block(kernel.body).ns


class _StallEstimator:
    def __init__(self, costs: Costs, target: Target) -> None:
        self._costs = costs
        self._window = target.issue_window
        self._hop_ns = target.semaphore_ns

    def estimate_block(self, nodes: Sequence[Node]) -> _NodeWork:
        works = [work for node in _flatten_single_trips(nodes) if (work := self._estimate_node(node)).ns]
        total = _NodeWork()
        for work in works:
            for key, parts in work.reads.items():
                total.reads[key] = total.reads.get(key, set()) | parts
            total.writes |= work.writes
            before = frozenset[str]().union(*(total.makers.get(key, frozenset()) for key in work.reads))
            for key, names in work.makers.items():
                total.makers[key] = total.makers.get(key, frozenset()) | names | before
            for name in work.ns:
                total.count[name] = total.count.get(name, 0.0) + work.count[name]
        total.ns = {name: self._engine_pass_ns(name, works) for name in total.count}
        return total

    def _estimate_node(self, node: Node) -> _NodeWork:
        if isinstance(node, Statement):
            return self._estimate_statement(node)
        times = node.trips if isinstance(node, Loop) else 1.0 / prod(loop.trips for loop in node.loops)
        inner = self.estimate_block(node.body)
        ns = {name: times * value for name, value in inner.ns.items()}
        count = {name: times * value for name, value in inner.count.items()}
        return _NodeWork(ns, count, inner.reads, inner.writes, inner.makers)

    def _estimate_statement(self, item: Statement) -> _NodeWork:
        if item.kind is not StatementKind.OPERATE:
            return _NodeWork()
        ns = {name: value for name, value in self._costs[item].items() if name in IN_ORDER_ENGINES}
        reads: dict[int, set[TensorPart]] = {}
        for access in item.accesses:
            if access.reads:
                reads.setdefault(access.tensor.id, set()).add(_accessed_part(access))
        writes = {_accessed_part(access) for access in item.accesses if access.writes}
        makers = {part[0]: frozenset(ns) for part in writes}
        return _NodeWork(ns, dict.fromkeys(ns, 1.0), reads, writes, makers)

    def _engine_pass_ns(self, name: str, works: Sequence[_NodeWork]) -> float:
        """The time of an engine for one pass over a block.

        `late` is how long after the engine has finished its last work a part is still not ready.
        """
        late: dict[TensorPart, float] = {}
        spent = 0.0
        ahead = sum(work.count.get(name, 0.0) for work in works)
        for work in works:
            mine = work.ns.get(name)
            met = [
                value
                for part, value in late.items()
                if any(_may_overlap(part, own) for own in work.reads.get(part[0], ()))
            ]
            wait = max(met, default=0.0)
            if mine is None:
                if met:
                    late |= {part: wait + work.ready_ns(part[0]) + self._hop_ns for part in work.writes}
                continue
            waited = max(0.0, wait) if ahead > self._window else 0.0
            ahead -= work.count[name]
            spent += waited + mine
            late = {key: value - waited - mine for key, value in late.items()}
            late |= {part: work.ready_ns(part[0]) - mine + self._hop_ns for part in work.writes}
        return spent


def _flatten_single_trips(nodes: Sequence[Node]) -> Iterator[Node]:
    """The nodes of a block; loops that run once are replaced by their contents."""
    for node in nodes:
        if isinstance(node, Loop) and node.trips == 1:
            yield from _flatten_single_trips(node.body)
        else:
            yield node


def _accessed_part(access: Access) -> TensorPart:
    view = access.view
    single = (item.start if item.extent == 1 else None for item in view.box)
    return access.tensor.id, (*view.picks, *single)


def _may_overlap(one: TensorPart, other: TensorPart) -> bool:
    """Whether two parts of a tensor may share an element in one iteration."""
    return one == other or all(
        a is None or b is None or _may_be_zero(a - b) for a, b in zip(one[1], other[1], strict=True)
    )


def _may_be_zero(value: Affine) -> bool:
    """False if no iterations make the value zero: its coefficients do not divide its constant."""
    steps = gcd(*(step for _, step in value.terms))
    return value.const % steps == 0 if steps else value.const == 0
