"""Events as lines for `agentctl tail`: what each type says to people, as one table with a sane default."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from agentctl.purchases import PURCHASES
from agentctl.words import (
    LEVELS,
    brief,
    count,
    discarded,
    ended,
    latency,
    ms,
    origin,
    origins,
    percentage,
    techniques,
    times,
)
from state.events import (
    BeamSelected,
    CommandCompleted,
    CommandReceived,
    CommandRejected,
    ConfigChanged,
    ConfigRefused,
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
from state.records import Recorded

WIDTH = 160
SHORT = 12
"""Characters of a version of prompts that are shown."""


def as_line(item: Recorded, *, width: int | None = WIDTH) -> str:
    """Return an event as one line: time, place, type, then its facts as far as the line goes."""
    place = f"{item.time:%Y-%m-%dT%H:%M:%S.%f}"[:-3] + f"Z {item.stream}@{item.run_seq}"
    line = f"{place} {item.type}{_joined(item.event)}"
    return line if width is None else _cut(line)


def facts(event: Event) -> str:
    """Return what an event says, in words; of a type that has none of its own, its fields."""
    tell = next((_TELL[kind] for kind in type(event).__mro__ if kind in _TELL), _fields)
    return " ".join(tell(event).split())


def _joined(event: Event) -> str:
    """Return what comes after the type: the candidate that it is about, if any, and the facts."""
    key = getattr(event, "key", None)
    subject = f" {key.rpartition('.')[0]}" if isinstance(key, str) else ""
    said = facts(event)
    return f"{subject}: {said}" if said else subject


def _cut(line: str) -> str:
    if len(line) <= WIDTH:
        return line
    head, _, rest = line[: WIDTH - 3].rpartition(" ")
    return f"{head if len(rest) < WIDTH // 2 else line[: WIDTH - 3]}..."


def _fields(event: Event) -> str:
    """Return the fields of an event that are set; a collection is counted, not shown."""
    values = event.model_dump(mode="json", exclude={"type", "key"}, exclude_defaults=True)
    return ", ".join(f"{name} {_value(value)}" for name, value in values.items())


def _value(value: Any) -> str:
    return f"({len(value)})" if isinstance(value, dict | list) else str(value)


def _failed(error: ErrorInfo) -> str:
    where = f"line {error.line}: " if error.line is not None else ""
    return f"{where}{error.message} [{error.code}]"


def _created(event: RunCreated) -> str:
    config = event.config
    return (
        f"{config.problem} ({config.size}) on {config.target}, seed {config.seed}, at most "
        f"{count(config.search.rounds, 'round')}; tight bound {ms(event.bounds.tight_ms)}"
    )


def _started(event: EffectStarted) -> str:
    again = [f"delivery {event.delivery}"] if event.delivery > 1 else []
    return ", ".join([*_again(effect_key(event).role), *again])


def _again(role: Role) -> list[str]:
    """Return who judges a kernel that was judged before; the others' roles are said by the event's type."""
    return [role.value] if role in JUDGES and role is not Role.EVALUATOR else []


def _elsewhere(origin: str | None) -> list[str]:
    """Return where a command was given, if that is not the command line."""
    return [f"given on the {origin}"] if origin not in (None, "agentctl") else []


def _answered(event: CommandCompleted) -> str:
    result = event.result if isinstance(event.result, dict) else {}
    return ", ".join([event.id, *(f"{name} {value}" for name, value in result.items())])


def _evaluated(event: EvaluationCompleted) -> str:
    found = event.evaluation
    text = found.verdict.value + (f" on {LEVELS[found.level]}" if found.correct else "")
    if found.identity is not None:
        text += f", {found.identity.verdict}"
    if found.benchmark is not None:
        text += f", {latency(found.benchmark)}"
    if found.bottleneck is not None:
        idle = found.bottleneck == "underutilised"
        text += f", {found.bottleneck}{'' if idle else '-bound'}"
    if found.error is not None:
        text += f": {_failed(found.error)}"
    if event.where is not None:
        text += f", on {event.where.host}{'' if event.where.compares else ', whose times may not compare'}"
    return text + (f"; known from {event.cached_from}" if event.cached_from else "")


def _looked_ahead(event: PredictionBatch) -> str:
    text = f"{count(event.predicted, 'kernel')} predicted, {event.failed} failed, "
    text += f"{count(event.count, 'variant')} to judge"
    text += f", the best {ms(event.best_ms)} predicted" if event.best_ms is not None else ""
    return text + (f": {_failed(event.error)}" if event.error is not None else "")


def _kept(event: KernelKept) -> str:
    one = event.candidate
    gain = "" if event.speedup is None else f", {times(event.speedup)} over its parent"
    return f"{one.id}: {event.role.value}, {brief(one.benchmark)}{gain}: {one.title}"


def _discarded(event: KernelDiscarded) -> str:
    other = f" of {event.duplicate_of}" if event.duplicate_of else ""
    if event.wins_percent is not None:
        other = f", faster than {event.against} in only {percentage(event.wins_percent)} of draws that differ"
    if event.reason == "refuted" and event.verdict is not None:
        other = f", {event.verdict.value}"
    return f"{event.candidate}: {discarded(event.reason)}{other}"


def _refuted(event: KernelRefuted) -> str:
    best = event.best.id if event.best else "nothing"
    return f"{event.candidate}: {event.verdict.value}, best now {best}: {_failed(event.error)}"


def _prompts(version: str | None) -> list[str]:
    return [] if version is None else [f"prompts {version[:SHORT]}"]


def _ended(event: RunCompleted) -> str:
    level = f"; best correct on {LEVELS[event.level]}" if event.level else ""
    return ended(event.reason, event.detail) + level


def _selected(event: BeamSelected) -> str:
    beam = ", ".join(f"{entry.candidate.id} {ms(entry.candidate.latency_ms)}" for entry in event.beam)
    return f"round {event.round}: {beam or 'nothing'}"


def _learned(event: ExperienceRecorded) -> str:
    one = event.experience
    return "nothing" if one is None else f"{one.kind.value}, {one.technique}, {times(one.speedup)}"


def _reflected(event: ReflectionRecorded) -> str:
    one = event.reflection
    actual = "without a latency" if one.actual_speedup is None else f"got {times(one.actual_speedup)}"
    return f"{one.technique}: prediction {one.grade.value}, expected {times(one.predicted_speedup)}, {actual}"


def _checkpointed(event: GuardCheckpointed) -> str:
    mark = event.checkpoint
    return f"lineage {mark.lineage} at {mark.candidate.id}, depth {mark.depth}"


_TELL: dict[type[Event], Callable[[Any], str]] = {
    RunCreated: _created,
    RunForked: lambda event: f"from {event.parent}@{event.parent_seq}",
    RunPaused: lambda event: event.reason,
    RunResumed: lambda event: event.reason,
    ConfigChanged: lambda event: ", ".join([*event.pinned, *_prompts(event.prompts)]),
    ConfigRefused: lambda event: _failed(event.error),
    RunCancelled: lambda event: event.reason,
    RunCompleted: _ended,
    CommandReceived: lambda event: ", ".join([event.id, event.verb, *_elsewhere(event.origin)]),
    CommandCompleted: _answered,
    CommandRejected: lambda event: f"{event.id}: {_failed(event.error)}",
    LogRewritten: lambda event: f"{event.verb}: {event.detail}",
    RoundStarted: lambda event: ", ".join(
        [
            f"round {event.round}",
            count(len(event.slots), "slot"),
            *_prompts(event.prompts),
        ]
    ),
    BeamSelected: _selected,
    RoundCompleted: lambda event: f"round {event.round}, {count(len(event.attempts), 'attempt')}",
    EffectStarted: _started,
    PlanProposed: lambda event: f"{event.plan.title}, expects {times(event.plan.prediction.speedup)}",
    PredictionBatch: _looked_ahead,
    PlanFailed: lambda event: _failed(event.error),
    KernelProposed: lambda event: f"by {event.author}" + (f": {event.note}" if event.note else ""),
    ExecutionFailed: lambda event: _failed(event.error),
    EvaluationCompleted: _evaluated,
    EvaluationFailed: lambda event: f"{count(event.tries, 'attempt')}: {_failed(event.error)}",
    ProfileRecorded: lambda event: count(len(event.counters), "counter"),
    ExperienceRecorded: _learned,
    ReflectionRecorded: _reflected,
    KernelKept: _kept,
    KernelDiscarded: _discarded,
    KernelRefuted: _refuted,
    KernelReverted: lambda event: f"{event.lineage}: {event.dropped} to {event.restored}, {event.reason}",
    GuardCheckpointed: _checkpointed,
    SequenceLearnt: lambda event: origin(event.sequence),
    SequencesGiven: lambda event: "; ".join(map(origin, event.sequences)),
    TechniquesLearnt: lambda event: techniques(event.techniques),
    TechniquesGiven: lambda event: techniques(event.techniques),
    ExperiencesLearnt: lambda event: origins(event.experiences),
    ExperiencesForgotten: lambda event: ", ".join(event.ids),
    ExperiencesGiven: lambda event: origins(event.experiences),
    **PURCHASES,
    MemoryCurated: lambda event: f"round {event.round}, {count(len(event.memory), 'experience')}",
}
