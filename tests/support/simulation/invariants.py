"""What must hold after every event of every history, told apart from how the fold comes to it.

`Watch` follows all that a log stores, in a memory of its own that outlives the process. Each check gets the
trail of the run before the event, the event and the fold's state after it, and returns what is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from state import fold, queries, system
from state.appender import Appender
from state.events import (
    BudgetSpent,
    CommandCompleted,
    CommandReceived,
    CommandRejected,
    EffectEnded,
    EffectStarted,
    Event,
    KernelRefuted,
    RoundCompleted,
    RoundDeadlinePassed,
    RunForked,
    effect_key,
)
from state.model import SYSTEM_STREAM, Role, RunStatus
from state.reader import LogReader
from state.records import Row
from state.run import RunState, by_person
from state.upcast import decode


class Violation(AssertionError):
    """Something that must never happen has happened."""


@dataclass(slots=True)
class Trail:
    """What is known of one run, from its events alone."""

    states: list[RunState] = field(default_factory=list)
    ended: dict[str, int] = field(default_factory=dict)
    started: dict[str, EffectStarted] = field(default_factory=dict)
    over: dict[int, int] = field(default_factory=dict)
    """When each round took no more results, by the event's number."""
    spent_usd: float = 0.0

    def cut(self, at: int) -> Trail:
        """Return the trail of a run that continues this one from its event number `at`.

        What came after a cancel was only charged, and the end of a run takes its outcomes away: neither is
        one there.
        """
        kept = {key: seq for key, seq in self.ended.items() if seq <= at and not self._cancelled(seq)}
        return Trail(
            states=self.states[:at],
            ended={} if self.states[at - 1].status is RunStatus.COMPLETED else kept,
            over={round_: seq for round_, seq in self.over.items() if seq <= at},
            spent_usd=self.states[at - 1].spent_usd,
        )

    def _cancelled(self, seq: int) -> bool:
        return self.states[seq - 1].status is RunStatus.CANCELLED

    def note(self, event: Event, state: RunState) -> None:
        self.states.append(state)
        number = len(self.states)
        match event:
            case EffectStarted(key=key):
                self.started[key] = event
            case EffectEnded(key=key, usage=usage):
                self.ended[key] = number
                self.spent_usd += usage.cost_usd or 0.0
            case BudgetSpent(amount_usd=amount):
                self.spent_usd += amount
            case RoundDeadlinePassed(round=round_) | RoundCompleted(round=round_):
                self.over.setdefault(round_, number)
            case RunForked():
                self.spent_usd = state.spent_usd


Check = Callable[[Trail, Event, RunState], str | None]


def one_outcome(trail: Trail, event: Event, after: RunState) -> str | None:
    if isinstance(event, EffectEnded) and event.key in trail.ended:
        return f"{event.key} has two outcomes"
    return None


def outcomes_were_asked_for(trail: Trail, event: Event, after: RunState) -> str | None:
    if isinstance(event, EffectEnded) and event.key not in trail.started and not by_person(event):
        return f"{event.key} has an outcome and no start"
    return None


def redelivered_as_logged(trail: Trail, event: Event, after: RunState) -> str | None:
    if not isinstance(event, EffectStarted):
        return None
    before = trail.started.get(event.key)
    if event.key in trail.ended:
        return f"{event.key} was started after its outcome"
    if event.delivery != (before.delivery if before else 0) + 1:
        return f"{event.key}: delivery {event.delivery} out of order"
    if before is not None and before.request != event.request:
        return f"{event.key} was delivered again with another request"
    return None


def best_only_improves(trail: Trail, event: Event, after: RunState) -> str | None:
    """But for a recorded contradiction: the best was wrong."""
    before = trail.states[-1].best if trail.states else None
    if before is None or isinstance(event, KernelRefuted):
        return None
    if isinstance(event, RunForked) or (after.best and after.best.latency_ms <= before.latency_ms):
        return None
    return f"the best went from {before.latency_ms} ms to {after.best and after.best.latency_ms}"


def late_results_stay_out(trail: Trail, event: Event, after: RunState) -> str | None:
    """A round that is over takes no more results; a late kernel has a place of its own."""
    if not isinstance(event, EffectEnded) or by_person(event):
        return None
    key = effect_key(event)
    proposing = key.role in (Role.PLANNER, Role.EXECUTOR, Role.EVALUATOR)
    if proposing and key.round in trail.over and event.key in after.outcomes:
        return f"{event.key} counts although round {key.round} is over"
    return None


def nothing_starts_in_a_run_that_rests(trail: Trail, event: Event, after: RunState) -> str | None:
    if not trail.states or trail.states[-1].status is RunStatus.RUNNING:
        return None
    before = trail.states[-1]
    if isinstance(event, EffectStarted):
        return f"{event.key} was started in a run that is {before.status}"
    if before.status is RunStatus.COMPLETED and not isinstance(event, RunForked):
        return f"{type(event).__name__} in a run that is over"
    return None


