"""A run as it was after any of its events: its state folded anew up to there, and what just happened.

Everything is what the log knew then; nothing of what came later shows.
"""

from __future__ import annotations

from dataclasses import dataclass

from agentctl.views.run import RunView, Timed, run_view, timed
from agentctl.views.series import event_at, last_of
from state.fold import RunState
from state.model import BeamEntry
from state.reader import LogReader

NOTES = 20
"""Experiences and reflections that are shown, the newest first."""


@dataclass(frozen=True, slots=True)
class Member:
    """A kernel of the beam; `gain` is the factor over the initial kernel."""

    candidate: str
    role: str
    title: str
    technique: str | None
    latency: Timed | None
    gain: float | None
    level: str


@dataclass(frozen=True, slots=True)
class Flight:
    """An effect under way: whose work, for which candidate, its deliveries, and what it may cost (US$)."""

    candidate: str
    role: str
    delivery: int
    model: str | None
    reserved_usd: float


@dataclass(frozen=True, slots=True)
class Note:
    """What the run has learnt: an experience that it is told, or how a prediction fared."""

    kind: str
    technique: str
    speedup: float | None
    text: str


@dataclass(frozen=True, slots=True)
class Moment:
    """A run after its event `at`, of `of` that it has; `type` and `time` are those of that event."""

    at: int
    of: int
    seq: int
    type: str
    time: str
    run: RunView
    beam: tuple[Member, ...]
    in_flight: tuple[Flight, ...]
    experiences: tuple[Note, ...]
    reflections: tuple[Note, ...]


def moment(reader: LogReader, run: str, *, at: int | None = None, owned: bool | None = None) -> Moment:
    """Return a run as it was after its event `at` (None: as it is); `owned` as in `run_view`.

    Raises:
        StreamUnknown: there is no such run.
        UnknownEvent: it has no such event.
    """
    of = last_of(reader, run)
    here = of if at is None else at
    item = event_at(reader, run, here)
    past = here < of
    state = reader.state(run, here if past else None)
    return Moment(
        at=here,
        of=of,
        seq=item.seq,
        type=item.type,
        time=item.time.isoformat(timespec="seconds"),
        run=run_view(run, state, owned=None if past else owned),
        beam=tuple(_member(entry, state) for entry in state.beam),
        in_flight=_in_flight(state),
        experiences=tuple(
            Note(one.kind.value, one.technique, one.speedup, one.summary)
            for one in state.memory[::-1][:NOTES]
        ),
        reflections=tuple(
            Note(one.grade.value, one.technique, one.actual_speedup, one.lesson)
            for one in state.reflections[::-1][:NOTES]
        ),
    )


def _member(entry: BeamEntry, state: RunState) -> Member:
    one = entry.candidate
    return Member(
        candidate=one.id,
        role=entry.role.value,
        title=one.title,
        technique=one.technique,
        latency=timed(one.benchmark),
        gain=state.initial.latency_ms / one.latency_ms if state.initial else None,
        level=one.level.value,
    )


def _in_flight(state: RunState) -> tuple[Flight, ...]:
    found = []
    for key, effect in sorted(state.open.items()):
        candidate, _, role = key.rpartition(".")
        model = effect.slot.model if effect.slot else None
        found.append(Flight(candidate, role, effect.delivery, model, effect.held.usd or effect.reserved_usd))
    return tuple(found)
