"""Evens out engines by the cost table: which instructions go to other engines, which tiles to PSUM.

Moves are tried on the forms of instructions alone, without reading anything again: the best one is made
until none lowers the norm over the engines' busy times. What one move at a time cannot reach for a search
that judges each of them, all of them together often do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from agent_core.builtin.estimate import ENGINES, NORM, form_ns, tile_banks
from agent_core.builtin.model import Kernel, Statement
from agent_core.builtin.values import Tensor
from nki_sim.forms import Form
from nki_sim.operators import OPERATORS
from nki_sim.targets import Target

WORTHWHILE = 0.999
"""A move counts when it makes the norm at most this times what it was."""
MOST_MOVES = 32


@dataclass(frozen=True, slots=True)
class Balance:
    """Other engines by statement, and tiles that go to PSUM."""

    engines: Mapping[Statement, str] = field(default_factory=dict)
    tiles: frozenset[Tensor] = frozenset()

    def __len__(self) -> int:
        return len(self.engines) + len(self.tiles)


Moves = Callable[[Balance], Iterator[Balance]]


class Balancer:
    """The instructions of some part of a kernel, and what each of them may become."""

    def __init__(
        self,
        kernel: Kernel,
        target: Target,
        engines: Mapping[Statement, tuple[str, ...]],
        tiles: frozenset[Tensor],
    ) -> None:
        """`engines` are those that a statement may go to, `tiles` those that may go to PSUM."""
        self._target = target
        self._engines = engines
        self._tiles = tiles
        self._all = list(kernel.operations())
        self._costs: dict[tuple[Statement, str, frozenset[int]], dict[str, float] | None] = {}
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
        return min(ends, key=lambda end: self._norm(end) or float("inf"))

    def _improved(self, now: Balance, moves: Moves) -> Balance:
        """What the most useful moves lead to, one after the other."""
        norm = self._norm(now)
        for _ in range(MOST_MOVES):
            tried = [(value, move) for move in moves(now) if (value := self._norm(move)) is not None]
            best = min(tried, key=lambda item: item[0], default=None)
            if norm is None or best is None or best[0] > WORTHWHILE * norm:
                break
            norm, now = best
        return now

    def _moves(self, now: Balance) -> Iterator[Balance]:
        for item, names in self._engines.items():
            for name in (item.engine, *names):
                if now.engines.get(item, item.engine) != name:
                    yield replace(now, engines={**now.engines, item: name})
        yield from self._placements(now)

    def _placements(self, now: Balance) -> Iterator[Balance]:
        for tile in sorted(self._tiles - now.tiles, key=lambda tile: tile.id):
            yield replace(now, tiles=now.tiles | {tile})

    def _norm(self, balance: Balance) -> float | None:
        """The norm over the engines' busy times; None where a rule would be broken."""
        moved = frozenset(tile.id for tile in balance.tiles)
        if (
            self._banks + sum(tile_banks(tile, self._target) for tile in balance.tiles)
            > self._target.psum_banks
        ):
            return None
        busy = dict.fromkeys(ENGINES, 0.0)
        for item in self._all:
            cost = self._cost(item, balance.engines.get(item, item.engine), moved)
            if cost is None:
                return None
            for engine, nanoseconds in cost.items():
                busy[engine] += nanoseconds * item.trips
        return float(sum(value**NORM for value in busy.values()) ** (1 / NORM))

    def _cost(self, item: Statement, engine: str, moved: frozenset[int]) -> dict[str, float] | None:
        mine = frozenset(access.tensor.id for access in item.accesses) & moved
        key = (item, engine, mine)
        if key not in self._costs:
            self._costs[key] = self._worked_out(item, engine, mine)
        return self._costs[key]

    def _worked_out(self, item: Statement, engine: str, moved: frozenset[int]) -> dict[str, float] | None:
        form = _moved(item, engine, moved)
        operator = OPERATORS[form.op]
        if moved or engine != item.engine:
            placed = all(op.buffer in operator.by_name[op.role].buffers for op in form.operands)
            reached = engine != "gpsimd" or all(op.buffer != "psum" for op in form.operands)
            if not placed or not reached or any(True for _ in operator.breaches(form, self._target)):
                return None
        return form_ns(form, self._target)


def _moved(item: Statement, engine: str, moved: frozenset[int]) -> Form:
    """The form of an instruction on an engine, with some tiles in PSUM."""
    form = item.form
    assert form is not None
    ids = {access.role: access.tensor.id for access in item.accesses}
    operands = tuple(
        replace(operand, buffer="psum") if ids.get(operand.role) in moved else operand
        for operand in form.operands
    )
    return replace(form, engine=engine, operands=operands)
