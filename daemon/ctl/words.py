"""Numbers and events in words, the same ones wherever `agentctl` prints them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from daemon.ctl.tracker import Tracker, percent
from state.events import (
    BeamSelected,
    Event,
    KernelKept,
    KernelReverted,
    RoundStarted,
    RunCancelled,
    RunCompleted,
    RunCreated,
    RunPaused,
    RunResumed,
)
from state.fold import RunState
from state.model import Benchmark, Candidate


def ms(value: float | None) -> str:
    """Return a latency for people."""
    return "-" if value is None else f"{value:.4g} ms"


def times(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}x"


def percentage(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f} %"


def usd(value: float | None) -> str:
    return "unknown" if value is None else f"${value:.2f}"


def duration(seconds: float) -> str:
    """Return h:mm:ss, or m:ss below an hour."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def latency(benchmark: Benchmark) -> str:
    """Return a latency with where it comes from: a model's is always called predicted."""
    return f"{ms(benchmark.latency_ms)} {'predicted' if benchmark.predicted else 'measured'}"


def standing(state: RunState) -> str:
    """Return how a run stands, in one line."""
    tally, best = state.tally, state.best
    counts = f"{tally.proposed} proposed, {tally.evaluated} evaluated, {tally.failed} failed"
    if best is None or state.initial is None:
        return counts
    gain = state.initial.latency_ms / best.latency_ms
    peak = percentage(percent(state.bounds.plain_ms, best.latency_ms))
    tight = percentage(percent(state.bounds.tight_ms, best.latency_ms))
    return (
        f"{counts}; best {latency(best.benchmark)}, {times(gain)}, {peak} of peak, {tight} of the tight bound"
    )


def candidate(one: Candidate) -> str:
    return f"{one.id}: {one.title} ({latency(one.benchmark)})"


# --- what happened ---------------------------------------------------------------------------------


def narrate(event: Event, tracker: Tracker) -> str | None:
    """Return a line on what `event`, the tracker's latest, means for the run; None for small steps."""
    tell = _TELL.get(type(event))
    return tell(event, tracker) if tell is not None and tracker.state is not None else None


def _created(event: RunCreated, tracker: Tracker) -> str:
    config = event.config
    return (
        f"run {tracker.run}: {config.problem} ({config.size}) on {config.target}, seed {config.seed}, "
        f"at most {config.search.rounds} rounds; tight bound {ms(event.bounds.tight_ms)}"
    )


def _kept(event: KernelKept, tracker: Tracker) -> str | None:
    if event.speedup is None:
        return f"initial kernel: {latency(event.candidate.benchmark)}"
    best = tracker.state.best if tracker.state else None
    if best is None or best.id != event.candidate.id:
        return None
    return f"  better: {candidate(event.candidate)}"


def _selected(event: BeamSelected, tracker: Tracker) -> str | None:
    assert tracker.state is not None
    return f"  {standing(tracker.state)}" if event.round > 0 else None


def _round(event: RoundStarted, tracker: Tracker) -> str:
    assert tracker.state is not None
    return f"round {event.round} of at most {tracker.state.config.search.rounds}"


def _completed(event: RunCompleted, tracker: Tracker) -> str:
    detail = f": {event.detail}" if event.detail else ""
    return f"run {tracker.run} completed ({event.reason.value}{detail})"


_TELL: dict[type[Event], Callable[[Any, Tracker], str | None]] = {
    RunCreated: _created,
    KernelKept: _kept,
    KernelReverted: lambda event, _: (
        f"  lineage {event.lineage} reverted to {event.restored}: {event.reason}"
    ),
    BeamSelected: _selected,
    RoundStarted: _round,
    RunPaused: lambda event, tracker: f"run {tracker.run} paused: {event.reason}",
    RunResumed: lambda _, tracker: f"run {tracker.run} resumed",
    RunCancelled: lambda event, tracker: f"run {tracker.run} cancelled: {event.reason}",
    RunCompleted: _completed,
}
