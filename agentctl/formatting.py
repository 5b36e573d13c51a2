"""Formats numbers and events as text, in one way wherever `agentctl` prints them."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from shlex import quote
from shutil import which
from typing import TYPE_CHECKING, Any

import click

from agentctl.app import Session
from agentctl.views.run import bound_percent
from state.events import (
    BeamSelected,
    Event,
    ExecutionFailed,
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
    INITIAL_KEY,
    RESOLUTION_RATIO,
    TRANSLATION_KEY,
    Benchmark,
    Candidate,
    EffectKey,
    FormulaIdentity,
    LatencyBounds,
    LearntExperience,
    LearntSequence,
    LearntTechnique,
    Level,
    NumericalStability,
    PauseCause,
    Role,
    RunConfig,
    StopReason,
    is_simplification,
)
from targets.registry import counter_notes, roofline_name

if TYPE_CHECKING:
    from agentctl.run_tracker import RunTracker
    from agentctl.views.host_usage import PrefilterResult

SECOND_MS = 1000.0

ROUNDING = 1e-9
"""How far above 100 a percentage may be from floating-point rounding alone."""

STOP_REASONS: dict[StopReason, str] = {
    StopReason.ROUNDS: "all rounds done",
    StopReason.TARGET: "target reached",
    StopReason.PLATEAU: "no more gains",
    StopReason.NEAR_BOUND: "near the model bound",
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
"""How much of a kernel's output was compared."""


DISCARD_REASONS = {"slower": "not faster"}
"""Texts for discard reasons whose names are not clear enough: a kernel of equal speed is discarded too."""


def format_discard_reason(reason: str) -> str:
    """Return why a kernel was discarded, in words."""
    return DISCARD_REASONS.get(reason, reason.replace("_", " "))


def format_command(*words: str) -> str:
    """Return an `agentctl` command as you can type it here: with its path if it is not on PATH.

    It includes the `--home` option of the running command, so that it uses the same home.
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
    """Return the `--home` option of the running command, if it was given."""
    context = click.get_current_context(silent=True)
    session = context.find_object(Session) if context is not None else None
    return session.home_words if session is not None else ()


def format_count(number: int, noun: str, plural: str | None = None) -> str:
    """Return a number of things, for example `1 round` or `2 rounds`."""
    return f"{number} {noun}" if number == 1 else f"{number} {plural or f'{noun}s'}"


def format_stop_reason(reason: StopReason, detail: str) -> str:
    """Return why a run ended, without its number of rounds."""
    return (
        STOP_REASONS[reason]
        if reason is StopReason.ROUNDS or not detail
        else f"{STOP_REASONS[reason]}: {detail}"
    )


def format_ms(value: float | None) -> str:
    """Return a latency with its unit."""
    return "-" if value is None else f"{value:.4g} ms"


def format_speedup(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}x"


def format_percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f} %"


def format_stability(found: NumericalStability) -> str:
    """Return what rounding makes of a formula, as a line."""
    compared = "at most" if found.verdict == "stable" else "more than"
    return (
        f"stability: {found.verdict}, error {found.rel_l2:.2g} on inputs far from zero for their spread, "
        f"{compared} the {found.tolerance:.2g} of float32"
    )


def format_identity(found: FormulaIdentity) -> str:
    """Return what is known about a correct kernel's formula."""
    if found.verdict == "tested":
        return f"identity: tested in numbers only, {found.reason}"
    where = f"{format_count(found.elements, 'element')} of the outputs ({found.share_percent:.2g} %)"
    return f"identity: proven, the reference's formula on {where}"


def format_usd(value: float | None) -> str:
    return "unknown" if value is None else f"${value:.2f}"


def format_work_time(value_ms: float | None) -> str:
    """Return a short duration: ms below a second, else seconds."""
    if value_ms is None:
        return "-"
    return f"{value_ms:.0f} ms" if value_ms < SECOND_MS else f"{value_ms / SECOND_MS:.1f} s"


def format_prefilter(found: PrefilterResult) -> str:
    """Return what a pre-filter held back, and how often it was right as far as that is known."""
    said = f"held back {format_count(found.held_back, 'kernel')}"
    timed = f"the {found.timed} timed" + (", by a simulator too" if found.predicted else "")
    if found.hit_percent is None:
        return f"{said}; {timed} are too few to say more"
    return (
        f"{said}; of its better half {format_percent(found.hit_percent)} were in the better half of {timed}"
    )


