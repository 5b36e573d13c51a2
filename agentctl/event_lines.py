"""Formats events as lines for `agentctl tail`: one table of descriptions by type, with a default."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from agentctl.call_lines import CALL_DESCRIBERS
from agentctl.formatting import (
    LEVELS,
    format_brief_latency,
    format_count,
    format_discard_reason,
    format_experience_origins,
    format_latency,
    format_ms,
    format_percent,
    format_sequence_origin,
    format_speedup,
    format_stop_reason,
    format_techniques,
)
from agentctl.terminal_style import escape_marks
from state.events import (
    BeamSelected,
    CommandCompleted,
    CommandReceived,
    CommandRejected,
    ConfigChanged,
    ConfigRefused,
    DeviceCalibrated,
    EffectStarted,
    EvaluationCompleted,
    EvaluationFailed,
    Event,
    ExecutionFailed,
    ExperienceRecorded,
    ExperiencesForgotten,
    ExperiencesGiven,
    ExperiencesLearnt,
    GuardCheckpointed,
    KernelDiscarded,
    KernelKept,
    KernelProposed,
    KernelRefuted,
    KernelReverted,
    LogRewritten,
    MemoryCurated,
    PlanFailed,
    PlanProposed,
    PredictionBatch,
    ProfileRecorded,
    ReflectionRecorded,
    RoundCompleted,
    RoundStarted,
    RunCancelled,
    RunCompleted,
    RunCreated,
    RunForked,
    RunPaused,
    RunResumed,
    SequenceLearnt,
    SequencesGiven,
    TechniquesGiven,
    TechniquesLearnt,
    effect_key,
)
from state.model import JUDGES, ErrorInfo, Role
from state.records import RecordedEvent

LINE_WIDTH = 160
SHORT_VERSION = 12
"""Characters of a prompt version that are shown."""


def format_event_line(item: RecordedEvent, *, width: int | None = LINE_WIDTH) -> str:
    """Return an event as one line: time, place, type, then its facts; cut at LINE_WIDTH unless `width`
    is None.
    """
    place = f"{item.time:%Y-%m-%dT%H:%M:%S.%f}"[:-3] + f"Z {item.stream}@{item.run_seq}"
    line = f"{place} {item.type}{_join_facts(item.event)}"
    return line if width is None else _truncate_line(line)


def describe_event(event: Event) -> str:
    """Describe an event in words; a type without a description of its own gets its fields."""
    tell = next((_DESCRIBERS[kind] for kind in type(event).__mro__ if kind in _DESCRIBERS), _format_fields)
    # no style is set here: a colour code is somebody else's, even if it is one that we use too
    return escape_marks(" ".join(tell(event).split()))


def _join_facts(event: Event) -> str:
    """Return the text after the type: the candidate, if there is one, and the facts."""
    key = getattr(event, "key", None)
    subject = f" {key.rpartition('.')[0]}" if isinstance(key, str) else ""
    said = describe_event(event)
    return f"{subject}: {said}" if said else subject


def _truncate_line(line: str) -> str:
    if len(line) <= LINE_WIDTH:
        return line
    head, _, rest = line[: LINE_WIDTH - 3].rpartition(" ")
    return f"{head if len(rest) < LINE_WIDTH // 2 else line[: LINE_WIDTH - 3]}..."


def _format_fields(event: Event) -> str:
    """Return the fields of an event that are set; a collection is shown as its length."""
    values = event.model_dump(mode="json", exclude={"type", "key"}, exclude_defaults=True)
    return ", ".join(f"{name} {_format_value(value)}" for name, value in values.items())


def _format_value(value: Any) -> str:
    return f"({len(value)})" if isinstance(value, dict | list) else str(value)


def _format_error(error: ErrorInfo) -> str:
    where = f"line {error.line}: " if error.line is not None else ""
    return f"{where}{error.message} [{error.code}]"


def _describe_run_created(event: RunCreated) -> str:
    config = event.config
    return (
        f"{config.problem} ({config.size}) on {config.target}, seed {config.seed}, at most "
        f"{format_count(config.search.rounds, 'round')}; model bound {format_ms(event.bounds.tight_ms)}"
    )


def _describe_effect_started(event: EffectStarted) -> str:
    again = [f"delivery {event.delivery}"] if event.delivery > 1 else []
    return ", ".join([*_repeated_judge(effect_key(event).role), *again])


def _repeated_judge(role: Role) -> list[str]:
    """Return the judge of a repeated judgement; for other roles, the event's type already says it."""
    return [role.value] if role in JUDGES and role is not Role.EVALUATOR else []


