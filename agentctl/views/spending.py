"""What a run cost and how its time was spent: money by role and model and over time, time by kind of
work.

A fork's money includes its ancestors', as its budget does; its time is its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from agentctl.views.series import last_run_seq, require_event
from agentctl.views.walk import walk_events
from state.events import (
    CallEnded,
    CallLost,
    CallStarted,
    EffectEnded,
    EffectStarted,
    EvaluationCompleted,
    EvaluationStarted,
    Event,
    RunPaused,
    RunResumed,
)
from state.reader import LogReader
from state.records import RecordedEvent

KINDS = ("models", "proposing", "compile", "execute", "paused", "idle")
MODELS, PROPOSING, COMPILE, EXECUTE, PAUSED, IDLE = KINDS
"""The kinds of a run's time: questions to models, proposers on this machine, evaluations until there is
a program to execute, the rest of evaluations, pauses, and idle time (nothing under way, or nobody
advanced the run).
"""

COMPILE_STAGES = frozenset(
    {"lint", "jail", "retrace", "draw", "trace", "compile", "rules", "transfer", "queue"}
)
"""Stages of an evaluation before anything is executed, by the names that evaluators give them."""

MAX_POINTS = 400
"""The maximum number of points of a curve."""


@dataclass(frozen=True, slots=True)
class RoleSpend:
    """What one role spent with one model (None: no model). `usd` is None if a price is unknown."""

    role: str
    model: str | None
    calls: int
    answered: int
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    usd: float | None


@dataclass(frozen=True, slots=True)
class SpendPoint:
    """The money spent up to `seconds` after the start of the run, at known prices."""

    seconds: float
    usd: float


@dataclass(frozen=True, slots=True)
class Spending:
    """A run's money (US$) and time (s).

    `usd` is None if a price is unknown; `priced_usd` is the known part. `seconds` is the wall-clock time
    from the run's first event to its latest. `split` is the same by kind of work: a moment with several
    kinds is shared equally among them, so that the parts add up. `stage_seconds` are the sums of
    evaluations' stages.
    """

    run: str
    usd: float | None
    priced_usd: float
    unpriced: int
    calls: int
    tokens: int
    spent: tuple[RoleSpend, ...]
    curve: tuple[SpendPoint, ...]
    seconds: float
    split: dict[str, float]
    stage_seconds: dict[str, float]


def load_spending(reader: LogReader, run: str, *, at: int | None = None) -> Spending:
    """Return what a run cost and how its time was spent; with `at`, as it was after that event of the
    run.

    Raises:
        StreamUnknown: there is no such run.
        UnknownEvent: it has no such event.
    """
    found = SpendingWalk(run)
    for _ in walk_events(reader, run, found, upto=None if at is None else require_event(reader, run, at).seq):
        pass
    return found.build_spending(reader, at=at)


class SpendingWalk:
    """One pass over a run's events that collects its cost and its times."""

    types = (
        "RunCreated", "RunForked", "RunPaused", "RunResumed", "RunCancelled", "RunCompleted",
        "RoundStarted", "RoundCompleted",
        "PredictionStarted", "PredictionBatch", "PlanStarted", "PlanProposed", "PlanFailed",
        "ExecutionStarted", "KernelProposed", "ExecutionFailed", "EvaluationStarted", "EvaluationCompleted",
        "EvaluationFailed", "SummaryStarted", "ExperienceRecorded", "ReflectionStarted",
        "ReflectionRecorded", "CallStarted", "CallCompleted", "CallFailed", "CallLost",
    )  # fmt: skip

    def __init__(self, run: str) -> None:
        self._run = run
        self._clock = _TimeSplit()
        self._curve: list[SpendPoint] = []

    def add_event(self, item: RecordedEvent) -> None:
        """Process the next event; an ancestor's event costs money but no time."""
        if item.stream == self._run:
            self._clock.add_event(item)
        usd = _event_cost(item.event)
        if usd:
            before = self._curve[-1].usd if self._curve else 0.0
            self._curve.append(SpendPoint(self._clock.seconds_since_start(item.ts_us), before + usd))

    def build_spending(self, reader: LogReader, *, at: int | None = None) -> Spending:
        """Return the result, with the sums of the read models; `at` is as in `load_spending`."""
        last = require_event(reader, self._run, last_run_seq(reader, self._run) if at is None else at)
        if last.stream == self._run:
            self._clock.extend_to(last)
        rows = reader.spend_rows(self._run, upto=at)
        spent = tuple(_role_spend(row) for row in rows)
        priced = sum(row["cost_nano_usd"] for row in rows) / 1e9
        unpriced = sum(row["unknown"] for row in rows)
        clock = self._clock
        return Spending(
            run=self._run,
            usd=None if unpriced else priced,
            priced_usd=priced,
            unpriced=unpriced,
            calls=sum(one.calls for one in spent if one.model is not None),
            tokens=sum(one.input_tokens + one.output_tokens for one in spent),
            spent=spent,
            curve=_thin_curve(self._curve),
            seconds=clock.total_seconds,
            split=clock.split_seconds(),
            stage_seconds={name: ms / 1e3 for name, ms in sorted(clock.stages.items())},
        )


def _role_spend(row: Mapping[str, object]) -> RoleSpend:
    cost = row["cost_nano_usd"]
    assert isinstance(cost, int)
    numbers = {
        name: int(str(row[name]))
        for name in ("calls", "answered", "input_tokens", "cached_tokens", "output_tokens")
    }
    model = row["model"]
    return RoleSpend(
        role=str(row["role"]),
        model=None if model is None else str(model),
        usd=None if row["unknown"] else cost / 1e9,
        **numbers,
    )