def format_moment(text: str) -> str:
    """Return a view's time (UTC, ISO 8601) in readable form."""
    return f"{text[:19].replace('T', ' ')}Z"


def format_duration(seconds: float) -> str:
    """Return h:mm:ss, or m:ss below an hour."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


UNLIKE = "unlike anything measured"


def format_latency(benchmark: Benchmark) -> str:
    """Return a latency with its interval and its origin: a model's latency is always called predicted.

    An interval of zero width is left out. A prediction says if nothing measured resembles the kernel.
    """
    low, high = f"{benchmark.lo_ms:.4g}", f"{benchmark.hi_ms:.4g}"
    between = f" ({low} to {high})" if low != high else ""
    return format_brief_latency(benchmark) + between + (f", {UNLIKE}" if benchmark.unlike else "")


def format_wins(one: Benchmark | None, other: Benchmark | None) -> str:
    """Return how sure it is that one kernel is faster than another, as a suffix to its speedup.

    A difference below the model's resolution is called too small to tell. The text is empty if the two
    have no draws in common, for example if one was measured.
    """
    share = one.wins_percent(other) if one and other else None
    if one is None or other is None or share is None:
        return ""
    if abs(one.latency_ms - other.latency_ms) < RESOLUTION_RATIO * other.latency_ms:
        return ", too small to tell"
    return f", {format_confidence(share)}"


def format_confidence(percent: float | None) -> str:
    """Return how sure a predicted gain is."""
    return f"faster with {format_percent(percent)} confidence"


def format_brief_latency(benchmark: Benchmark) -> str:
    """Return a latency with its origin, without the interval."""
    return f"{format_ms(benchmark.latency_ms)} {'predicted' if benchmark.predicted else 'measured'}"


def explain_share_of_bound(share: float | None, *, predicted: bool) -> str | None:
    """Return an explanation for a latency below the model bound; None if it is above."""
    if share is None or share <= 100 + ROUNDING:
        return None
    told = f"{format_percent(share)} of the model bound"
    if predicted:
        return f"impossible: {told}; the model, the bound or the log is at fault"
    return f"{told}: the device is faster than the constants of the model"


def explain_latency_below_bound(state: RunState) -> str | None:
    """Return an explanation for a best latency below the model bound; None if it is above."""
    if state.best is None:
        return None
    share = bound_percent(state.bounds.tight_ms, state.best.latency_ms)
    return explain_share_of_bound(share, predicted=state.best.benchmark.predicted)


def format_run_state(state: RunState) -> str:
    """Return how a run stands, in one line."""
    tally, best = state.tally, state.best
    looked = f"{tally.predicted} looked at, " if tally.predicted else ""
    counts = f"in all {looked}{tally.proposed} proposed, {tally.evaluated} evaluated, {tally.failed} failed"
    if best is None or state.initial is None:
        return counts
    gain = format_speedup(state.initial.latency_ms / best.latency_ms)
    peak = format_percent(bound_percent(state.bounds.plain_ms, best.latency_ms))
    tight = format_percent(bound_percent(state.bounds.tight_ms, best.latency_ms))
    doubt = explain_latency_below_bound(state)
    shares = f"{peak} of the {roofline_name(state.config.target)}, {doubt or f'{tight} of the model bound'}"
    return f"{counts}; best {format_brief_latency(best.benchmark)}, {gain}, {shares}"


def format_run_so_far(run: str, state: RunState) -> list[str]:
    """Return a run's configuration and its current state as lines, for someone who starts to watch it."""
    past = (
        [f"  so far: {format_count(state.round, 'round')}, {format_run_state(state)}"] if state.round else []
    )
    return [_describe_run(run, state.config, state.bounds), *past]


def format_candidate(one: Candidate) -> str:
    return f"{one.id}: {one.title} ({format_brief_latency(one.benchmark)})"


def format_sequence_origin(one: LearntSequence) -> str:
    """Return the origin of a learnt sequence, and its speedup there."""
    rewrites = format_count(len(one.steps), "rewrite")
    return f"{one.event_id} ({one.problem}, {format_speedup(one.speedup)} by {rewrites})"


def format_experience_origins(found: Sequence[LearntExperience]) -> str:
    """Return how many experiences there are, and the runs and files that they come from."""
    return (
        f"{format_count(len(found), 'experience')} of {', '.join(dict.fromkeys(one.origin for one in found))}"
    )