def _command_origin(origin: str | None) -> list[str]:
    """Return where a command was given, if it was not the command line."""
    return [f"given on the {origin}"] if origin not in (None, "agentctl") else []


def _describe_command_completed(event: CommandCompleted) -> str:
    result = event.result if isinstance(event.result, dict) else {}
    return ", ".join([event.id, *(f"{name} {value}" for name, value in result.items())])


def _describe_evaluation(event: EvaluationCompleted) -> str:
    found = event.evaluation
    text = found.verdict.value + (f" on {LEVELS[found.level]}" if found.is_correct else "")
    if found.identity is not None:
        text += f", {found.identity.verdict}"
    if found.benchmark is not None:
        text += f", {format_latency(found.benchmark)}"
    if found.bottleneck is not None:
        idle = found.bottleneck == "underutilised"
        text += f", {found.bottleneck}{'' if idle else '-bound'}"
    if found.error is not None:
        text += f": {_format_error(found.error)}"
    for warning in found.warnings:
        text += f"; warning: {_format_error(warning)}"
    if event.where is not None:
        text += f", on {event.where.host}{'' if event.where.compares else ', whose times may not compare'}"
    return text + (f"; known from {event.cached_from}" if event.cached_from else "")


def _describe_predictions(event: PredictionBatch) -> str:
    text = f"{format_count(event.predicted, 'kernel')} predicted, {event.failed} failed, "
    text += f"{format_count(event.count, 'variant')} to judge"
    text += f", the best {format_ms(event.best_ms)} predicted" if event.best_ms is not None else ""
    return text + (f": {_format_error(event.error)}" if event.error is not None else "")


def _describe_kept(event: KernelKept) -> str:
    one = event.candidate
    gain = "" if event.speedup is None else f", {format_speedup(event.speedup)} over its parent"
    return f"{one.id}: {event.role.value}, {format_brief_latency(one.benchmark)}{gain}: {one.title}"


def _describe_discarded(event: KernelDiscarded) -> str:
    other = f" of {event.duplicate_of}" if event.duplicate_of else ""
    if event.wins_percent is not None:
        other = f", faster than {event.against} with only {format_percent(event.wins_percent)} confidence"
    if event.reason == "refuted" and event.verdict is not None:
        other = f", {event.verdict.value}"
    return f"{event.candidate}: {format_discard_reason(event.reason)}{other}"


def _describe_refuted(event: KernelRefuted) -> str:
    best = event.best.id if event.best else "nothing"
    return f"{event.candidate}: {event.verdict.value}, best now {best}: {_format_error(event.error)}"


def _prompts_version(version: str | None) -> list[str]:
    return [] if version is None else [f"prompts {version[:SHORT_VERSION]}"]


def _describe_run_completed(event: RunCompleted) -> str:
    level = f"; best correct on {LEVELS[event.level]}" if event.level else ""
    return format_stop_reason(event.reason, event.detail) + level


def _describe_beam(event: BeamSelected) -> str:
    beam = ", ".join(f"{entry.candidate.id} {format_ms(entry.candidate.latency_ms)}" for entry in event.beam)
    return f"round {event.round}: {beam or 'nothing'}"


def _describe_experience(event: ExperienceRecorded) -> str:
    one = event.experience
    return "nothing" if one is None else f"{one.kind.value}, {one.technique}, {format_speedup(one.speedup)}"


