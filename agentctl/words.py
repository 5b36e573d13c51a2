"""Numbers and events in words, the same ones wherever `agentctl` prints them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from shlex import quote
from shutil import which
from typing import TYPE_CHECKING, Any

import click

from agentctl.app import Session
from agentctl.views.run import percent
from state.events import (
    BeamSelected,
    Event,
    ExperiencesGiven,
    KernelDiscarded,
    KernelKept,
    KernelRefuted,
    KernelReverted,
    RoundStarted,
    RunCancelled,
    RunCompleted,
    RunCreated,
    RunForked,
    RunPaused,
    RunResumed,
    SequencesGiven,
    TechniquesGiven,
)
from state.fold import RunState
from state.model import (
    RESOLUTION_RATIO,
    Benchmark,
    Bounds,
    Candidate,
    Identity,
    LearntExperience,
    LearntSequence,
    LearntTechnique,
    Level,
    PauseCause,
    RunConfig,
    StopReason,
)

if TYPE_CHECKING:
    from agentctl.tracker import Tracker
    from agentctl.views.elsewhere import Filtered

SECOND_MS = 1000.0

ROUNDING = 1e-9
"""How far above 100 a percentage may be for being computed in floats."""

REASONS: dict[StopReason, str] = {
    StopReason.ROUNDS: "all rounds done",
    StopReason.TARGET: "target reached",
    StopReason.PLATEAU: "no more gains",
    StopReason.NEAR_BOUND: "near the tight bound",
    StopReason.BUDGET: "budget spent",
    StopReason.INITIAL_REJECTED: "the initial kernel was rejected",
    StopReason.NO_PROPOSALS: "nothing left to try",
    StopReason.INFRASTRUCTURE: "the infrastructure failed",
}


LEVELS: dict[Level, str] = {
    Level.SLICES: "tiles of its outputs",
    Level.ONE_SEED: "whole outputs of one seed",
    Level.WHOLE: "whole outputs of every seed",
}
"""How much of a kernel was compared."""


DISCARDED = {"slower": "not faster"}
"""Reasons for which kernels are discarded, where their names say less than they mean: equal is no gain."""


def discarded(reason: str) -> str:
    """Return why a kernel was discarded, in words."""
    return DISCARDED.get(reason, reason.replace("_", " "))


def typed(*words: str) -> str:
    """Return an `agentctl` command as it can be typed here: by its path where it is not on PATH.

    It names the home that was named to this command, so that it means the same one.
    """
    if "--home" not in words:
        words = (*words[:1], *_home_words(), *words[1:])
    script = Path(sys.executable).with_name("agentctl")
    found = which("agentctl")
    if not script.exists() or (found is not None and Path(found).absolute() == script):
        return " ".join(["agentctl", *map(quote, words)])
    inside = script.is_relative_to(Path.cwd())
    path = script.relative_to(Path.cwd()) if inside else script
    return " ".join(map(quote, [str(path), *words]))


def _home_words() -> tuple[str, ...]:
    """Return what the command under way was told of the home."""
    context = click.get_current_context(silent=True)
    session = context.find_object(Session) if context is not None else None
    return session.home_words if session is not None else ()


def count(number: int, noun: str, plural: str | None = None) -> str:
    """Return a number of things, e.g. `1 round` or `2 rounds`."""
    return f"{number} {noun}" if number == 1 else f"{number} {plural or f'{noun}s'}"


def ended(reason: StopReason, detail: str) -> str:
    """Return why a run ended; how many rounds it had is said elsewhere."""
    return REASONS[reason] if reason is StopReason.ROUNDS or not detail else f"{REASONS[reason]}: {detail}"


def ms(value: float | None) -> str:
    """Return a latency for people."""
    return "-" if value is None else f"{value:.4g} ms"


def times(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}x"


def percentage(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f} %"


def identity(found: Identity) -> str:
    """Return what is known of a correct kernel's formula."""
    if found.verdict == "tested":
        return f"identity: tested in numbers only, {found.reason}"
    where = f"{count(found.elements, 'element')} of the outputs ({found.share_percent:.2g} %)"
    return f"identity: proven, the reference's formula on {where}"


