"""Balances engines by the cost table: moves instructions or parts of them to other engines, tiles to PSUM.

VectorE may also read a copy of a tile in PSUM. Moves are tried only on the forms of instructions, without
reading the kernel again. The best move is made repeatedly until none lowers the norm over the engines' busy
times. All moves together often reach what a search that judges each move alone cannot.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from nki_sim.forms import Form
from nki_sim.operators import OPERATORS
from nki_sim.targets import Target
from targets.nki.rewrites.column_splits import balanced_columns, narrow_form, result_width
from targets.nki.rewrites.engine_moves import can_run_on, form_on
from targets.nki.rewrites.estimate import ENGINES, NORM, form_ns, tile_banks
from targets.nki.rewrites.kernel_ir import Kernel, Statement
from targets.nki.rewrites.values import Tensor

IMPROVEMENT_RATIO = 0.999
"""A move counts if it multiplies the norm by at most this."""
MAX_MOVES = 32


class ColumnShare(NamedTuple):
    """The last columns of an instruction, which another engine computes."""

    engine: str
    columns: int


@dataclass(frozen=True, slots=True)
class EngineBalance:
    """The changed engines by statement, the split parts, and the tiles that are moved or copied to PSUM."""

    engines: Mapping[Statement, str] = field(default_factory=dict)
    tiles: frozenset[Tensor] = frozenset()
    parts: Mapping[Statement, ColumnShare] = field(default_factory=dict)
    copies: frozenset[Tensor] = frozenset()

    def __len__(self) -> int:
        return len(self.engines) + len(self.tiles) + len(self.parts) + len(self.copies)

    def engine_of(self, item: Statement) -> str:
        """The engine that runs an instruction, or its first part."""
        return self.engines.get(item, item.engine)

    def find_copy_read(self, item: Statement, engine: str) -> Tensor | None:
        """The tile whose copy an instruction reads when it runs on an engine."""
        inputs = [access.tensor for access in item.accesses if not access.writes]
        if engine != "vector" or item.op != "tensor_tensor":
            return None
        if any(tile in self.tiles or tile.buffer != "sbuf" for tile in inputs):
            return None
        return next((tile for tile in inputs if tile in self.copies and inputs.count(tile) == 1), None)


BusyTimes = Mapping[str, float]
"""Nanoseconds by engine."""
BalanceMove = tuple[EngineBalance, Iterable[Statement]]
"""The result of a move, and the statements whose cost changes."""
CostKey = tuple[Statement, str, ColumnShare | None, AbstractSet[Tensor], AbstractSet[Tensor]]
"""Everything that the cost of a statement depends on."""
MoveGenerator = Callable[[EngineBalance, BusyTimes], Iterator[BalanceMove]]


@dataclass(frozen=True, slots=True)
class MoveOptions:
    """The possible moves: `engines` that a statement may use, `tiles` that may go to PSUM.

    Statements in `shared` may be split by columns between two engines. Tiles in `copied` may get a copy in
    PSUM, made after a statement.
    """

    engines: Mapping[Statement, tuple[str, ...]]
    tiles: frozenset[Tensor] = frozenset()
    shared: frozenset[Statement] = frozenset()
    copied: Mapping[Tensor, Statement] = field(default_factory=dict)


class EngineBalancer:
    """The instructions of a part of a kernel, and the possible changes to each."""

    def __init__(self, kernel: Kernel, target: Target, freedom: MoveOptions) -> None:
        self._kernel = kernel
        self._target = target
        self._free = freedom
        self._all = list(kernel.operations())
        self._costs: dict[CostKey, BusyTimes | None] = {}
        self._banks = sum(
            tile_banks(item.tensor, target)
            for item in kernel.declarations.values()
            if item.tensor is not None and item.tensor.buffer == "psum"
        )

    def balance(self) -> EngineBalance:
        """Return the moves that balance the engines; empty if no move helps.

        GpSimd cannot reach PSUM, so the two kinds of moves exclude each other: each is tried first once.
        """
        start = EngineBalance()
        placed = self._improve_greedily(start, self._placement_moves)
        ends = [self._improve_greedily(first, self._all_moves) for first in (start, placed)]
        return min(ends, key=lambda end: _busy_norm(self._total_busy_times(end)))

    def _improve_greedily(self, now: EngineBalance, moves: MoveGenerator) -> EngineBalance:
        """The result of the most useful moves, one after the other."""
        busy = self._total_busy_times(now)
        for _ in range(MAX_MOVES):
            tried = [
                (value, move, after)
                for move, items in moves(now, busy)
                if (after := self._busy_times_after(busy, now, move, items=items)) is not None
                and (value := _busy_norm(after)) <= IMPROVEMENT_RATIO * _busy_norm(busy)
            ]
            if not tried:
                break
            _, now, busy = min(tried, key=lambda one: one[0])
        return now

    def _all_moves(self, now: EngineBalance, busy: BusyTimes) -> Iterator[BalanceMove]:
        for item, names in self._free.engines.items():
            whole = replace(now, parts={key: part for key, part in now.parts.items() if key is not item})
            for name in (item.engine, *names):
                if now.engine_of(item) != name or item in now.parts:
                    yield replace(whole, engines=_with_engine(now, item, name)), (item,)
            if item in self._free.shared:
                yield from self._column_share_moves(now, busy, whole, item=item)
        yield from self._placement_moves(now, busy)

    def _column_share_moves(
        self, now: EngineBalance, busy: BusyTimes, whole: EngineBalance, *, item: Statement
    ) -> Iterator[BalanceMove]:
        """Splits between the instruction's engine and each other engine, such that both take equally long."""
        here, uncut, cost = (
            now.engine_of(item),
            self._busy_times_after(busy, now, whole, items=(item,)),
            self._statement_cost(item, whole),
        )
        if uncut is None or cost is None:
            return
        for name in (item.engine, *self._free.engines[item]):
            other = self._statement_cost(item, replace(whole, engines=_with_engine(whole, item, name)))
            if name == here or other is None:
                continue
            mine, theirs = cost[here] * item.trips, other[name] * item.trips
            columns = balanced_columns(uncut[here], uncut[name], mine, theirs, result_width(item))
            part = ColumnShare(name, columns)
            if columns and now.parts.get(item) != part:
                yield replace(whole, parts={**whole.parts, item: part}), (item,)

    def _placement_moves(self, now: EngineBalance, busy: BusyTimes) -> Iterator[BalanceMove]:
        del busy
        for tile in sorted(self._free.tiles - now.tiles, key=lambda tile: tile.id):
            yield replace(now, tiles=now.tiles | {tile}), self._kernel.users_of(tile)
        for tile in sorted(self._free.copied.keys() - now.copies, key=lambda tile: tile.id):
            yield replace(now, copies=now.copies | {tile}), self._kernel.users_of(tile)

    def _total_busy_times(self, balance: EngineBalance) -> BusyTimes:
        busy = dict.fromkeys(ENGINES, 0.0)
        for item in self._all:
            _add_times(busy, self._statement_cost(item, balance) or {}, item.trips)
        for tile in sorted(balance.copies, key=lambda tile: tile.id):
            self._add_copy_time(busy, tile)
        return busy

    def _busy_times_after(
        self, busy: BusyTimes, now: EngineBalance, move: EngineBalance, *, items: Iterable[Statement]
    ) -> BusyTimes | None:
        """The busy times after a move; None if it would break a rule."""
        banks = sum(tile_banks(tile, self._target) for tile in (*move.tiles, *move.copies))
        if self._banks + banks > self._target.psum_banks:
            return None
        after = dict(busy)
        for item in items:
            new = self._statement_cost(item, move)
            if new is None:
                return None
            _add_times(after, self._statement_cost(item, now) or {}, -item.trips)
            _add_times(after, new, item.trips)
        for tile in sorted(move.copies - now.copies, key=lambda tile: tile.id):
            self._add_copy_time(after, tile)
        return after

    def _add_copy_time(self, busy: dict[str, float], tile: Tensor) -> None:
        """Add the time to copy a tile to PSUM."""
        made = self._free.copied[tile]
        assert made.form is not None
        src = made.form["dst"]
        operands = (replace(src, buffer="psum"), replace(src, role="src"))
        form = Form("tensor_copy", psum_copy_engine(self._target), operands, ())
        _add_times(busy, form_ns(form, self._target), made.trips)

    def _statement_cost(self, item: Statement, balance: EngineBalance) -> BusyTimes | None:
        inputs = frozenset(access.tensor for access in item.accesses)
        moved, engine, part = inputs & balance.tiles, balance.engine_of(item), balance.parts.get(item)
        copies = inputs & balance.copies
        key = (item, engine, part, moved, copies)
        if key not in self._costs:
            self._costs[key] = self._compute_cost(item, balance)
        return self._costs[key]

    def _compute_cost(self, item: Statement, balance: EngineBalance) -> BusyTimes | None:
        engine, part = balance.engine_of(item), balance.parts.get(item)
        if part is None:
            return self._form_cost(item, item.form, engine, balance=balance)
        width = result_width(item)
        total: dict[str, float] = {}
        for name, columns in ((engine, width - part.columns), part):
            cost = self._form_cost(item, narrow_form(item, columns), name, balance=balance)
            if cost is None:
                return None
            _add_times(total, cost, 1)
        return total

    def _form_cost(
        self, item: Statement, form: Form | None, engine: str, *, balance: EngineBalance
    ) -> BusyTimes | None:
        assert form is not None
        copy = balance.find_copy_read(item, engine)
        there = balance.tiles if copy is None else balance.tiles | {copy}
        made = form_on(_form_in_psum(item, form, there), engine)
        if made.operands != form.operands or engine != item.engine:
            operator = OPERATORS[made.op]
            stands = all(op.buffer in operator.arguments_by_name[op.role].buffers for op in made.operands)
            if not stands or not can_run_on(made, engine, self._target):
                return None
        return form_ns(made, self._target)


def psum_copy_engine(target: Target) -> str:
    """The engine that makes copies in PSUM: ScalarE, if it can copy."""
    return "scalar" if target.scalar_tensor_copy else "vector"


def _with_engine(now: EngineBalance, item: Statement, name: str) -> Mapping[Statement, str]:
    others = {key: value for key, value in now.engines.items() if key is not item}
    return others if name == item.engine else {**others, item: name}


def _add_times(busy: dict[str, float], cost: BusyTimes, times: float) -> None:
    for engine, nanoseconds in cost.items():
        busy[engine] = busy.get(engine, 0.0) + nanoseconds * times


def _busy_norm(busy: BusyTimes) -> float:
    """The norm over the engines' busy times."""
    return float(sum(max(value, 0.0) ** NORM for value in busy.values()) ** (1 / NORM))


def _form_in_psum(item: Statement, form: Form, there: frozenset[Tensor]) -> Form:
    """The form of an instruction with some tiles in PSUM."""
    moved = {access.role for access in item.accesses if access.tensor in there}
    operands = tuple(
        replace(operand, buffer="psum") if operand.role in moved else operand for operand in form.operands
    )
    return replace(form, operands=operands)
