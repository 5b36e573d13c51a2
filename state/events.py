"""The events: what can have happened, in the past tense, as one discriminated union.

Each event is a frozen model with its own `version`; a change of shape raises the version and adds an
upcaster (`state.upcast`), rows are never rewritten. Events hold facts only. Large text (kernel
source, prompts, profiles, requests) is a blob, named here by its digest.

An **effect** is two events: `...Started` (with the whole request by blob) and one terminal outcome.
`idempotency_key` derives the key under which a log accepts such an event once: it is what makes a
second outcome impossible.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, JsonValue, TypeAdapter

from state.model import (
    Attempt,
    BeamEntry,
    BeamRole,
    Bounds,
    Candidate,
    Checkpoint,
    Credit,
    Digest,
    EffectKey,
    Ending,
    ErrorInfo,
    Evaluation,
    Experience,
    Frozen,
    Key,
    Level,
    Plan,
    ProblemRef,
    Rebase,
    Reflection,
    RunConfig,
    SlotAssignment,
    StopReason,
    Usage,
    Verdict,
)


class Event(Frozen):
    """Base of all events. `version` is the version of the payload's shape."""

    version: ClassVar[int] = 1


# --- run -------------------------------------------------------------------------------------------


class RunCreated(Event):
    """A run begins: the whole problem, the kernel to start from, and the effective configuration.

    `pinned` are the keys that somebody set for this run: edits of the configuration file leave them alone.
    """

    version = 3
    type: Literal["RunCreated"] = "RunCreated"
    config: RunConfig
    problem: ProblemRef
    kernel: Digest
    bounds: Bounds
    toolchain: str
    code_version: str
    pinned: tuple[str, ...] = ()


class RunForked(Event):
    """A run continues another's history from one of its events; nothing is copied.

    Effects in flight there are abandoned. With `rebase`, kernels are judged by something else from here on:
    the round under way is abandoned too, and the beam is judged anew first. `pinned` as in RunCreated.
    """

    version = 2
    type: Literal["RunForked"] = "RunForked"
    parent: str
    parent_seq: int = Field(ge=1)
    parent_hash: Digest
    rebase: Rebase | None = None
    pinned: tuple[str, ...] = ()


class RunPaused(Event):
    """Nothing new starts in the run. `needs_approval` names the points at which it waits for a person."""

    version = 2
    type: Literal["RunPaused"] = "RunPaused"
    reason: str
    needs_approval: tuple[str, ...] = ()


class RunResumed(Event):
    """The run goes on. `approved` are the points that it waited at, which a person has let pass."""

    version = 2
    type: Literal["RunResumed"] = "RunResumed"
    reason: str = ""
    approved: tuple[str, ...] = ()


class RunCancelled(Event):
    type: Literal["RunCancelled"] = "RunCancelled"
    reason: str


class RunCompleted(Event):
    """The run is over. `level` is how much of the best kernel was compared; None where there is none."""

    version = 2
    type: Literal["RunCompleted"] = "RunCompleted"
    reason: StopReason
    detail: str = ""
    level: Level | None = None


class ConfigChanged(Event):
    """New effective settings, of a run or, in the system stream, of the configuration file.

    Those of a run count from its next RoundStarted on. `pinned` as in RunCreated.
    """

    version = 3
    type: Literal["ConfigChanged"] = "ConfigChanged"
    config: JsonValue
    pinned: tuple[str, ...] = ()


class ConfigRefused(Event):
    """The configuration file was edited and has faults; what was in force stays so."""

    type: Literal["ConfigRefused"] = "ConfigRefused"
    error: ErrorInfo


# --- command (system stream) -----------------------------------------------------------------------


class CommandReceived(Event):
    """A file from the inbox was taken in; `id` is the file's id, `payload` its whole content."""

    type: Literal["CommandReceived"] = "CommandReceived"
    id: str
    verb: str
    payload: Digest


class CommandCompleted(Event):
    type: Literal["CommandCompleted"] = "CommandCompleted"
    id: str
    result: JsonValue = None


class CommandRejected(Event):
    type: Literal["CommandRejected"] = "CommandRejected"
    id: str
    error: ErrorInfo


class LogRewritten(Event):
    """The log's file was made anew, its owner stopped: `verb` says by what, `runs` what it meant for each.

    Events that are in the log no longer left a gap in its numbers; `taken_out` is how many.
    """

    type: Literal["LogRewritten"] = "LogRewritten"
    verb: Literal["compact", "import", "repair", "restore"]
    detail: str
    runs: dict[str, str] = Field(default_factory=dict)
    taken_out: int = Field(default=0, ge=0)


# --- round -----------------------------------------------------------------------------------------


class RoundStarted(Event):
    """A round begins; the learning state that its proposals read is frozen here."""

    type: Literal["RoundStarted"] = "RoundStarted"
    round: int = Field(ge=1)
    slots: tuple[SlotAssignment, ...]


