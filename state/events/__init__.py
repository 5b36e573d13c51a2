"""The events: everything that can happen, in the past tense, as one discriminated union.

Each event is a frozen model with its own `version`. A change of its shape raises the version and adds an
upcaster (`state.upcast`); stored rows are never rewritten. Events hold facts only. Large text (kernel
sources, prompts, profiles, requests) is a blob, named here by its digest.

An **effect** is two events: `...Started` (which names the blob of the whole request) and one terminal
outcome. `idempotency_key` derives the key under which a log accepts such an event only once, which makes a
second outcome impossible.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from state.events.base import EffectEnded, EffectStarted, Event
from state.events.call import (
    BudgetShort,
    BudgetWarned,
    CallCompleted,
    CallEnded,
    CallFailed,
    CallLost,
    CallStarted,
    DayReserved,
    DaySettled,
)
from state.events.command import CommandCompleted, CommandReceived, CommandRejected, LogRewritten
from state.events.decision import (
    BeamSelected,
    GuardCheckpointed,
    KernelDiscarded,
    KernelKept,
    KernelRefuted,
    KernelReverted,
    MemoryCurated,
    RoundCompleted,
    RoundDeadlinePassed,
    RoundStarted,
)
from state.events.effect import (
    EvaluationCompleted,
    EvaluationFailed,
    EvaluationStarted,
    ExecutionFailed,
    ExecutionStarted,
    ExperienceRecorded,
    KernelProposed,
    PlanFailed,
    PlanProposed,
    PlanStarted,
    PredictionBatch,
    PredictionStarted,
    ProfileRecorded,
    ReflectionRecorded,
    ReflectionStarted,
    SummaryStarted,
)
from state.events.learning import (
    ExperiencesForgotten,
    ExperiencesGiven,
    ExperiencesLearnt,
    SequenceLearnt,
    SequencesGiven,
    TechniquesGiven,
    TechniquesLearnt,
)
from state.events.run import (
    ConfigChanged,
    ConfigRefused,
    RunCancelled,
    RunCompleted,
    RunCreated,
    RunForked,
    RunPaused,
    RunResumed,
)
from state.events.safety import (
    BreakerClosed,
    BreakerOpened,
    BudgetReserved,
    BudgetSpent,
    DeviceLeased,
    DeviceReleased,
)
from state.model import EffectKey

__all__ = [
    "EVENT_TYPES",
    "FAMILIES",
    "FAMILY_OF",
    "AnyEvent",
    "BeamSelected",
    "BreakerClosed",
    "BreakerOpened",
    "BudgetReserved",
    "BudgetShort",
    "BudgetSpent",
    "BudgetWarned",
    "CallCompleted",
    "CallEnded",
    "CallFailed",
    "CallLost",
    "CallStarted",
    "CommandCompleted",
    "CommandReceived",
    "CommandRejected",
    "ConfigChanged",
    "ConfigRefused",
    "DayReserved",
    "DaySettled",
    "DeviceLeased",
    "DeviceReleased",
    "EffectEnded",
    "EffectStarted",
    "EvaluationCompleted",
    "EvaluationFailed",
    "EvaluationStarted",
    "Event",
    "ExecutionFailed",
    "ExecutionStarted",
    "ExperienceRecorded",
    "ExperiencesForgotten",
    "ExperiencesGiven",
    "ExperiencesLearnt",
    "GuardCheckpointed",
    "KernelDiscarded",
    "KernelKept",
    "KernelProposed",
    "KernelRefuted",
    "KernelReverted",
    "LogRewritten",
    "MemoryCurated",
    "PlanFailed",
    "PlanProposed",
    "PlanStarted",
    "PredictionBatch",
    "PredictionStarted",
    "ProfileRecorded",
    "ReflectionRecorded",
    "ReflectionStarted",
    "RoundCompleted",
    "RoundDeadlinePassed",
    "RoundStarted",
    "RunCancelled",
    "RunCompleted",
    "RunCreated",
    "RunForked",
    "RunPaused",
    "RunResumed",
    "SequenceLearnt",
    "SequencesGiven",
    "SummaryStarted",
    "TechniquesGiven",
    "TechniquesLearnt",
    "effect_key",
    "idempotency_key",
]


AnyEvent = Annotated[
    RunCreated | RunForked | RunPaused | RunResumed | RunCancelled | RunCompleted | ConfigChanged
    | ConfigRefused
    | CommandReceived | CommandCompleted | CommandRejected | LogRewritten
    | RoundStarted | RoundDeadlinePassed | BeamSelected | RoundCompleted
    | PredictionStarted | PredictionBatch
    | PlanStarted | PlanProposed | PlanFailed
    | ExecutionStarted | KernelProposed | ExecutionFailed
    | EvaluationStarted | EvaluationCompleted | EvaluationFailed | ProfileRecorded
    | SummaryStarted | ExperienceRecorded | ReflectionStarted | ReflectionRecorded
    | SequenceLearnt | SequencesGiven | ExperiencesLearnt | ExperiencesForgotten | ExperiencesGiven
    | TechniquesLearnt | TechniquesGiven
    | KernelKept | KernelDiscarded | KernelReverted | KernelRefuted | GuardCheckpointed | MemoryCurated
    | CallStarted | CallCompleted | CallFailed | CallLost
    | BudgetShort | BudgetWarned | DayReserved | DaySettled
    | BudgetReserved | BudgetSpent | BreakerOpened | BreakerClosed | DeviceLeased | DeviceReleased,
    Field(discriminator="type"),
]  # fmt: skip

EVENT_TYPES: dict[str, type[Event]] = {
    cls.model_fields["type"].default: cls
    for base in (Event, EffectStarted, EffectEnded, CallEnded)
    for cls in base.__subclasses__()
    if "type" in cls.model_fields
}

FAMILIES: dict[str, tuple[str, ...]] = {
    "run": (
        "RunCreated", "RunForked", "RunPaused", "RunResumed", "RunCancelled", "RunCompleted", "ConfigChanged",
        "ConfigRefused",
    ),
    "command": ("CommandReceived", "CommandCompleted", "CommandRejected"),
    "log": ("LogRewritten",),
    "round": ("RoundStarted", "RoundDeadlinePassed", "BeamSelected", "RoundCompleted"),
    "plan": ("PlanStarted", "PlanProposed", "PlanFailed"),
    "execution": ("ExecutionStarted", "KernelProposed", "ExecutionFailed"),
    "evaluation": (
        "EvaluationStarted", "EvaluationCompleted", "EvaluationFailed", "ProfileRecorded",
        "PredictionStarted", "PredictionBatch",
    ),
    "decision": ("KernelKept", "KernelDiscarded", "KernelReverted", "KernelRefuted", "GuardCheckpointed"),
    "learning": (
        "SummaryStarted", "ExperienceRecorded", "MemoryCurated", "ReflectionStarted", "ReflectionRecorded",
        "SequenceLearnt", "SequencesGiven", "ExperiencesLearnt", "ExperiencesForgotten", "ExperiencesGiven",
        "TechniquesLearnt", "TechniquesGiven",
    ),
    "safety": (
        "BudgetReserved", "BudgetSpent", "BreakerOpened", "BreakerClosed", "DeviceLeased", "DeviceReleased",
        "BudgetShort", "BudgetWarned", "DayReserved", "DaySettled",
    ),
    "call": ("CallStarted", "CallCompleted", "CallFailed", "CallLost"),
}  # fmt: skip
"""Event types by family, as `agentctl tail --type` uses them."""

FAMILY_OF: dict[str, str] = {type_: family for family, types in FAMILIES.items() for type_ in types}
"""The family of each type."""


def idempotency_key(event: Event) -> str | None:
    """Return the key under which a run's log accepts `event` only once, or None if repeats are legal.

    Commands are unique by file id, starts of effects by delivery. All outcomes of an effect share one key, so
    a second outcome cannot be stored; the same holds for the attempts of a call.
    """
    match event:
        case EffectStarted(key=key, delivery=delivery):
            return f"{key}#start{delivery}"
        case EffectEnded(key=key):
            return f"{key}#outcome"
        case CallStarted(key=key, call=call, attempt=attempt):
            return f"{key}#call{call}.{attempt}"
        case CallEnded(key=key, call=call, attempt=attempt):
            return f"{key}#call{call}.{attempt}#outcome"
        case DayReserved(call=named) | DaySettled(call=named):
            return f"{named}#{type(event).__name__}"
        case CommandReceived(id=id_):
            return f"{id_}#received"
        case CommandCompleted(id=id_) | CommandRejected(id=id_):
            return f"{id_}#answer"
        case (
            RoundStarted(round=round_)
            | RoundDeadlinePassed(round=round_)
            | BeamSelected(round=round_)
            | RoundCompleted(round=round_)
            | SequencesGiven(round=round_)
            | ExperiencesGiven(round=round_)
            | TechniquesGiven(round=round_)
        ):
            return f"r{round_}#{type(event).__name__}"
        case RunCreated() | RunForked():
            return "created"
        case KernelRefuted(candidate=candidate):
            return f"{candidate}#refuted"
        case ProfileRecorded(key=key):
            return f"{key}#profile"
        case _:
            return None


def effect_key(event: Any) -> EffectKey:
    """Return the parsed key of an effect's event."""
    return EffectKey.parse(event.key)
