"""Evens out engines by the cost table: which instructions go to other engines, whole or in part, which tiles
to PSUM, and of which VectorE reads a copy there.

Moves are tried on the forms of instructions alone, without reading anything again: the best one is made
until none lowers the norm over the engines' busy times. What one move at a time cannot reach for a search
that judges each of them, all of them together often do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from nki_sim.forms import Form
from nki_sim.operators import OPERATORS
from nki_sim.targets import Target
from targets.nki.rewrites.columns import even_columns, narrowed, runs_on, width_of
from targets.nki.rewrites.estimate import ENGINES, NORM, form_ns, tile_banks
from targets.nki.rewrites.model import Kernel, Statement
from targets.nki.rewrites.values import Tensor

WORTHWHILE = 0.999
"""A move counts when it makes the norm at most this times what it was."""
MOST_MOVES = 32


class Part(NamedTuple):
    """The last columns of an instruction, which another engine does."""

    engine: str
    columns: int


@dataclass(frozen=True, slots=True)
class Balance:
    """Other engines by statement, parts that others do, tiles that go to PSUM or have a copy there."""

    engines: Mapping[Statement, str] = field(default_factory=dict)
    tiles: frozenset[Tensor] = frozenset()
    parts: Mapping[Statement, Part] = field(default_factory=dict)
    copies: frozenset[Tensor] = frozenset()

    def __len__(self) -> int:
        return len(self.engines) + len(self.tiles) + len(self.parts) + len(self.copies)

    def engine(self, item: Statement) -> str:
        """Where an instruction runs, or the first part of it."""
        return self.engines.get(item, item.engine)

    def copy_read(self, item: Statement, engine: str) -> Tensor | None:
        """The tile of which an instruction reads the copy when it runs on an engine."""
        inputs = [access.tensor for access in item.accesses if not access.writes]
        if engine != "vector" or item.op != "tensor_tensor":
            return None
        if any(tile in self.tiles or tile.buffer != "sbuf" for tile in inputs):
            return None
        return next((tile for tile in inputs if tile in self.copies and inputs.count(tile) == 1), None)


Busy = Mapping[str, float]
"""Nanoseconds by engine."""
Move = tuple[Balance, Iterable[Statement]]
"""What a move leads to, and the statements that cost something else then."""
Key = tuple[Statement, str, Part | None, AbstractSet[Tensor], AbstractSet[Tensor]]
"""What the cost of a statement depends on."""
Moves = Callable[[Balance, Busy], Iterator[Move]]


@dataclass(frozen=True, slots=True)
class Freedom:
    """What may be moved: `engines` that a statement may go to, `tiles` that may go to PSUM.

    Statements that are `shared` may be cut by columns between two engines; tiles that are `copied` may have a
    copy in PSUM, made behind a statement.
    """

    engines: Mapping[Statement, tuple[str, ...]]
    tiles: frozenset[Tensor] = frozenset()
    shared: frozenset[Statement] = frozenset()
    copied: Mapping[Tensor, Statement] = field(default_factory=dict)


class Balancer:
    """The instructions of some part of a kernel, and what each of them may become."""

    def __init__(self, kernel: Kernel, target: Target, freedom: Freedom) -> None:
        self._kernel = kernel
        self._target = target
        self._free = freedom
        self._all = list(kernel.operations())
        self._costs: dict[Key, Busy | None] = {}
        self._banks = sum(
            tile_banks(item.tensor, target)
            for item in kernel.declarations.values()
            if item.tensor is not None and item.tensor.buffer == "psum"
        )

    def balance(self) -> Balance:
        """The moves that even out the engines; none where no move helps.

        GpSimd does not reach PSUM, so that one kind of move shuts out the other: both are tried first.
        """
        start = Balance()
        placed = self._improved(start, self._placements)
        ends = [self._improved(first, self._moves) for first in (start, placed)]
        return min(ends, key=lambda end: _norm(self._busy(end)))

    def _improved(self, now: Balance, moves: Moves) -> Balance:
        """What the most useful moves lead to, one after the other."""
        busy = self._busy(now)
        for _ in range(MOST_MOVES):
            tried = [
                (value, move, after)
                for move, items in moves(now, busy)
                if (after := self._after(busy, now, move, items)) is not None
                and (value := _norm(after)) <= WORTHWHILE * _norm(busy)
            ]
            if not tried:
                break
            _, now, busy = min(tried, key=lambda one: one[0])
        return now

    def _moves(self, now: Balance, busy: Busy) -> Iterator[Move]:
        for item, names in self._free.engines.items():
            whole = replace(now, parts={key: part for key, part in now.parts.items() if key is not item})
            for name in (item.engine, *names):
                if now.engine(item) != name or item in now.parts:
                    yield replace(whole, engines=_with_engine(now, item, name)), (item,)
            if item in self._free.shared:
                yield from self._cuts(now, busy, whole, item)
        yield from self._placements(now, busy)

    def _cuts(self, now: Balance, busy: Busy, whole: Balance, item: Statement) -> Iterator[Move]:
        """Between where the instruction runs and each of the other engines, so that the two come out even."""
        here, uncut, cost = now.engine(item), self._after(busy, now, whole, (item,)), self._cost(item, whole)
        if uncut is None or cost is None:
            return
        for name in (item.engine, *self._free.engines[item]):
            other = self._cost(item, replace(whole, engines=_with_engine(whole, item, name)))
            if name == here or other is None:
                continue
            mine, theirs = cost[here] * item.trips, other[name] * item.trips
            columns = even_columns(uncut[here], uncut[name], mine, theirs, width_of(item))
            part = Part(name, columns)
            if columns and now.parts.get(item) != part:
                yield replace(whole, parts={**whole.parts, item: part}), (item,)

    def _placements(self, now: Balance, busy: Busy) -> Iterator[Move]:
        del busy
        for tile in sorted(self._free.tiles - now.tiles, key=lambda tile: tile.id):
            yield replace(now, tiles=now.tiles | {tile}), self._kernel.users(tile)
        for tile in sorted(self._free.copied.keys() - now.copies, key=lambda tile: tile.id):
            yield replace(now, copies=now.copies | {tile}), self._kernel.users(tile)

    def _busy(self, balance: Balance) -> Busy:
        busy = dict.fromkeys(ENGINES, 0.0)
        for item in self._all:
            _add(busy, self._cost(item, balance) or {}, item.trips)
        for tile in sorted(balance.copies, key=lambda tile: tile.id):
            self._add_copy(busy, tile)
        return busy

    def _after(self, busy: Busy, now: Balance, move: Balance, items: Iterable[Statement]) -> Busy | None:
        """The busy times after a move; None where a rule would be broken."""
        banks = sum(tile_banks(tile, self._target) for tile in (*move.tiles, *move.copies))
        if self._banks + banks > self._target.psum_banks:
            return None
        after = dict(busy)
        for item in items:
            new = self._cost(item, move)
            if new is None:
                return None
            _add(after, self._cost(item, now) or {}, -item.trips)
            _add(after, new, item.trips)
        for tile in sorted(move.copies - now.copies, key=lambda tile: tile.id):
            self._add_copy(after, tile)
        return after

    def _add_copy(self, busy: dict[str, float], tile: Tensor) -> None:
        """The time of the copy of a tile to PSUM."""
        made = self._free.copied[tile]
        assert made.form is not None
        src = made.form["dst"]
        operands = (replace(src, buffer="psum"), replace(src, role="src"))
        form = Form("tensor_copy", copying_engine(self._target), operands, ())
        _add(busy, form_ns(form, self._target), made.trips)

    def _cost(self, item: Statement, balance: Balance) -> Busy | None:
        inputs = frozenset(access.tensor for access in item.accesses)
        moved, engine, part = inputs & balance.tiles, balance.engine(item), balance.parts.get(item)
        copies = inputs & balance.copies
        key = (item, engine, part, moved, copies)
        if key not in self._costs:
            self._costs[key] = self._worked_out(item, balance)
        return self._costs[key]

    def _worked_out(self, item: Statement, balance: Balance) -> Busy | None:
        engine, part = balance.engine(item), balance.parts.get(item)
        if part is None:
            return self._form_ns(item, item.form, engine, balance)
        width = width_of(item)
        total: dict[str, float] = {}
        for name, columns in ((engine, width - part.columns), part):
            cost = self._form_ns(item, narrowed(item, columns), name, balance)
            if cost is None:
                return None
            _add(total, cost, 1)
        return total

    def _form_ns(self, item: Statement, form: Form | None, engine: str, balance: Balance) -> Busy | None:
        assert form is not None
        copy = balance.copy_read(item, engine)
        there = balance.tiles if copy is None else balance.tiles | {copy}
        made = replace(_placed(item, form, there), engine=engine)
        if made.operands != form.operands or engine != item.engine:
            operator = OPERATORS[form.op]
            stands = all(op.buffer in operator.by_name[op.role].buffers for op in made.operands)
            if not stands or not runs_on(made, engine, self._target):
                return None
        return form_ns(made, self._target)


def copying_engine(target: Target) -> str:
    """What makes copies in PSUM: ScalarE, where it copies."""
    return "scalar" if target.scalar_tensor_copy else "vector"


def _with_engine(now: Balance, item: Statement, name: str) -> Mapping[Statement, str]:
    others = {key: value for key, value in now.engines.items() if key is not item}
    return others if name == item.engine else {**others, item: name}


def _add(busy: dict[str, float], cost: Busy, times: float) -> None:
    for engine, nanoseconds in cost.items():
        busy[engine] = busy.get(engine, 0.0) + nanoseconds * times


def _norm(busy: Busy) -> float:
    """The norm over the engines' busy times."""
    return float(sum(max(value, 0.0) ** NORM for value in busy.values()) ** (1 / NORM))


def _placed(item: Statement, form: Form, there: frozenset[Tensor]) -> Form:
    """A form of an instruction with some tiles in PSUM."""
    moved = {access.role for access in item.accesses if access.tensor in there}
    operands = tuple(
        replace(operand, buffer="psum") if operand.role in moved else operand for operand in form.operands
    )
    return replace(form, operands=operands)
