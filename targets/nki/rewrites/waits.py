"""How long engines wait inside an iteration: what a static estimate can say without making a schedule.

An engine takes its instructions nearly in order. Where it needs what other engines make of its own earlier
results (scores, their softmax, the product with it), it waits for them, and what comes later in the program
waits behind it, unless the waiting instructions are so few that the engine looks past them. Loops inside are
taken for pipelined: they last as long as their busiest engine.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import gcd, prod

from nki_sim.targets import Target
from targets.nki.rewrites.model import Access, Kernel, Kind, Loop, Node, Statement
from targets.nki.rewrites.values import Affine

CHIP = ("tensor", "vector", "scalar", "gpsimd")
"""Engines that take instructions nearly in order; transfers are issued long before they are needed."""

Costs = Mapping[Statement, Mapping[str, float]]

Part = tuple[int, tuple[Affine | None, ...]]
"""A part of a tensor: its id, and where it is along the dimensions of which it has one element."""


@dataclass(slots=True)
class _Work:
    """What a node takes of each engine, waits included, and the parts of tensors that it reads and writes."""

    ns: dict[str, float] = field(default_factory=dict)
    count: dict[str, float] = field(default_factory=dict)
    reads: dict[int, set[Part]] = field(default_factory=dict)
    writes: set[Part] = field(default_factory=set)

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
        works = [work for node in _flat(nodes) if (work := self._work(node)).ns]
        total = _Work()
        for work in works:
            for key, parts in work.reads.items():
                total.reads[key] = total.reads.get(key, set()) | parts
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
        reads: dict[int, set[Part]] = {}
        for access in item.accesses:
            if access.reads:
                reads.setdefault(access.tensor.id, set()).add(_part(access))
        writes = {_part(access) for access in item.accesses if access.writes}
        return _Work(ns, dict.fromkeys(ns, 1.0), reads, writes)

    def _engine(self, name: str, works: Sequence[_Work]) -> float:
        """The time of an engine in one pass over a block.

        `late` says for how long after the engine has finished its last work a part is not ready yet.
        """
        late: dict[Part, float] = {}
        spent = 0.0
        ahead = sum(work.count.get(name, 0.0) for work in works)
        for work in works:
            mine = work.ns.get(name)
            met = [
                value
                for part, value in late.items()
                if any(_meet(part, own) for own in work.reads.get(part[0], ()))
            ]
            wait = max(met, default=0.0)
            if mine is None:
                if met:
                    late.update(dict.fromkeys(work.writes, wait + work.length + self._hop_ns))
                continue
            waited = wait if ahead > self._window else 0.0
            ahead -= work.count[name]
            spent += waited + mine
            late = {key: value - waited - mine for key, value in late.items()}
            left = work.length - mine + self._hop_ns
            late.update(dict.fromkeys(work.writes, left))
        return spent


def _flat(nodes: Sequence[Node]) -> Iterator[Node]:
    """The nodes of a block; what runs once counts as if no loop were around it."""
    for node in nodes:
        if isinstance(node, Loop) and node.trips == 1:
            yield from _flat(node.body)
        else:
            yield node


def _part(access: Access) -> Part:
    view = access.view
    single = (item.start if item.extent == 1 else None for item in view.box)
    return access.tensor.id, (*view.picks, *single)


def _meet(one: Part, other: Part) -> bool:
    """Whether two parts of a tensor may have an element in common in one iteration."""
    return one == other or all(
        a is None or b is None or _may_be_zero(a - b) for a, b in zip(one[1], other[1], strict=True)
    )


def _may_be_zero(value: Affine) -> bool:
    """False for a value that no iterations make zero: its coefficients do not divide its constant."""
    steps = gcd(*(step for _, step in value.terms))
    return value.const % steps == 0 if steps else value.const == 0