class RoundDeadlinePassed(Event):
    """The round has taken long enough: it closes with what is there. What is in flight competes in the next."""

    type: Literal["RoundDeadlinePassed"] = "RoundDeadlinePassed"
    round: int = Field(ge=1)


class BeamSelected(Event):
    version = 3
    type: Literal["BeamSelected"] = "BeamSelected"
    round: int = Field(ge=0)
    beam: tuple[BeamEntry, ...]


class RoundCompleted(Event):
    """The round's barrier: what the round taught takes effect, in slot order.

    `attempts` are the round's own; `credits` and `reflections` are the whole new state, so that a later
    version with another way of learning replays old runs to the state they had. `idle` says that nothing was
    judged in it, and why, so that another round would ask the same.
    """

    version = 2
    type: Literal["RoundCompleted"] = "RoundCompleted"
    round: int = Field(ge=1)
    attempts: tuple[Attempt, ...] = ()
    credits: dict[str, Credit] = Field(default_factory=dict)
    reflections: tuple[Reflection, ...] = ()
    idle: Ending | None = None


# --- effects: plan, execution, evaluation, learning ------------------------------------------------


class EffectStarted(Event):
    """An effect was admitted. `delivery` counts starts of the same effect; it rises after a crash."""

    key: Key
    request: Digest
    delivery: int = Field(default=1, ge=1)
    reserved_usd: float = Field(default=0.0, ge=0, allow_inf_nan=False)


class EffectEnded(Event):
    """Base of all terminal outcomes."""

    key: Key
    usage: Usage = Usage()


class PlanStarted(EffectStarted):
    type: Literal["PlanStarted"] = "PlanStarted"


class PlanProposed(EffectEnded):
    type: Literal["PlanProposed"] = "PlanProposed"
    plan: Plan


class PlanFailed(EffectEnded):
    type: Literal["PlanFailed"] = "PlanFailed"
    error: ErrorInfo


class ExecutionStarted(EffectStarted):
    type: Literal["ExecutionStarted"] = "ExecutionStarted"


class KernelProposed(EffectEnded):
    """A kernel exists. `note` says what was changed (for people), `author` who proposed it."""

    type: Literal["KernelProposed"] = "KernelProposed"
    source: Digest
    note: str = ""
    author: str = "builtin"


class ExecutionFailed(EffectEnded):
    type: Literal["ExecutionFailed"] = "ExecutionFailed"
    error: ErrorInfo


class EvaluationStarted(EffectStarted):
    type: Literal["EvaluationStarted"] = "EvaluationStarted"


class EvaluationCompleted(EffectEnded):
    """The judge's verdict. `cache_key` names (code, problem, toolchain, target); `cached_from` is the
    RUN@SEQ whose verdict was reused, None when the kernel was judged for this event."""

    version = 3
    type: Literal["EvaluationCompleted"] = "EvaluationCompleted"
    evaluation: Evaluation
    cache_key: Digest
    cached_from: str | None = None
    stage_ms: dict[str, float] = Field(default_factory=dict)


class EvaluationFailed(EffectEnded):
    """The infrastructure failed, after `tries` tries; never counted against the candidate."""

    type: Literal["EvaluationFailed"] = "EvaluationFailed"
    error: ErrorInfo
    tries: int = Field(ge=1)


class ProfileRecorded(Event):
    """The counters of an evaluated kernel, for people and plots; decisions read EvaluationCompleted."""

    type: Literal["ProfileRecorded"] = "ProfileRecorded"
    key: Key
    profile: Digest
    counters: dict[str, float]


class SummaryStarted(EffectStarted):
    type: Literal["SummaryStarted"] = "SummaryStarted"


class ExperienceRecorded(EffectEnded):
    """The summarizer's answer on one (slow, fast) pair; None when it found no optimisation in it."""

    type: Literal["ExperienceRecorded"] = "ExperienceRecorded"
    experience: Experience | None


class ReflectionStarted(EffectStarted):
    type: Literal["ReflectionStarted"] = "ReflectionStarted"


class ReflectionRecorded(EffectEnded):
    type: Literal["ReflectionRecorded"] = "ReflectionRecorded"
    reflection: Reflection


# --- decision --------------------------------------------------------------------------------------


class KernelKept(Event):
    """A correct kernel enters the next beam."""

    version = 3
    type: Literal["KernelKept"] = "KernelKept"
    candidate: Candidate
    role: BeamRole
    speedup: float | None
    """Parent latency over its latency; None for the initial kernel."""


class KernelDiscarded(Event):
    """`reason`: a verdict that is not `correct`, or duplicate, slower, uncertain, not_selected, refuted,
    infrastructure.

    An uncertain kernel is predicted faster than `against`, but in only `wins_percent` of the draws. A refuted
    one was correct as far as it was compared at first; `verdict` is what came of comparing more.
    """

    version = 3
    type: Literal["KernelDiscarded"] = "KernelDiscarded"
    candidate: str
    reason: str
    verdict: Verdict | None = None
    duplicate_of: str | None = None
    against: str | None = None
    wins_percent: float | None = None


