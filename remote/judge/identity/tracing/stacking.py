"""Turns loops back into arrays: operations of one kind that do not need each other become one, on a stack.

A loop over steps or heads is recorded as as many operations as it has passes. Those that are ready at the
same time and differ only in which results they take are done at once, with a leading axis for the pass; those
that wait for the pass before stay as they are. What more waits for is done first, so that the others gather.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from remote.judge.identity.expression import Expression, Node, Shape, Table, strides_of

_LEAST = 8
"""Operations that are worth a stack."""

_KINDS = frozenset({"binary", "matmul", "reduce", "select", "unary", "view"})


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a result is now: an operation, or one entry of the stack that it gives."""

    number: int
    entry: int | None = None


def stacked(expression: Expression, inputs: Sequence[Shape]) -> Expression:
    """Return an expression that gives the same with fewer operations."""
    stacker = _Stacker(expression.nodes, Table(inputs, list(expression.arrays)))
    needed = _needed(expression)
    lengths = _lengths(expression, needed)
    users: dict[int, list[int]] = {}
    waits = {}
    for number in needed:
        args = {*expression.nodes[number].args}
        waits[number] = len(args)
        for at in args:
            users.setdefault(at, []).append(number)
    groups: dict[Any, list[int]] = {}
    urgent: list[tuple[int, int, Any]] = []

    def ready(number: int) -> None:
        kind = stacker.kind_of(number)
        groups.setdefault(kind, []).append(number)
        heapq.heappush(urgent, (-lengths[number], number, kind))

    for number in needed:
        if not waits[number]:
            ready(number)
    while urgent:
        _, number, kind = heapq.heappop(urgent)
        if number in stacker.places:
            continue
        group = sorted(groups.pop(kind))
        stacker.place(group)
        for user in (user for done in group for user in users.get(done, ())):
            waits[user] -= 1
            if not waits[user]:
                ready(user)
    outputs = [stacker.single(stacker.places[number]) for number in expression.outputs]
    return Expression(stacker.table.nodes, stacker.table.arrays, outputs)


def _needed(expression: Expression) -> list[int]:
    """The operations that the outputs need, in order."""
    found = {*expression.outputs}
    for number in range(len(expression.nodes) - 1, -1, -1):
        if number in found:
            found.update(expression.nodes[number].args)
    return sorted(found)


def _lengths(expression: Expression, needed: Sequence[int]) -> dict[int, int]:
    """Of each operation the length of the longest way from it to an output."""
    found = dict.fromkeys(needed, 0)
    for number in reversed(needed):
        for at in expression.nodes[number].args:
            found[at] = max(found[at], found[number] + 1)
    return found


@dataclass
class _Stacker:
    nodes: Sequence[Node]
    table: Table
    places: dict[int, _Place] = field(default_factory=dict)
    _singles: dict[_Place, int] = field(default_factory=dict)

    def kind_of(self, number: int) -> Any:
        """What operations have in common that can be stacked."""
        node = self.nodes[number]
        if node.kind not in _KINDS:
            return number
        params = node.params[:2] if node.kind == "view" else node.params
        sources = tuple(self._source(self.places[at], exact=node.kind == "view") for at in node.args)
        return node.kind, params, sources, tuple(self.nodes[at].shape for at in node.args)

    def place(self, group: Sequence[int]) -> None:
        """Record a group of operations, as a stack where that can be."""
        stack = self._stack(group) if len(group) >= _LEAST else None
        for entry, number in enumerate(group):
            if stack is not None:
                self.places[number] = _Place(stack, entry)
                continue
            node = self.nodes[number]
            args = tuple(self.single(self.places[at]) for at in node.args)
            self.places[number] = _Place(self.table.add(node.kind, args, node.params))

    def single(self, place: _Place) -> int:
        """Return the operation that gives a result by itself."""
        if place.entry is None:
            return place.number
        if place not in self._singles:
            shape = self.table.nodes[place.number].shape[1:]
            part = (shape, strides_of(shape), place.entry * prod(shape))
            self._singles[place] = self.table.add("view", (place.number,), part)
        return self._singles[place]

    def _source(self, place: _Place, *, exact: bool) -> Any:
        """Results of one stack are alike, and so are results outside stacks, but for parts of them."""
        return place.number if exact or place.entry is not None else None

    def _stack(self, group: Sequence[int]) -> int | None:
        first = self.nodes[group[0]]
        if first.kind == "view":
            return self._views(group)
        rank = len(first.shape)
        args = tuple(
            self._arguments([self.places[self.nodes[number].args[at]] for number in group], shape, rank)
            for at, shape in enumerate(self.nodes[at].shape for at in first.args)
        )
        params = first.params
        if first.kind == "reduce":
            params = (params[0], *(axis + 1 for axis in params[1:]))
        return self.table.add(first.kind, args, params)

    def _views(self, group: Sequence[int]) -> int | None:
        """Parts of one array, each as far from the one before."""
        shape, strides, _ = self.nodes[group[0]].params
        places = [self.places[self.nodes[number].args[0]] for number in group]
        size = prod(self.nodes[self.nodes[group[0]].args[0]].shape)
        offsets = [
            self.nodes[number].params[2] + (place.entry or 0) * size
            for number, place in zip(group, places, strict=True)
        ]
        step = _step(offsets)
        if step is None:
            return None
        part = ((len(group), *shape), (step, *strides), offsets[0])
        return self.table.add("view", (places[0].number,), part)

    def _arguments(self, places: Sequence[_Place], shape: Shape, rank: int) -> int:
        """What all of a group take as one argument, with a leading axis for the group."""
        if all(place == places[0] for place in places):
            return self.single(places[0])
        padded = (len(places), *(1,) * (rank - len(shape)), *shape)
        inner = (*(0,) * (rank - len(shape)), *strides_of(shape))
        entries = [place.entry for place in places]
        step = _step(entries) if places[0].entry is not None else None
        if step is None or len({place.number for place in places}) > 1:
            return self._assembled(places, padded, strides_of(shape))
        if padded == self.table.nodes[places[0].number].shape and step == 1:
            return places[0].number
        part = (padded, (step * prod(shape), *inner), (places[0].entry or 0) * prod(shape))
        return self.table.add("view", (places[0].number,), part)

    def _assembled(self, places: Sequence[_Place], padded: Shape, strides: Shape) -> int:
        base = self.table.add("unknown", (), padded)
        where = tuple((strides, entry * prod(padded[1:])) for entry in range(len(places)))
        return self.table.add("assemble", (base, *map(self.single, places)), where)


def _step(numbers: Sequence[Any]) -> int | None:
    """The difference of each number to the one before; None if they have not one."""
    steps = np.diff(np.array(numbers, np.int64))
    return int(steps[0]) if steps.size and (steps == steps[0]).all() else None
