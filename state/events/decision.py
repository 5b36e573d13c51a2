"""Events of decisions: rounds, kernels kept, discarded or reverted, and what is remembered."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from state.events.base import Event
from state.model import (
    Attempt,
    BeamEntry,
    BeamRole,
    Candidate,
    Checkpoint,
    Digest,
    ErrorInfo,
    Experience,
    Reflection,
    RunEnding,
    SlotAssignment,
    TechniqueCredit,
    Verdict,
    is_empty,
)


class RoundStarted(Event):
    """A round begins; what its proposals may use of earlier results is frozen here.

    `prompts` is the version of the prompts for the round, as in RunCreated. `executors` are the models that
    may write kernels, MODEL=WEIGHT, by what each has brought so far; empty: as the settings say.
    """

    version = 3
    family = "round"
    type: Literal["RoundStarted"] = "RoundStarted"
    round: int = Field(ge=1)
    slots: tuple[SlotAssignment, ...]
    prompts: Digest | None = None
    executors: tuple[str, ...] = Field(default=(), exclude_if=is_empty)


class RoundDeadlinePassed(Event):
    """The round reached its deadline and closes with its results. Kernels in flight compete in the next."""

    family = "round"
    type: Literal["RoundDeadlinePassed"] = "RoundDeadlinePassed"
    round: int = Field(ge=1)


class BeamSelected(Event):
    version = 3
    family = "round"
    type: Literal["BeamSelected"] = "BeamSelected"
    round: int = Field(ge=0)
    beam: tuple[BeamEntry, ...]


class RoundCompleted(Event):
    """The round's barrier: what the round taught takes effect, in slot order.

    `attempts` are the round's own. `credits` and `reflections` are the whole new state, so that a later
    version that learns differently replays old runs to the state they had. `idle` is set if nothing was
    judged in the round, with the reason: another round would ask the same.
    """

    version = 3
    family = "round"
    type: Literal["RoundCompleted"] = "RoundCompleted"
    round: int = Field(ge=1)
    attempts: tuple[Attempt, ...] = ()
    credits: dict[str, TechniqueCredit] = Field(default_factory=dict)
    reflections: tuple[Reflection, ...] = ()
    idle: RunEnding | None = None


class KernelKept(Event):
    """A correct kernel enters the next beam.

    `replaces` is the best kernel that this one takes the place of because it is simpler, though it need not
    be faster.
    """

    version = 4
    family = "decision"
    type: Literal["KernelKept"] = "KernelKept"
    candidate: Candidate
    role: BeamRole
    speedup: float | None
    """Parent latency divided by this kernel's latency; None for the initial kernel."""
    replaces: str | None = Field(default=None, exclude_if=is_empty)


class KernelDiscarded(Event):
    """A kernel does not enter the beam.

    `reason` is a verdict other than `correct`, or one of: duplicate, slower, uncertain, not_selected,
    refuted, infrastructure, prefiltered (correct, and never measured).

    An uncertain kernel is predicted faster than `against`, but that is only `wins_percent` sure. Of a
    simplified kernel, `against` is the best one that it was made from. A refuted one passed the first
    comparison; `verdict` is the result of comparing more.
    """

    version = 3
    family = "decision"
    type: Literal["KernelDiscarded"] = "KernelDiscarded"
    candidate: str
    reason: str
    verdict: Verdict | None = None
    duplicate_of: str | None = None
    against: str | None = None
    wins_percent: float | None = None


class KernelReverted(Event):
    """A lineage diverged and returns to its checkpoint. `reason`: slower or depth."""

    family = "decision"
    type: Literal["KernelReverted"] = "KernelReverted"
    lineage: str
    dropped: str
    restored: str
    reason: str


class KernelRefuted(Event):
    """The best kernel turned out to be wrong: it is removed, with all that was learnt from it.

    `best` takes its place, None if no kernel is left. All fields except the first three are the whole new
    state.
    """

    family = "decision"
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
    credits: dict[str, TechniqueCredit]


class GuardCheckpointed(Event):
    version = 3
    family = "decision"
    type: Literal["GuardCheckpointed"] = "GuardCheckpointed"
    checkpoint: Checkpoint


class MemoryCurated(Event):
    """The optimisation memory after this round: the whole queue, oldest first."""

    family = "learning"
    type: Literal["MemoryCurated"] = "MemoryCurated"
    round: int = Field(ge=1)
    memory: tuple[Experience, ...]