class KernelReverted(Event):
    """A lineage diverged and goes back to its checkpoint. `reason`: slower or depth."""

    type: Literal["KernelReverted"] = "KernelReverted"
    lineage: str
    dropped: str
    restored: str
    reason: str


class KernelRefuted(Event):
    """The best kernel was wrong after all: it leaves, with all that was learnt from it.

    `best` takes its place; None when nothing is left to stand. All fields but the first three are the whole
    new state.
    """

    type: Literal["KernelRefuted"] = "KernelRefuted"
    candidate: str
    verdict: Verdict
    error: ErrorInfo
    best: Candidate | None
    beam: tuple[BeamEntry, ...]
    checkpoints: tuple[Checkpoint, ...]
    memory: tuple[Experience, ...]
    reflections: tuple[Reflection, ...]
    attempts: tuple[Attempt, ...]
    credits: dict[str, Credit]


class GuardCheckpointed(Event):
    version = 3
    type: Literal["GuardCheckpointed"] = "GuardCheckpointed"
    checkpoint: Checkpoint


class MemoryCurated(Event):
    """The optimisation memory after this round: the whole queue, oldest first."""

    type: Literal["MemoryCurated"] = "MemoryCurated"
    round: int = Field(ge=1)
    memory: tuple[Experience, ...]


# --- safety ----------------------------------------------------------------------------------------


class BudgetReserved(Event):
    type: Literal["BudgetReserved"] = "BudgetReserved"
    key: Key
    amount_usd: float = Field(ge=0, allow_inf_nan=False)


class BudgetSpent(Event):
    """Money gone without an outcome: a call lost in a crash, charged at its full reservation."""

    type: Literal["BudgetSpent"] = "BudgetSpent"
    key: Key
    amount_usd: float = Field(ge=0, allow_inf_nan=False)
    reason: str


class BreakerOpened(Event):
    type: Literal["BreakerOpened"] = "BreakerOpened"
    name: str
    error: ErrorInfo


class BreakerClosed(Event):
    type: Literal["BreakerClosed"] = "BreakerClosed"
    name: str


class DeviceLeased(Event):
    type: Literal["DeviceLeased"] = "DeviceLeased"
    key: Key
    device: str


class DeviceReleased(Event):
    type: Literal["DeviceReleased"] = "DeviceReleased"
    key: Key
    device: str


AnyEvent = Annotated[
    RunCreated | RunForked | RunPaused | RunResumed | RunCancelled | RunCompleted | ConfigChanged
    | ConfigRefused
    | CommandReceived | CommandCompleted | CommandRejected | LogRewritten
    | RoundStarted | RoundDeadlinePassed | BeamSelected | RoundCompleted
    | PlanStarted | PlanProposed | PlanFailed
    | ExecutionStarted | KernelProposed | ExecutionFailed
    | EvaluationStarted | EvaluationCompleted | EvaluationFailed | ProfileRecorded
    | SummaryStarted | ExperienceRecorded | ReflectionStarted | ReflectionRecorded
    | KernelKept | KernelDiscarded | KernelReverted | KernelRefuted | GuardCheckpointed | MemoryCurated
    | BudgetReserved | BudgetSpent | BreakerOpened | BreakerClosed | DeviceLeased | DeviceReleased,
    Field(discriminator="type"),
]  # fmt: skip

EVENT: TypeAdapter[AnyEvent] = TypeAdapter(AnyEvent)
"""Validates and serialises any event; JSON in and out."""

EVENT_TYPES: dict[str, type[Event]] = {
    cls.model_fields["type"].default: cls
    for base in (Event, EffectStarted, EffectEnded)
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
    "evaluation": ("EvaluationStarted", "EvaluationCompleted", "EvaluationFailed", "ProfileRecorded"),
    "decision": ("KernelKept", "KernelDiscarded", "KernelReverted", "KernelRefuted", "GuardCheckpointed"),
    "learning": (
        "SummaryStarted", "ExperienceRecorded", "MemoryCurated", "ReflectionStarted", "ReflectionRecorded",
    ),
    "safety": (
        "BudgetReserved", "BudgetSpent", "BreakerOpened", "BreakerClosed", "DeviceLeased", "DeviceReleased",
    ),
}  # fmt: skip
"""Event types by family, the groups that `agentctl tail --type` understands."""


def idempotency_key(event: Event) -> str | None:
    """Return the key under which a run's log accepts `event` once, or None where repeats are legal.

    Commands are unique by file id, effects' starts by delivery, and all outcomes of an effect share one
    key: the second outcome of an effect cannot be stored.
    """
    match event:
        case EffectStarted(key=key, delivery=delivery):
            return f"{key}#start{delivery}"
        case EffectEnded(key=key):
            return f"{key}#outcome"
        case CommandReceived(id=id_):
            return f"{id_}#received"
        case CommandCompleted(id=id_) | CommandRejected(id=id_):
            return f"{id_}#answer"
        case (
            RoundStarted(round=round_)
            | RoundDeadlinePassed(round=round_)
            | BeamSelected(round=round_)
            | RoundCompleted(round=round_)
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
