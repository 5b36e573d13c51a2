"""Turns recorded loops back into array operations: independent operations of one kind become one.

A loop over steps or heads records one operation per iteration. Operations that are ready at the same time and
differ only in their arguments are merged into one, with a leading axis for the iteration. Operations that
wait for the previous iteration stay as they are. Operations on which most others wait go first, so that the
others can gather. Few operations, such as those of two heads, are merged only if nothing has to be put
together for it, if nothing needs the result of one iteration alone, and if there are products among them.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from remote.judge.identity.expression import (
    ArrayExpression,
    ExpressionNode,
    OperationTable,
    Shape,
    align_view,
    strides_of,
)
from remote.judge.identity.tracing.recurrence_chains import RecurrenceChain, find_chains

_MIN_STACKED, _FEW_STACKED = 8, 2
"""Number of operations that makes a stack worthwhile, and if all stacks stay whole."""

_STACKABLE_KINDS = frozenset({"binary", "matmul", "reduce", "select", "unary", "view"})


@dataclass(frozen=True, slots=True)
class _StackEntry:
    """Where a result is now: an operation, or one entry of the stack that it gives."""

    number: int
    entry: int | None = None


def stack_operations(expression: ArrayExpression, inputs: Sequence[Shape]) -> ArrayExpression:
    """Return an expression with the same results and fewer operations."""
    found = _stack_groups(expression, inputs, _FEW_STACKED)
    if found.has_parts or not found.has_products:
        found = _stack_groups(expression, inputs, _MIN_STACKED)
    outputs = [found.single_result(found.places[number]) for number in expression.outputs]
    return ArrayExpression(found.table.nodes, found.table.arrays, outputs, expression.lines)


def _stack_groups(expression: ArrayExpression, inputs: Sequence[Shape], least: int) -> _Stacker:
    """Record all needed operations anew, in stacks of at least so many."""
    needed = _needed_operations(expression)
    units = _ScheduleUnits(expression, needed)
    table = OperationTable(inputs, list(expression.arrays))
    stacker = _Stacker(expression.nodes, table, units.chains, least)
    groups: dict[Any, list[int]] = {}
    urgent: list[tuple[int, int, Any]] = []
    ready = units.ready_units()
    while ready or urgent:
        for number in ready:
            kind = stacker.stacking_key(number)
            groups.setdefault(kind, []).append(number)
            heapq.heappush(urgent, (-units.lengths[number], number, kind))
        _, number, kind = heapq.heappop(urgent)
        ready = []
        if number not in stacker.places:
            group = sorted(groups.pop(kind))
            stacker.record_group(group)
            ready = units.release_units(group)
    stacker.has_parts |= any(stacker.places[number].entry is not None for number in expression.outputs)
    return stacker


class _ScheduleUnits:
    """Units of scheduling by their first operation, and their dependences; a recurrence is one unit."""

    def __init__(self, expression: ArrayExpression, needed: Sequence[int]) -> None:
        self.chains = {chain.states[0]: chain for chain in find_chains(expression, needed)}
        unit_of = {state: first for first, chain in self.chains.items() for state in chain.states}
        inside = {*unit_of} | {product for chain in self.chains.values() for product in chain.products}
        needs = {number: expression.nodes[number].args for number in needed if number not in inside}
        needs |= {first: tuple(chain.needed_operations) for first, chain in self.chains.items()}
        self._waits = {unit: {unit_of.get(at, at) for at in args} for unit, args in needs.items()}
        self._users: dict[int, list[int]] = {unit: [] for unit in self._waits}
        for unit, others in self._waits.items():
            for other in others:
                self._users[other].append(unit)
        self._left = {unit: len(others) for unit, others in self._waits.items()}
        self.lengths = self._path_lengths()

    def ready_units(self) -> list[int]:
        """The units that wait for nothing."""
        return [unit for unit, left in self._left.items() if not left]

    def release_units(self, done: Sequence[int]) -> list[int]:
        """The units that wait for nothing any more after these are done."""
        found = []
        for user in (user for unit in done for user in self._users[unit]):
            self._left[user] -= 1
            if not self._left[user]:
                found.append(user)
        return found

    def _path_lengths(self) -> dict[int, int]:
        """For each unit the length of the longest path to a unit that no other waits for."""
        order = self.ready_units()
        left = dict(self._left)
        for unit in order:  # the list grows as units become ready
            for user in self._users[unit]:
                left[user] -= 1
                if not left[user]:
                    order.append(user)
        found: dict[int, int] = {}
        for unit in reversed(order):
            found[unit] = 1 + max((found[user] for user in self._users[unit]), default=0)
        return found


def _needed_operations(expression: ArrayExpression) -> list[int]:
    """The operations that the outputs need, in order."""
    found = {*expression.outputs}
    for number in range(len(expression.nodes) - 1, -1, -1):
        if number in found:
            found.update(expression.nodes[number].args)
    return sorted(found)


@dataclass
class _Stacker:
    nodes: Sequence[ExpressionNode]
    table: OperationTable
    chains: Mapping[int, RecurrenceChain]
    least: int
    """How many operations make a stack, if nothing has to be put together for it."""
    has_parts: bool = False
    """Whether something needs a single entry of a stack."""
    has_products: bool = False
    """Whether products of matrices are stacked, as those of heads are and windows of an image are not."""
    places: dict[int, _StackEntry] = field(default_factory=dict)
    _singles: dict[_StackEntry, int] = field(default_factory=dict)

    def stacking_key(self, number: int) -> Any:
        """Return the key that operations must share to be stacked."""
        node = self.nodes[number]
        if node.kind not in _STACKABLE_KINDS or number in self.chains:
            return number
        params = node.params[:2] if node.kind == "view" else node.params
        sources = tuple(self._source_key(self.places[at], exact=node.kind == "view") for at in node.args)
        return node.kind, params, sources, tuple(self.nodes[at].shape for at in node.args)

    def record_group(self, group: Sequence[int]) -> None:
        """Record a group of operations, as a stack where possible."""
        if group[0] in self.chains:
            self._record_recurrence(self.chains[group[0]])
            return
        is_stack = len(group) >= _MIN_STACKED or (len(group) >= self.least and self._lies_together(group))
        stack = self._stack_group(group) if is_stack else None
        self.has_products |= stack is not None and self.nodes[group[0]].kind == "matmul"
        for entry, number in enumerate(group):
            if stack is not None:
                self.places[number] = _StackEntry(stack, entry)
                continue
            node = self.nodes[number]
            if node.kind == "assemble":
                self.places[number] = _StackEntry(self._record_assembly(node))
                continue
            args = tuple(self.single_result(self.places[at]) for at in node.args)
            self.places[number] = _StackEntry(self.table.add(node.kind, args, node.params))

    def single_result(self, place: _StackEntry) -> int:
        """Return the operation that gives one result alone."""
        if place.entry is None:
            return place.number
        self.has_parts = True
        if place not in self._singles:
            shape = self.table.nodes[place.number].shape[1:]
            part = (shape, strides_of(shape), place.entry * prod(shape))
            self._singles[place] = self.table.add("view", (place.number,), part)
        return self._singles[place]

    def _source_key(self, place: _StackEntry, *, exact: bool) -> Any:
        """A key of a result's source: entries of one stack are alike, and so are unstacked results."""
        return place.number if exact or place.entry is not None else None

    def _lies_together(self, group: Sequence[int]) -> bool:
        """Whether each argument of a group is the same for all, or walks one stack evenly."""
        for at in range(len(self.nodes[group[0]].args)):
            places = [self.places[self.nodes[number].args[at]] for number in group]
            is_same = all(place == places[0] for place in places)
            is_stack = places[0].entry is not None and len({place.number for place in places}) == 1
            if self.nodes[group[0]].kind == "view" or is_same:
                continue
            if not is_stack or _common_step([place.entry for place in places]) is None:
                return False
        return True

    def _stack_group(self, group: Sequence[int]) -> int | None:
        first = self.nodes[group[0]]
        if first.kind == "view":
            return self._stack_views(group)
        rank = len(first.shape)
        args = tuple(
            self._stack_arguments([self.places[self.nodes[number].args[at]] for number in group], shape, rank)
            for at, shape in enumerate(self.nodes[at].shape for at in first.args)
        )
        params = first.params
        if first.kind == "reduce":
            params = (params[0], *(axis + 1 for axis in params[1:]))
        return self.table.add(first.kind, args, params)

    def _record_recurrence(self, chain: RecurrenceChain) -> None:
        shape = self.nodes[chain.states[0]].shape
        args = [
            self._stack_arguments(
                [self.places[at] for at in numbers], self.nodes[numbers[0]].shape, len(shape)
            )
            for numbers in (chain.factors, chain.terms)
        ]
        args.append(self.single_result(self.places[chain.initial]))
        stack = self.table.add("recurrence", tuple(args), (len(chain.states),))
        for entry, number in enumerate(chain.states):
            self.places[number] = _StackEntry(stack, entry)

    def _record_assembly(self, node: ExpressionNode) -> int:
        """Record an assembly; merge pieces that are adjacent both in a stack and in the result."""
        base, *pieces = (self.places[at] for at in node.args)
        args, params = [self.single_result(base)], []
        at = 0
        while at < len(pieces):
            end = self._find_run_end(node, pieces, at)
            run, (strides, offset) = pieces[at:end], node.params[at]
            if len(run) < self.least:
                args.append(self.single_result(pieces[at]))
                params.append((strides, offset))
                at += 1
                continue
            args.append(self._stack_arguments(run, self.table.nodes[run[0].number].shape[1:], 0))
            params.append(((node.params[at + 1][1] - offset, *strides), offset))
            at = end
        return self.table.add("assemble", tuple(args), tuple(params))

    def _find_run_end(self, node: ExpressionNode, pieces: Sequence[_StackEntry], at: int) -> int:
        """The end of the run of pieces from `at` that form one strided part of a stack and of the result."""
        end, first, (strides, offset) = at + 1, pieces[at].entry, node.params[at]
        if first is None or end == len(pieces):
            return end
        step, entries = node.params[end][1] - offset, (pieces[end].entry or 0) - first
        while (
            end < len(pieces)
            and pieces[end] == _StackEntry(pieces[at].number, first + (end - at) * entries)
            and node.params[end] == (strides, offset + (end - at) * step)
        ):
            end += 1
        shape = (end - at, *self.table.nodes[pieces[at].number].shape[1:])
        fits = entries and step and align_view(node.shape, shape, (step, *strides), offset) is not None
        return end if fits else at + 1

    def _stack_views(self, group: Sequence[int]) -> int | None:
        """Stack views of one array whose offsets have a common difference."""
        shape, strides, _ = self.nodes[group[0]].params
        places = [self.places[self.nodes[number].args[0]] for number in group]
        size = prod(self.nodes[self.nodes[group[0]].args[0]].shape)
        offsets = [
            self.nodes[number].params[2] + (place.entry or 0) * size
            for number, place in zip(group, places, strict=True)
        ]
        step = _common_step(offsets)
        if step is None:
            return None
        part = ((len(group), *shape), (step, *strides), offsets[0])
        return self.table.add("view", (places[0].number,), part)

    def _stack_arguments(self, places: Sequence[_StackEntry], shape: Shape, rank: int) -> int:
        """Return one argument of all operations of a group as an array with a leading axis for the group."""
        if all(place == places[0] for place in places):
            return self.single_result(places[0])
        padded = (len(places), *(1,) * (rank - len(shape)), *shape)
        inner = (*(0,) * (rank - len(shape)), *strides_of(shape))
        entries = [place.entry for place in places]
        step = _common_step(entries)
        if step is None or len({place.number for place in places}) > 1:
            return self._assemble_arguments(places, padded, strides_of(shape))
        if padded == self.table.nodes[places[0].number].shape and step == 1:
            return places[0].number
        part = (padded, (step * prod(shape), *inner), (places[0].entry or 0) * prod(shape))
        return self.table.add("view", (places[0].number,), part)

    def _assemble_arguments(self, places: Sequence[_StackEntry], padded: Shape, strides: Shape) -> int:
        base = self.table.add("unknown", (), padded)
        where = tuple((strides, entry * prod(padded[1:])) for entry in range(len(places)))
        return self.table.add("assemble", (base, *map(self.single_result, places)), where)


def _common_step(numbers: Sequence[int | None]) -> int | None:
    """The common difference of consecutive numbers; None if there is none, or a number is missing."""
    if None in numbers:
        return None
    steps = np.diff(np.array(numbers, np.int64))
    return int(steps[0]) if steps.size and (steps == steps[0]).all() else None