def _describe_reflection(event: ReflectionRecorded) -> str:
    one = event.reflection
    actual = (
        "without a latency" if one.actual_speedup is None else f"got {format_speedup(one.actual_speedup)}"
    )
    expected = format_speedup(one.predicted_speedup)
    return f"{one.technique}: prediction {one.grade.value}, expected {expected}, {actual}"


def _describe_checkpoint(event: GuardCheckpointed) -> str:
    mark = event.checkpoint
    return f"lineage {mark.lineage} at {mark.candidate.id}, depth {mark.depth}"


_DESCRIBERS: dict[type[Event], Callable[[Any], str]] = {
    RunCreated: _describe_run_created,
    RunForked: lambda event: f"from {event.parent}@{event.parent_seq}",
    RunPaused: lambda event: event.reason,
    RunResumed: lambda event: event.reason,
    ConfigChanged: lambda event: ", ".join([*event.pinned, *_prompts_version(event.prompts)]),
    ConfigRefused: lambda event: _format_error(event.error),
    RunCancelled: lambda event: event.reason,
    RunCompleted: _describe_run_completed,
    CommandReceived: lambda event: ", ".join([event.id, event.verb, *_command_origin(event.origin)]),
    CommandCompleted: _describe_command_completed,
    CommandRejected: lambda event: f"{event.id}: {_format_error(event.error)}",
    LogRewritten: lambda event: f"{event.verb}: {event.detail}",
    RoundStarted: lambda event: ", ".join(
        [
            f"round {event.round}",
            format_count(len(event.slots), "slot"),
            *_prompts_version(event.prompts),
        ]
    ),
    BeamSelected: _describe_beam,
    RoundCompleted: lambda event: f"round {event.round}, {format_count(len(event.attempts), 'attempt')}",
    EffectStarted: _describe_effect_started,
    PlanProposed: lambda event: (
        f"{event.plan.title}, expects {format_speedup(event.plan.prediction.speedup)}"
    ),
    PredictionBatch: _describe_predictions,
    PlanFailed: lambda event: _format_error(event.error),
    KernelProposed: lambda event: f"by {event.author}" + (f": {event.note}" if event.note else ""),
    ExecutionFailed: lambda event: _format_error(event.error),
    EvaluationCompleted: _describe_evaluation,
    EvaluationFailed: lambda event: f"{format_count(event.tries, 'attempt')}: {_format_error(event.error)}",
    ProfileRecorded: lambda event: format_count(len(event.counters), "counter"),
    ExperienceRecorded: _describe_experience,
    ReflectionRecorded: _describe_reflection,
    KernelKept: _describe_kept,
    KernelDiscarded: _describe_discarded,
    KernelRefuted: _describe_refuted,
    KernelReverted: lambda event: f"{event.lineage}: {event.dropped} to {event.restored}, {event.reason}",
    GuardCheckpointed: _describe_checkpoint,
    SequenceLearnt: lambda event: format_sequence_origin(event.sequence),
    SequencesGiven: lambda event: "; ".join(map(format_sequence_origin, event.sequences)),
    TechniquesLearnt: lambda event: format_techniques(event.techniques),
    TechniquesGiven: lambda event: format_techniques(event.techniques),
    DeviceCalibrated: lambda event: (
        f"{event.calibration.name}: {format_count(len(event.calibration.constants), 'constant')} from "
        f"{format_count(len(event.calibration.kernels), 'kernel')} on {event.calibration.host}"
    ),
    ExperiencesLearnt: lambda event: format_experience_origins(event.experiences),
    ExperiencesForgotten: lambda event: ", ".join(event.ids),
    ExperiencesGiven: lambda event: format_experience_origins(event.experiences),
    **CALL_DESCRIBERS,
    MemoryCurated: lambda event: f"round {event.round}, {format_count(len(event.memory), 'experience')}",
}