def format_techniques(found: Sequence[LearntTechnique]) -> str:
    """Return the names of invented techniques, with the events that they come from."""
    return ", ".join(f"{one.technique} ({one.event_id})" for one in found)


# --- narrated events -------------------------------------------------------------------------------


def narrate_event(event: Event, tracker: RunTracker) -> str | None:
    """Return a line about `event`, the tracker's latest; None for small steps."""
    tell = _NARRATORS.get(type(event))
    return tell(event, tracker) if tell is not None and tracker.state is not None else None


def _describe_run(run: str, config: RunConfig, bounds: LatencyBounds) -> str:
    return (
        f"run {run}: {config.problem} ({config.size}) on {config.target}, seed {config.seed}, "
        f"at most {format_count(config.search.rounds, 'round')}; model bound {format_ms(bounds.tight_ms)}"
    )


def format_start(candidate: str) -> str:
    """Return which of the kernels that a run begins from this is."""
    is_translation = candidate == TRANSLATION_KEY.candidate_id
    return "the translation of the reference" if is_translation else "the initial kernel"


def _narrate_kept(event: KernelKept, tracker: RunTracker) -> str | None:
    if event.speedup is None:
        start = format_start(event.candidate.id).removeprefix("the ")
        return f"{start}: {format_latency(event.candidate.benchmark)}"
    best = tracker.state.best if tracker.state else None
    if best is None or best.id != event.candidate.id:
        return None
    if event.replaces is not None:
        return f"  simpler: {format_candidate(event.candidate)}"
    return f"  better: {format_candidate(event.candidate)}"


def _narrate_failure(event: ExecutionFailed, tracker: RunTracker) -> str | None:
    """Say why there is no translation; other kernels that were not written are only counted."""
    del tracker
    if event.key != str(TRANSLATION_KEY):
        return None
    return f"the reference was not translated: {event.error.message}"


def _narrate_beam(event: BeamSelected, tracker: RunTracker) -> str | None:
    assert tracker.state is not None
    return f"  {format_run_state(tracker.state)}" if event.round > 0 else None


def _narrate_round(event: RoundStarted, tracker: RunTracker) -> str:
    assert tracker.state is not None
    return format_round(event.round, tracker.state.config.search.rounds)


def format_round(number: int, most: int) -> str:
    """Name a round; kernels that came in after the last round get one more."""
    if number > most:
        return f"round {number}, for kernels that came in after the last of {most}"
    return f"round {number} of at most {most}"


def _narrate_discarded(event: KernelDiscarded, tracker: RunTracker) -> str | None:
    """Report the refused initial kernel and kernels that looked right at first; others are only counted."""
    if event.candidate == INITIAL_KEY.candidate_id and event.verdict is not None:
        error = tracker.initial_error
        why = f": {error.message}" if error is not None else ""
        return f"the initial kernel was refused, {event.verdict.value}{why}"
    if event.reason != "refuted" or event.verdict is None:
        return None
    return f"  refuted: {event.candidate}, {event.verdict.value} when more of its outputs was compared"


def _narrate_refuted(event: KernelRefuted, tracker: RunTracker) -> str:
    instead = format_candidate(event.best) if event.best else "nothing is left"
    return f"  refuted: {event.candidate}, {event.verdict.value}: {event.error.message}; best now {instead}"


def _narrate_completed(event: RunCompleted, tracker: RunTracker) -> str:
    return f"run {tracker.run} completed: {format_stop_reason(event.reason, event.detail)}"


def _narrate_paused(event: RunPaused, tracker: RunTracker) -> str:
    remedy = _pause_remedy(tracker.run, event.cause, needs_approval=bool(event.needs_approval))
    return f"run {tracker.run} paused: {event.reason}; {remedy}"


def explain_pause(run: str, state: RunState) -> str:
    """Return why a run is paused, and what makes it go on."""
    remedy = _pause_remedy(run, state.pause_cause, needs_approval=bool(state.needs_approval))
    return f"{state.status_reason}; {remedy}"


def _pause_remedy(run: str, cause: PauseCause, *, needs_approval: bool) -> str:
    if needs_approval:
        return f"let it go on with: {format_command('approve', run)}"
    match cause:
        case PauseCause.PROVIDER:
            return f"correct the key or the account, then: {format_command('resume', run)}"
        case PauseCause.SPACE:
            return "free disk space, and it goes on by itself"
        case PauseCause.DAY:
            return "it goes on by itself when a new day has room"
        case PauseCause.HOSTS:
            return "it goes on by itself when a host answers"
        case PauseCause.MACHINE:
            return f"mend the machine (agentctl doctor tries it), then: {format_command('resume', run)}"
        case PauseCause.PERSON:
            return f"let it go on with: {format_command('resume', run)}"


