"""What must hold of a log after every commit: nothing is lost or twice, and all that is derived is right.

`Watch` follows all that a log stores, in a memory of its own that outlives the process.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from daemon.command_models import VERBS
from daemon.run_queue import EffectKind, effect_kind
from state import fold, queries, system
from state.appender import Appender, AppendOutcome
from state.errors import StateError
from state.events import (
    CommandCompleted,
    CommandReceived,
    CommandRejected,
    ConfigChanged,
    ConfigRefused,
    EffectEnded,
    EffectStarted,
    Event,
    KernelRefuted,
    PredictionBatch,
    PredictionStarted,
    RoundCompleted,
    RoundDeadlinePassed,
    RunCancelled,
    RunForked,
    RunPaused,
    effect_key,
)
from state.model import SYSTEM_STREAM, EffectKey, PauseCause
from state.reader import LogReader
from state.records import EventRow
from state.run_state import RunState
from state.upcast import decode_event
from tests.support.simulation.invariants import CHECKS, Trail, Violation

EDITED, REFUSED = "configuration edited", "configuration refused"
KINDS = (
    "fork",
    "fork of a fork",
    "fork for another target",
    "pause for space",
    "wait for approval",
    "best kernel refuted",
    "deadline of a round",
    "effect delivered again",
    "look-ahead",
    "look-ahead that failed",
    "look-ahead that came late",
    "look-ahead delivered again",
    "kernel that cannot be predicted",
    *(f"command {verb}" for verb in VERBS),
    "command refused",
    EDITED,
    REFUSED,
)
"""What a log can tell of that seldom happens, as it is counted."""


def kinds_of(trail: Trail, event: Event) -> Iterable[str]:
    """Name what an event shows to have happened."""
    match event:
        case RunForked(rebase=rebase):
            yield "fork"
            if trail.generation > 1:
                yield "fork of a fork"
            if rebase is not None:
                yield "fork for another target"
        case RunPaused(cause=PauseCause.SPACE):
            yield "pause for space"
        case RunPaused() if event.needs_approval:
            yield "wait for approval"
        case KernelRefuted():
            yield "best kernel refuted"
        case RoundDeadlinePassed():
            yield "deadline of a round"
        case EffectStarted(delivery=delivery) if delivery > 1:
            yield "effect delivered again"
            if isinstance(event, PredictionStarted):
                yield "look-ahead delivered again"
        case PredictionBatch():
            yield from (what for what, happened in _looked_ahead(trail, event).items() if happened)


def _looked_ahead(trail: Trail, batch: PredictionBatch) -> dict[str, bool]:
    """Return what came of a look ahead, and whether it did."""
    return {
        "look-ahead": batch.variants is not None,
        "look-ahead that failed": batch.error is not None,
        "look-ahead that came late": effect_key(batch).round in trail.over,
        "kernel that cannot be predicted": batch.failed > 0,
    }


def _standing(state: RunState) -> dict[str, object]:
    """Return what a list of runs says of one, by column."""
    best, initial = state.best, state.initial
    return {
        "problem": state.problem.name,
        "target": state.config.target,
        "toolchain": state.toolchain,
        "status": state.status.value,
        "ended": int(state.has_ended),
        "best": best and best.id,
        "best_ms": best and best.latency_ms,
        "initial_ms": initial and initial.latency_ms,
        "spent_usd": state.spent_usd,
        "unknown_costs": int(state.unknown_cost),
    }


Fields = Mapping[str, Any]

_NEVER = object()
VERDICT_NEEDED = "resume the run to have it tried again"
"""How a run says that it paused with an evaluation open that no process works on."""


@dataclass(slots=True)
class Watch:
    """All that was ever seen stored, over the whole life of a world."""

    say: Callable[[str, EventRow], None] = lambda stream, row: None
    limits: dict[EffectKind, int] = field(default_factory=dict)
    """How many effects of a kind may be in flight: the most that any settings allowed."""
    rows: list[tuple[int, str]] = field(default_factory=list)
    trails: dict[str, Trail] = field(default_factory=dict)
    system: system.SystemState | None = None
    commands: int = 0
    """Events of the system stream."""
    received: dict[str, CommandReceived] = field(default_factory=dict)
    answered: set[str] = field(default_factory=set)
    counts: Counter[str] = field(default_factory=Counter)
    _flying: dict[tuple[str, str], EffectKind] = field(default_factory=dict)
    _acknowledged: list[tuple[int, str]] = field(default_factory=list)
    _compared: dict[str, tuple[Fields, Fields]] = field(default_factory=dict)

    def acknowledge(self, outcomes: Sequence[AppendOutcome]) -> None:
        """Hear what appends are answered: by the next look it has to be stored."""
        for outcome in outcomes:
            if not isinstance(outcome, StateError):
                self._acknowledged += [(item.seq, item.hash) for item in outcome]

    def look(self, appender: Appender) -> None:
        """Take in what was stored since the last look, and compare what the log holds in memory."""
        moved = self._take(queries.log_rows(appender.connection, after=len(self.rows)))
        for seq, hash_ in self._acknowledged:
            if self.rows[seq - 1 : seq] != [(seq, hash_)]:
                raise Violation(f"event {seq} was acknowledged and is not stored")
        self._acknowledged.clear()
        for stream, whole in moved.items():
            tip = appender.cached_tip(stream)
            if tip is not None and tip.run_seq == self._last(stream)[0]:
                self._same(stream, tip.state, "the writer's state", whole=whole)

    def check_reopened_log(self, appender: Appender) -> None:
        """Check a log that was opened again: all that was seen is there, and folds to what it was."""
        if self.rows:
            seq, hash_ = self.rows[-1]
            row = queries.row_at(appender.connection, seq)
            if row is None or row.hash.hex() != hash_:
                raise Violation(f"event {seq} was stored and is lost")
        self._take(queries.log_rows(appender.connection, after=len(self.rows)))
        self._flying.clear()
        self._acknowledged.clear()

    def check_derived_states(self, reader: LogReader) -> None:
        """Compare each state that a reader derives, by whatever snapshots there are, with the fold."""
        for stream in self.trails:
            self._same(stream, reader.run_state(stream), "the stored state", whole=True)
        if self.system is not None:
            self._same(SYSTEM_STREAM, reader.system_state(), "the stored state", whole=True)

    def check_run_list(self, runs: Iterable[Mapping[str, Any]]) -> None:
        """Compare what a list of the runs says with the states that their events fold to."""
        listed = {row["run"]: row for row in runs}
        if listed.keys() != self.trails.keys():
            raise Violation(f"the read model lists {sorted(listed)}, there are {sorted(self.trails)}")
        for run, trail in self.trails.items():
            for name, value in _standing(trail.states[-1]).items():
                if listed[run][name] != value:
                    raise Violation(f"{run}: the read model says {name} {listed[run][name]!r}, not {value!r}")

    def allow(self, daemon: Mapping[str, Any]) -> None:
        """Take in settings of the process, which may let more be in flight."""
        for kind, name in ((EffectKind.EVALUATION, "evaluations"), (EffectKind.PROPOSAL, "proposals")):
            self.limits[kind] = max(self.limits.get(kind, 0), daemon[name])

    def _take(self, rows: Iterable[EventRow]) -> dict[str, bool]:
        """Take in rows; return the streams that moved, with whether a round of theirs is over."""
        moved: dict[str, bool] = {}
        for row in rows:
            self.rows.append((row.seq, row.hash.hex()))
            self.say(row.stream, row)
            event = decode_event(row)
            if row.stream == SYSTEM_STREAM:
                self._command(event)
            else:
                self._step(row.stream, event, row.run_seq)
            moved[row.stream] = moved.get(row.stream, False) or isinstance(event, RoundCompleted)
        return moved

    def _step(self, stream: str, event: Event, run_seq: int) -> None:
        trail = self.trails.get(stream)
        if trail is None:
            trail = self.trails[stream] = self._begin(event)
        if run_seq != len(trail.states) + 1:
            raise Violation(f"{stream}: event {run_seq} follows {len(trail.states)}")
        after = fold.apply_event(trail.states[-1] if trail.states else None, event)
        for check in CHECKS:
            wrong = check(trail, event, after)
            if wrong is not None:
                raise Violation(f"{stream}@{run_seq} {type(event).__name__}: {check.__name__}: {wrong}")
        trail.note(event, after)
        self._fly(stream, event, after)
        self.counts.update(kinds_of(trail, event))

    def _begin(self, event: Event) -> Trail:
        return self.trails[event.parent].cut(event.parent_seq) if isinstance(event, RunForked) else Trail()

    def _fly(self, stream: str, event: Event, state: RunState) -> None:
        """Follow what is in flight: of all runs together no more than the settings allow."""
        match event:
            case EffectStarted(key=key):
                kind = self._flying[stream, key] = effect_kind(state, EffectKey.parse(key))
                flying = sum(one is kind for one in self._flying.values())
                if flying > self.limits[kind]:
                    raise Violation(f"{stream}: {key} makes {flying} in flight, {self.limits[kind]} may be")
            case EffectEnded(key=key):
                self._flying.pop((stream, key), None)
            case RunPaused(reason=reason) if VERDICT_NEEDED in reason:
                self._flying = {place: kind for place, kind in self._flying.items() if place[0] != stream}
            case RunCancelled():
                self._flying = {place: kind for place, kind in self._flying.items() if place[0] != stream}

    def _command(self, event: Event) -> None:
        self.system = system.apply_system_event(self.system, event)
        self.commands += 1
        match event:
            case CommandReceived(id=id_):
                if id_ in self.received:
                    raise Violation(f"command {id_} was taken in twice")
                self.received[id_] = event
            case CommandCompleted(id=id_) | CommandRejected(id=id_):
                if id_ in self.answered:
                    raise Violation(f"command {id_} has two answers")
                self.answered.add(id_)
                refused = isinstance(event, CommandRejected)
                self.counts["command refused" if refused else f"command {self.received[id_].verb}"] += 1
            case ConfigChanged(config=config):
                self.allow(config["daemon"])
                self.counts[EDITED] += 1
            case ConfigRefused():
                self.counts[REFUSED] += 1

    def _last(self, stream: str) -> tuple[int, Any]:
        """Return a stream's last event's number and the state after it."""
        if stream == SYSTEM_STREAM:
            return self.commands, self.system
        states = self.trails[stream].states
        return len(states), states[-1]

    def _same(self, stream: str, state: Any, what: str, *, whole: bool) -> None:
        """Compare a state with the fold of its stream's events: what has changed in it, or all of it."""
        number, known = self._last(stream)
        theirs, ours = vars(state), vars(known)
        before = ({}, {}) if whole else self._compared.get(stream, ({}, {}))
        self._compared[stream] = (theirs, ours)
        changed = [
            name
            for name in theirs
            if theirs[name] is not before[0].get(name, _NEVER)
            or ours[name] is not before[1].get(name, _NEVER)
        ]
        if all(theirs[name] == ours[name] for name in changed):
            return
        hashed = system.state_hash if stream == SYSTEM_STREAM else fold.state_hash
        if hashed(state) != hashed(known):
            raise Violation(f"{stream}@{number}: {what} is not the fold of its events")