def usd(value: float | None) -> str:
    return "unknown" if value is None else f"${value:.2f}"


def took(value_ms: float | None) -> str:
    """Return a short time of work: ms below a second, else seconds."""
    if value_ms is None:
        return "-"
    return f"{value_ms:.0f} ms" if value_ms < SECOND_MS else f"{value_ms / SECOND_MS:.1f} s"


def held_back(found: Filtered) -> str:
    """Return what a pre-filter did, and how often it was right, as far as anybody knows."""
    said = f"held back {count(found.held_back, 'kernel')}"
    timed = f"the {found.timed} timed" + (", by a simulator too" if found.predicted else "")
    if found.hit_percent is None:
        return f"{said}; {timed} are too few to say more"
    return f"{said}; of its better half {percentage(found.hit_percent)} were in the better half of {timed}"


def moment(text: str) -> str:
    """Return a time that a view gives (UTC, ISO 8601) for people."""
    return f"{text[:19].replace('T', ' ')}Z"


def duration(seconds: float) -> str:
    """Return h:mm:ss, or m:ss below an hour."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def latency(benchmark: Benchmark) -> str:
    """Return a latency with where it comes from, a model's being always called predicted, and its interval.

    An interval without width says nothing and is left out.
    """
    low, high = f"{benchmark.lo_ms:.4g}", f"{benchmark.hi_ms:.4g}"
    return brief(benchmark) + (f" ({low} to {high})" if low != high else "")


def sure(one: Benchmark | None, other: Benchmark | None) -> str:
    """Return, to follow how much faster one is, in how many of the model's draws it is faster at all.

    Of a difference below the model's resolution no draw tells. Nothing where the two have no draws in common,
    as when one of them was measured.
    """
    share = one.wins_percent(other) if one and other else None
    if one is None or other is None or share is None:
        return ""
    if abs(one.latency_ms - other.latency_ms) < RESOLUTION_RATIO * other.latency_ms:
        return ", too small to tell"
    return f", faster in {percentage(share)} of draws that differ"


def brief(benchmark: Benchmark) -> str:
    """Return a latency with where it comes from, where there is no room for the interval."""
    return f"{ms(benchmark.latency_ms)} {'predicted' if benchmark.predicted else 'measured'}"


def impossible(state: RunState) -> str | None:
    """Return what to think of a best latency below what the target can do; None while it is above."""
    share = percent(state.bounds.tight_ms, state.best.latency_ms if state.best else None)
    if share is None or share <= 100 + ROUNDING:
        return None
    return f"impossible: {percentage(share)} of the tight bound; the model, the bound or the log is at fault"


def standing(state: RunState) -> str:
    """Return how a run stands, in one line."""
    tally, best = state.tally, state.best
    looked = f"{tally.predicted} looked at, " if tally.predicted else ""
    counts = f"in all {looked}{tally.proposed} proposed, {tally.evaluated} evaluated, {tally.failed} failed"
    if best is None or state.initial is None:
        return counts
    gain = times(state.initial.latency_ms / best.latency_ms)
    peak = percentage(percent(state.bounds.plain_ms, best.latency_ms))
    tight = percentage(percent(state.bounds.tight_ms, best.latency_ms))
    doubt = impossible(state)
    shares = f"{peak} of the NKIBench roofline, {doubt or f'{tight} of the tight bound'}"
    return f"{counts}; best {brief(best.benchmark)}, {gain}, {shares}"


def so_far(run: str, state: RunState) -> list[str]:
    """Return what a run is about, and how it stands, as lines for who begins to look at it."""
    past = [f"  so far: {count(state.round, 'round')}, {standing(state)}"] if state.round else []
    return [_about(run, state.config, state.bounds), *past]


def candidate(one: Candidate) -> str:
    return f"{one.id}: {one.title} ({brief(one.benchmark)})"


def origin(one: LearntSequence) -> str:
    """Return where a sequence that paid is from, and what it brought there."""
    return f"{one.place} ({one.problem}, {times(one.speedup)} by {count(len(one.steps), 'rewrite')})"


def origins(found: Sequence[LearntExperience]) -> str:
    """Return how many experiences these are, and which runs and files they are from."""
    return f"{count(len(found), 'experience')} of {', '.join(dict.fromkeys(one.origin for one in found))}"


def techniques(found: Sequence[LearntTechnique]) -> str:
    """Return which techniques of models these are, and which runs they are from."""
    return ", ".join(f"{one.technique} ({one.place})" for one in found)


# --- what happened ---------------------------------------------------------------------------------


def narrate(event: Event, tracker: Tracker) -> str | None:
    """Return a line on what `event`, the tracker's latest, means for the run; None for small steps."""
    tell = _TELL.get(type(event))
    return tell(event, tracker) if tell is not None and tracker.state is not None else None