def pauses_have_a_reason(trail: Trail, event: Event, after: RunState) -> str | None:
    if after.status is RunStatus.PAUSED and not after.status_reason:
        return "the run is paused for no reason"
    return None


def money_adds_up(trail: Trail, event: Event, after: RunState) -> str | None:
    """All that is spent was charged by an event, and all that is reserved is for what is in flight."""
    held = sum(one.reserved_usd for one in after.open.values())
    spent = trail.spent_usd + (event.usage.cost_usd or 0.0 if isinstance(event, EffectEnded) else 0.0)
    if isinstance(event, BudgetSpent):
        spent += event.amount_usd
    if not isinstance(event, RunForked) and after.spent_usd != spent:
        return f"${spent} was charged, the state says ${after.spent_usd}"
    return None if after.reserved_usd == held else f"${held} is held, the state says ${after.reserved_usd}"


CHECKS: tuple[Check, ...] = (
    one_outcome,
    outcomes_were_asked_for,
    redelivered_as_logged,
    best_only_improves,
    late_results_stay_out,
    nothing_starts_in_a_run_that_rests,
    pauses_have_a_reason,
    money_adds_up,
)


@dataclass(slots=True)
class Watch:
    """All that was ever seen stored, over the whole life of a world."""

    say: Callable[[str, Row], None] = lambda stream, row: None
    rows: list[tuple[int, bytes]] = field(default_factory=list)
    trails: dict[str, Trail] = field(default_factory=dict)
    system: system.SystemState | None = None
    commands: int = 0
    """Events of the system stream."""
    received: dict[str, str] = field(default_factory=dict)
    answered: set[str] = field(default_factory=set)

    def look(self, appender: Appender) -> None:
        """Take in what was stored since the last look, and compare what the log holds in memory."""
        moved = self._take(queries.log_rows(appender.connection, after=len(self.rows)))
        for stream in moved:
            tip = appender.tip(stream)
            if tip is not None and tip.run_seq == self._last(stream)[0]:
                self._same(stream, tip.state, "the writer's state")

    def opened(self, appender: Appender) -> None:
        """Check a log that was opened again: all that was seen is there, and folds to what it was."""
        if self.rows:
            seq, hash_ = self.rows[-1]
            row = queries.row_at(appender.connection, seq)
            if row is None or row.hash != hash_:
                raise Violation(f"event {seq} was stored and is lost")
        self._take(queries.log_rows(appender.connection, after=len(self.rows)))

    def folded(self, reader: LogReader) -> None:
        """Compare each state that a reader derives, by whatever snapshots there are, with the fold."""
        for stream in self.trails:
            self._same(stream, reader.state(stream), "the stored state")
        if self.system is not None:
            self._same(SYSTEM_STREAM, reader.system(), "the stored state")

    def _take(self, rows: Iterable[Row]) -> dict[str, None]:
        moved: dict[str, None] = {}
        for row in rows:
            self.rows.append((row.seq, row.hash))
            self.say(row.stream, row)
            event = decode(row)
            if row.stream == SYSTEM_STREAM:
                self._command(event)
            else:
                self._step(row.stream, event, row.run_seq)
            moved[row.stream] = None
        return moved

    def _step(self, stream: str, event: Event, run_seq: int) -> None:
        trail = self.trails.get(stream)
        if trail is None:
            trail = self.trails[stream] = self._begin(event)
        if run_seq != len(trail.states) + 1:
            raise Violation(f"{stream}: event {run_seq} follows {len(trail.states)}")
        after = fold.apply(trail.states[-1] if trail.states else None, event)
        for check in CHECKS:
            wrong = check(trail, event, after)
            if wrong is not None:
                raise Violation(f"{stream}@{run_seq} {type(event).__name__}: {check.__name__}: {wrong}")
        trail.note(event, after)

    def _begin(self, event: Event) -> Trail:
        return self.trails[event.parent].cut(event.parent_seq) if isinstance(event, RunForked) else Trail()

    def _command(self, event: Event) -> None:
        self.system = system.apply(self.system, event)
        self.commands += 1
        match event:
            case CommandReceived(id=id_):
                if id_ in self.received:
                    raise Violation(f"command {id_} was taken in twice")
                self.received[id_] = event.payload
            case CommandCompleted(id=id_) | CommandRejected(id=id_):
                if id_ in self.answered:
                    raise Violation(f"command {id_} has two answers")
                self.answered.add(id_)

    def _last(self, stream: str) -> tuple[int, Any]:
        """Return a stream's last event's number and the state after it."""
        if stream == SYSTEM_STREAM:
            return self.commands, self.system
        states = self.trails[stream].states
        return len(states), states[-1]

    def _same(self, stream: str, state: Any, what: str) -> None:
        number, known = self._last(stream)
        hashed = system.state_hash if stream == SYSTEM_STREAM else fold.state_hash
        if state != known and hashed(state) != hashed(known):  # equal states have equal hashes
            raise Violation(f"{stream}@{number}: {what} is not the fold of its events")