def _event_cost(event: Event) -> float:
    match event:
        case CallEnded(cost_usd=usd):
            return usd or 0.0
        case EffectEnded(usage=usage):
            return usage.cost_usd or 0.0
    return 0.0


def _thin_curve(curve: list[SpendPoint]) -> tuple[SpendPoint, ...]:
    """Return at most `MAX_POINTS` points of a curve, including its last."""
    step = max(1, -(-len(curve) // MAX_POINTS))
    return tuple(curve[::-1][::step][::-1])


Interval = tuple[int, int, str]
"""When something began and ended, in microseconds, and its kind."""


@dataclass(slots=True)
class _TimeSplit:
    """Collects what was under way when, from a run's own events."""

    began_us: int = 0
    latest_us: int = 0
    open: dict[str, tuple[int, str]] = field(default_factory=dict)
    asked: set[str] = field(default_factory=set)
    paused_us: int | None = None
    done: list[Interval] = field(default_factory=list)
    stages: dict[str, float] = field(default_factory=dict)

    def add_event(self, item: RecordedEvent) -> None:
        """Process the run's next event."""
        self.began_us = self.began_us or item.ts_us
        now = self._event_time(item)
        match item.event:
            case RunPaused() if self.paused_us is None:
                self.paused_us = now
            case RunResumed() if self.paused_us is not None:
                self.done.append((self.paused_us, now, PAUSED))
                self.paused_us = None
            case EvaluationStarted(key=key):
                self._begin_interval(key, now, EXECUTE)
            case EffectStarted(key=key):
                self._begin_interval(key, now, PROPOSING)
            case CallStarted() as call:
                self._begin_interval(_call_name(call), now, MODELS)
                self.asked.add(call.key)
            case CallLost() as call:
                self.open.pop(_call_name(call), None)  # nobody knows when it ended
            case CallEnded() as call:
                self._end_interval(_call_name(call), now)
            case EvaluationCompleted(key=key, stage_ms=stage_ms):
                self._end_evaluation(key, now, stage_ms)
            case EffectEnded(key=key):
                self._end_interval(key, now)
        self.latest_us = now

    def extend_to(self, item: RecordedEvent) -> None:
        """Extend the time up to an event that carries nothing else of interest."""
        self.began_us = self.began_us or item.ts_us
        self.latest_us = self._event_time(item)

    def _event_time(self, item: RecordedEvent) -> int:
        return max(item.ts_us, self.latest_us or item.ts_us)  # clocks are set back now and then

    def _begin_interval(self, name: str, now: int, kind: str) -> None:
        """Start an interval. If one of that name is open, its work was lost; it ends at the latest event
        before.
        """
        self._end_interval(name, self.latest_us)
        self.open[name] = (now, kind)

    def _end_interval(self, name: str, now: int) -> None:
        began = self.open.pop(name, None)
        if began is None:
            return
        asked = name in self.asked
        self.asked.discard(name)
        if began[1] == PROPOSING and asked:
            return  # it only asked models, which is counted as such
        self.done.append((began[0], max(began[0], now), began[1]))

    def _end_evaluation(self, key: str, now: int, stage_ms: Mapping[str, float]) -> None:
        """End an evaluation: the share of its first stages is compile time."""
        for name, ms in stage_ms.items():
            self.stages[name] = self.stages.get(name, 0.0) + ms
        began = self.open.pop(key, None)
        if began is None:
            return
        total = sum(stage_ms.values())
        first = sum(ms for name, ms in stage_ms.items() if name in COMPILE_STAGES)
        cut = began[0] + round((now - began[0]) * (first / total if total > 0 else 0.0))
        self.done += [(began[0], cut, COMPILE), (cut, max(cut, now), EXECUTE)]

    def seconds_since_start(self, ts_us: int) -> float:
        """Return how many seconds after the run's first event something happened, 0 if it was earlier."""
        return max(0.0, (ts_us - self.began_us) / 1e6) if self.began_us else 0.0

    @property
    def total_seconds(self) -> float:
        return self.seconds_since_start(self.latest_us)

    def split_seconds(self) -> dict[str, float]:
        """Return how many seconds went to each kind; they add up to the total."""
        parts = dict.fromkeys(KINDS, 0.0)
        for us, kinds in _sweep_intervals(
            [*self.done, *self._open_intervals()], self.began_us, self.latest_us
        ):
            working = [kind for kind in kinds if kind != PAUSED]
            for kind in working or ([PAUSED] if kinds else [IDLE]):
                parts[kind] += us / 1e6 / len(working or [kind])
        return parts

    def _open_intervals(self) -> Iterator[Interval]:
        yield from ((began, self.latest_us, kind) for began, kind in self.open.values())
        if self.paused_us is not None:
            yield self.paused_us, self.latest_us, PAUSED


def _call_name(call: CallStarted | CallEnded) -> str:
    return f"{call.key}#{call.call}.{call.attempt}"


def _sweep_intervals(intervals: list[Interval], begin: int, end: int) -> Iterator[tuple[int, list[str]]]:
    """Yield how long each combination of kinds was active, from `begin` to `end` (microseconds)."""
    changes = sorted(
        [(start, 1, kind) for start, stop, kind in intervals if stop > start]
        + [(stop, -1, kind) for start, stop, kind in intervals if stop > start]
    )
    active = dict.fromkeys(KINDS, 0)
    at = begin
    for when, change, kind in [*changes, (end, 0, IDLE)]:
        if when > at:
            yield when - at, [name for name, number in active.items() if number]
            at = when
        active[kind] += change