def _about(run: str, config: RunConfig, bounds: Bounds) -> str:
    return (
        f"run {run}: {config.problem} ({config.size}) on {config.target}, seed {config.seed}, "
        f"at most {count(config.search.rounds, 'round')}; tight bound {ms(bounds.tight_ms)}"
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
    return round_of(event.round, tracker.state.config.search.rounds)


def round_of(number: int, most: int) -> str:
    """Tell of a round of at most so many; kernels that came in after the last one have one more."""
    if number > most:
        return f"round {number}, for kernels that came in after the last of {most}"
    return f"round {number} of at most {most}"


def _discarded(event: KernelDiscarded, tracker: Tracker) -> str | None:
    """Tell of what looked right at first; all else that is discarded is counted."""
    if event.reason != "refuted" or event.verdict is None:
        return None
    return f"  refuted: {event.candidate}, {event.verdict.value} when more of its outputs was compared"


def _refuted(event: KernelRefuted, tracker: Tracker) -> str:
    instead = candidate(event.best) if event.best else "nothing is left"
    return f"  refuted: {event.candidate}, {event.verdict.value}: {event.error.message}; best now {instead}"


def _completed(event: RunCompleted, tracker: Tracker) -> str:
    return f"run {tracker.run} completed: {ended(event.reason, event.detail)}"


def _paused(event: RunPaused, tracker: Tracker) -> str:
    hint = f"; let it go on with: {typed('approve', tracker.run)}" if event.needs_approval else ""
    if event.cause is PauseCause.PROVIDER:
        hint = f"; once that is mended, let it go on with: {typed('resume', tracker.run)}"
    return f"run {tracker.run} paused: {event.reason}{hint}"


def _sequences(event: SequencesGiven, tracker: Tracker) -> str:
    """Return what is done with sequences that paid: planners that look ahead begin with them."""
    planners = tracker.state.config.planner if tracker.state is not None else ()
    from agent_core.proposers import looks_ahead

    use = "tries first" if any(map(looks_ahead, planners)) else "told"
    return f"{use} what paid in {'; '.join(map(origin, event.sequences))}"


_TELL: dict[type[Event], Callable[[Any, Tracker], str | None]] = {
    RunCreated: lambda event, tracker: _about(tracker.run, event.config, event.bounds),
    KernelKept: _kept,
    KernelDiscarded: _discarded,
    KernelRefuted: _refuted,
    KernelReverted: lambda event, _: (
        f"  lineage {event.lineage} reverted to {event.restored}: {event.reason}"
    ),
    BeamSelected: _selected,
    SequencesGiven: _sequences,
    TechniquesGiven: lambda event, _: f"offered {techniques(event.techniques)}",
    ExperiencesGiven: lambda event, _: f"told {origins(event.experiences)}",
    RoundStarted: _round,
    RunForked: lambda event, tracker: (
        f"run {tracker.run} continues {event.parent} from its event {event.parent_seq}"
    ),
    RunPaused: _paused,
    RunResumed: lambda _, tracker: f"run {tracker.run} resumed",
    RunCancelled: lambda event, tracker: f"run {tracker.run} cancelled: {event.reason}",
    RunCompleted: _completed,
}
