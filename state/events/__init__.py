"""The events: what can have happened, in the past tense, as one discriminated union.

Each event is a frozen model with its own `version`; a change of shape raises the version and adds an
upcaster (`state.upcast`), rows are never rewritten. Events hold facts only. Large text (kernel
source, prompts, profiles, requests) is a blob, named here by its digest.

An **effect** is two events: `...Started` (with the whole request by blob) and one terminal outcome.
`idempotency_key` derives the key under which a log accepts such an event once: it is what makes a
second outcome impossible.
"""

from state.events.base import EffectEnded, EffectStarted, Event
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
    ProfileRecorded,
    ReflectionRecorded,
    ReflectionStarted,
    SummaryStarted,
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
from state.events.union import EVENT, EVENT_TYPES, FAMILIES, AnyEvent, effect_key, idempotency_key

__all__ = [
    "EVENT",
    "EVENT_TYPES",
    "FAMILIES",
    "AnyEvent",
    "BeamSelected",
    "BreakerClosed",
    "BreakerOpened",
    "BudgetReserved",
    "BudgetSpent",
    "CommandCompleted",
    "CommandReceived",
    "CommandRejected",
    "ConfigChanged",
    "ConfigRefused",
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
    "SummaryStarted",
    "effect_key",
    "idempotency_key",
]