_WORK = {
    Role.PREDICTOR: "looking ahead",
    Role.PLANNER: "planning",
    Role.EXECUTOR: "writing kernels",
    Role.EVALUATOR: "judging",
    Role.VERIFIER: "verifying",
    Role.AUDITOR: "auditing",
    Role.SUMMARIZER: "summarising",
    Role.REFLECTOR: "reflecting",
}


def format_work_in_flight(state: RunState, predictions: int = 0) -> str:
    """Return what a run is doing: each kind of work with its number of effects.

    `predictions` are those that look-aheads, or a simplification, in flight have made so far.
    """
    keys = [EffectKey.parse(key) for key in state.open]
    if any(is_simplification(key) and key.role is Role.EXECUTOR for key in keys):
        from agent_core.simplification import MOST_PREDICTIONS

        return "simplifying the best kernel" + _count_of_most(predictions, MOST_PREDICTIONS)
    counts = Counter(key.role for key in keys)
    told = {role: f"{_WORK.get(role, role.value)} {count}" for role, count in counts.items()}
    if looking := counts[Role.PREDICTOR]:
        told[Role.PREDICTOR] += _count_of_most(
            predictions, looking * state.config.search.lookahead_predictions
        )
    return ", ".join(told.values()) or "deciding"


def _count_of_most(predictions: int, most: int) -> str:
    return f" ({predictions} of at most {most} predictions)" if predictions else ""


def _narrate_sequences(event: SequencesGiven, tracker: RunTracker) -> str:
    """Return how a run uses learnt sequences: planners that look ahead try them first."""
    planners = tracker.state.config.planner if tracker.state is not None else ()
    from agent_core.proposers import can_look_ahead

    use = "tries first" if any(map(can_look_ahead, planners)) else "told"
    return f"{use} what paid in {'; '.join(map(format_sequence_origin, event.sequences))}"


_NARRATORS: dict[type[Event], Callable[[Any, RunTracker], str | None]] = {
    RunCreated: lambda event, tracker: _describe_run(tracker.run, event.config, event.bounds),
    ExecutionFailed: _narrate_failure,
    KernelKept: _narrate_kept,
    KernelDiscarded: _narrate_discarded,
    KernelRefuted: _narrate_refuted,
    KernelReverted: lambda event, _: (
        f"  lineage {event.lineage} reverted to {event.restored}: {event.reason}"
    ),
    BeamSelected: _narrate_beam,
    SequencesGiven: _narrate_sequences,
    TechniquesGiven: lambda event, _: f"offered {format_techniques(event.techniques)}",
    ExperiencesGiven: lambda event, _: f"told {format_experience_origins(event.experiences)}",
    RoundStarted: _narrate_round,
    RunForked: lambda event, tracker: (
        f"run {tracker.run} continues {event.parent} from its event {event.parent_seq}"
    ),
    RunPaused: _narrate_paused,
    RunResumed: lambda _, tracker: f"run {tracker.run} resumed",
    RunCancelled: lambda event, tracker: f"run {tracker.run} cancelled: {event.reason}",
    RunCompleted: _narrate_completed,
}


def format_counter(name: str, value: float) -> str:
    """Return a counter's value with the unit that the end of its name implies."""
    for ending, write in _UNITS.items():
        if name.endswith(ending):
            return write(value)
    return f"{value:,.0f}" if value == int(value) else f"{value:,.4g}"


def name_counter(name: str) -> str:
    """Return a counter's name, with what it relates to where the name does not say it."""
    note = counter_notes().get(name)
    return f"{name} ({note})" if note else name


def format_scaled(value: float, unit: str) -> str:
    """Return a value with the decimal prefix that leaves one to three digits before the point."""
    for factor, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= factor:
            return f"{value / factor:.1f} {prefix}{unit}"
    return f"{value:.4g} {unit}"


_UNITS: dict[str, Callable[[float], str]] = {
    "_bytes": lambda value: format_scaled(value, "B"),
    "_flops": lambda value: format_scaled(value, "flop"),
    "_percent": format_percent,
    "time": lambda value: format_ms(1e3 * value),
}
"""How to write counters, by the ends of their names; times are in seconds."""
