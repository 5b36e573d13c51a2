"""A run as it was after any of its events: its state, folded from its events up to there, and that
event.

Everything is what the log knew then; nothing later shows.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from agentctl.formatting import explain_share_of_bound
from agentctl.views import OMIT_EMPTY
from agentctl.views.run import LatencyInterval, RunView, latency_of, run_view
from agentctl.views.series import last_run_seq, require_event
from state.fold import RunState
from state.model import BeamEntry
from state.reader import LogReader

MAX_NOTES = 20
"""The number of experiences and reflections that are shown, newest first."""


@dataclass(frozen=True, slots=True)
class BeamMember:
    """A kernel of the beam; `gain` is the factor over the initial kernel."""

    candidate: str
    role: str
    title: str
    technique: str | None
    latency: LatencyInterval | None
    gain: float | None
    level: str


@dataclass(frozen=True, slots=True)
class EffectInFlight:
    """An effect under way: its role, its candidate, its deliveries, and what it may cost (US$)."""

    candidate: str
    role: str
    delivery: int
    model: str | None
    reserved_usd: float


@dataclass(frozen=True, slots=True)
class LearningNote:
    """Something that the run has learnt: an experience, or the outcome of a prediction."""

    kind: str
    technique: str
    speedup: float | None
    text: str


@dataclass(frozen=True, slots=True)
class RunAtEvent:
    """A run after its event number `at`, out of `of`; `type` and `time` are those of that event.

    `below_bound`: what to think of a best latency below the model bound; None if it is above.
    """

    at: int
    of: int
    seq: int
    type: str
    time: str
    run: RunView
    beam: tuple[BeamMember, ...]
    in_flight: tuple[EffectInFlight, ...]
    experiences: tuple[LearningNote, ...]
    reflections: tuple[LearningNote, ...]
    below_bound: str | None = field(default=None, metadata={OMIT_EMPTY: True})


def run_at_event(
    reader: LogReader, run: str, *, at: int | None = None, owned: bool | None = None
) -> RunAtEvent:
    """Return a run as it was after its event `at` (None: now); `owned` is as in `run_view`.

    Raises:
        StreamUnknown: there is no such run.
        UnknownEvent: it has no such event.
    """
    of = last_run_seq(reader, run)
    here = of if at is None else at
    item = require_event(reader, run, here)
    past = here < of
    state = reader.run_state(run, here if past else None)
    shown = run_view(run, state, owned=None if past else owned)
    return RunAtEvent(
        at=here,
        of=of,
        seq=item.seq,
        type=item.type,
        time=item.time.isoformat(timespec="seconds"),
        run=shown,
        beam=tuple(_beam_member(entry, state) for entry in state.beam),
        in_flight=_effects_in_flight(state),
        experiences=tuple(
            LearningNote(one.kind.value, one.technique, one.speedup, one.summary)
            for one in state.memory[::-1][:MAX_NOTES]
        ),
        reflections=tuple(
            LearningNote(one.grade.value, one.technique, one.actual_speedup, one.lesson)
            for one in state.reflections[::-1][:MAX_NOTES]
        ),
        below_bound=explain_share_of_bound(
            shown.percent_of_model_bound, predicted=shown.predicted is not False
        ),
    )


def _beam_member(entry: BeamEntry, state: RunState) -> BeamMember:
    one = entry.candidate
    return BeamMember(
        candidate=one.id,
        role=entry.role.value,
        title=one.title,
        technique=one.technique,
        latency=latency_of(one.benchmark),
        gain=state.initial.latency_ms / one.latency_ms if state.initial else None,
        level=one.level.value,
    )


def _effects_in_flight(state: RunState) -> tuple[EffectInFlight, ...]:
    found = []
    for key, effect in sorted(state.open.items()):
        candidate, _, role = key.rpartition(".")
        model = effect.slot.model if effect.slot else None
        found.append(
            EffectInFlight(
                candidate, role, effect.delivery, model, effect.reserved_amount.usd or effect.reserved_usd
            )
        )
    return tuple(found)
