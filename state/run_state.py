"""A run's state: one frozen value that the fold produces and `decide` reads.

All of it stays small, however long the run is; the history is in the log.
"""

from __future__ import annotations

from functools import cache
from typing import Annotated, Any, NamedTuple, TypeVar

from pydantic import Field

from state.events import (
    EffectEnded,
    EvaluationCompleted,
    EvaluationFailed,
    Event,
    ExecutionFailed,
    ExperienceRecorded,
    KernelProposed,
    PlanFailed,
    PlanProposed,
    PredictionBatch,
    ReflectionRecorded,
)
from state.model import (
    PERSON,
    AgentHold,
    Amount,
    Attempt,
    BeamEntry,
    Candidate,
    Checkpoint,
    Digest,
    EffectKey,
    Experience,
    FrozenModel,
    LatencyBounds,
    LearntExperience,
    LearntSequence,
    LearntTechnique,
    ModelQuestion,
    ModelRecord,
    PauseCause,
    Plan,
    Price,
    ProblemRef,
    Reflection,
    Resource,
    Role,
    RunConfig,
    RunEnding,
    RunStatus,
    SessionProgress,
    SlotAssignment,
    StartName,
    StopReason,
    TechniqueCredit,
    round_usd,
)

FIRST_IMPLEMENTATIONS = "first implementations"
FURTHER_IMPLEMENTATIONS = "further implementations"
"""The records in `RunState.roles` of what plans brought, by which of a plan's implementations brought it."""

OutcomeEvent = Annotated[
    PredictionBatch
    | PlanProposed
    | PlanFailed
    | KernelProposed
    | ExecutionFailed
    | EvaluationCompleted
    | EvaluationFailed
    | ExperienceRecorded
    | ReflectionRecorded,
    Field(discriminator="type"),
]


class IllegalEvent(Exception):  # noqa: N818 - the name says what is wrong with the event
    """An event that cannot follow the given state."""


T = TypeVar("T", bound=FrozenModel)


class OpenEffect(FrozenModel):
    """An effect that was admitted and has no outcome yet, with the model calls it has made so far.

    `session` is set if these calls are the turns of a dialogue with tools.

    `slot` is what its slot was assigned in its own round, which may be over; None if it has no slot.
    """

    request: Digest
    delivery: int
    reserved_usd: float
    slot: SlotAssignment | None = None
    calls: tuple[ModelQuestion, ...] = ()
    session: SessionProgress | None = None
    agent: AgentHold | None = None

    @property
    def reserved_amount(self) -> Amount:
        """What is reserved for its calls in flight and its coding agent."""
        calls = (one.held for one in self.calls if one.held is not None)
        return sum(calls, Amount(usd=self.agent.usd if self.agent is not None else 0.0))


@cache
def blank_effect() -> OpenEffect:
    """Return what an effect that is admitted is copied from; the request is its own.

    Copying it checks nothing again, which folds faster.
    """
    return OpenEffect(request="0" * 64, delivery=1, reserved_usd=0.0)


class LateCandidate(FrozenModel):
    """A candidate that was not judged when its round's deadline passed; its executor's key identifies it.

    `slot` is what its slot was assigned in that round, None for a person's kernel. `kernel` and `judged` are
    its outcomes as they arrive. It competes in the round `competes_in`: the round in which its verdict
    arrived, or the next one if that round had chosen its beam already.
    """

    parent: Candidate
    plan: Plan | None
    slot: SlotAssignment | None = None
    kernel: KernelProposed | None = None
    judged: Annotated[EvaluationCompleted | EvaluationFailed, Field(discriminator="type")] | None = None
    competes_in: int | None = None


class RunTally(NamedTuple):
    """Counts for people; they are in the state because `status` shows them live."""

    proposed: int = 0
    evaluated: int = 0
    failed: int = 0
    duplicates: int = 0
    reverts: int = 0
    predicted: int = 0
    """Kernels that were predicted and not judged."""


class RunState(FrozenModel):
    """A run, as `decide` sees it.

    `starts` are the kernels that it begins from, `kernel` the source of the one that is no translation.

    `slots` and `parents` belong to the current round and are empty between rounds. `selected` says that the
    round has chosen its beam and only learning is left. `idle` is how the run ends if the round gets no
    verdict. `outcomes` holds results by effect key: those of the round, and those of audits. `former` are the
    earlier best kernels, oldest first.

    `rejudge` are kernels of a fork's parent (the initial one, then the beam) that must be judged again before
    anything else. `needs_approval` are the points at which the run waits for a person; `approved` holds the
    last approved point of each kind. `pause_cause` says what ends the current or last pause. `pinned` are the
    keys of settings that somebody set for this run. `prompts` is the version of the prompts in the current
    round, `pending_prompts` the version from the next round on, None if it stays the same.

    `sequences`, `experiences` and `techniques` come from other runs and were given to the run before its
    first round; None if it was given none. A fork with another judge gets what its parent learnt as
    `experiences`.

    `expired` says that the round's deadline has passed; `late` are the candidates in flight at that time.
    `prices` are the prices of the models that the run has called, as of the first call; `models` is how well
    these models did, and `roles` what came of each role: "ROLE MODEL" of a model's answers in it,
    FIRST_IMPLEMENTATIONS and FURTHER_IMPLEMENTATIONS of plans. `executors` are the round's, as in
    RoundStarted. `short` maps a resource to the amount that its cap could not cover; `warned` is the
    highest mark of each cap, in percent, for which a warning was given.

    `before` is the state before an unfinished record of decisions: a fork from inside the record starts
    there, so that the record is complete.
    """

    config: RunConfig
    pending_config: RunConfig | None = None
    problem: ProblemRef
    kernel: Digest | None
    starts: tuple[StartName, ...] = ("kernel",)
    bounds: LatencyBounds
    toolchain: str
    status: RunStatus = RunStatus.RUNNING
    status_reason: str = ""
    pause_cause: PauseCause = PauseCause.PERSON
    stop: StopReason | None = None
    round: int = 0
    slots: tuple[SlotAssignment, ...] = ()
    parents: dict[str, Candidate] = Field(default_factory=dict)
    selected: bool = False
    idle: RunEnding | None = None
    open: dict[str, OpenEffect] = Field(default_factory=dict)
    outcomes: dict[str, OutcomeEvent] = Field(default_factory=dict)
    initial: Candidate | None = None
    best: Candidate | None = None
    former: tuple[Candidate, ...] = ()
    beam: tuple[BeamEntry, ...] = ()
    checkpoints: dict[str, Checkpoint] = Field(default_factory=dict)
    memory: tuple[Experience, ...] = ()
    reflections: tuple[Reflection, ...] = ()
    attempts: tuple[Attempt, ...] = ()
    credits: dict[str, TechniqueCredit] = Field(default_factory=dict)
    tally: RunTally = RunTally()
    spent_usd: float = 0.0
    reserved_usd: float = 0.0
    unknown_cost: bool = False
    spent_tokens: int = 0
    spent_calls: int = 0
    device_seconds: float = 0.0
    prices: dict[str, Price | None] = Field(default_factory=dict)
    models: dict[str, ModelRecord] = Field(default_factory=dict)
    roles: dict[str, ModelRecord] = Field(default_factory=dict)
    executors: tuple[str, ...] = ()
    short: dict[Resource, float] = Field(default_factory=dict)
    warned: dict[Resource, int] = Field(default_factory=dict)
    decision_digest: str = ""
    rejudge: tuple[Candidate, ...] = ()
    needs_approval: tuple[str, ...] = ()
    approved: dict[str, str] = Field(default_factory=dict)
    pinned: tuple[str, ...] = ()
    prompts: Digest | None = None
    pending_prompts: Digest | None = None
    sequences: tuple[LearntSequence, ...] | None = None
    experiences: tuple[LearntExperience, ...] | None = None
    techniques: tuple[LearntTechnique, ...] | None = None
    expired: bool = False
    late: dict[str, LateCandidate] = Field(default_factory=dict)
    before: RunState | None = None

    @property
    def spent_amount(self) -> Amount:
        """What calls took of the budgets so far."""
        return Amount(usd=round_usd(self.spent_usd), tokens=self.spent_tokens, calls=self.spent_calls)

    @property
    def reserved_amount(self) -> Amount:
        """What is reserved for calls in flight, and for coding agents."""
        return sum((effect.reserved_amount for effect in self.open.values()), Amount())

    @property
    def next_prompts(self) -> Digest | None:
        """The version of the prompts from the next round on; None if not recorded."""
        return self.pending_prompts or self.prompts

    @property
    def in_round(self) -> bool:
        return bool(self.slots)

    @property
    def is_joinable(self) -> bool:
        """Whether a kernel proposed now competes in this round: before deadline, verification and beam."""
        looked = any(key.endswith(Role.VERIFIER) for key in (*self.open, *self.outcomes))
        return self.in_round and not (self.selected or self.expired or looked)

    def is_round_over(self, key: EffectKey) -> bool:
        """Whether an effect's round has closed or passed its deadline."""
        return key.round < self.round or (self.expired and key.round == self.round)

    def slot_of(self, key: EffectKey) -> SlotAssignment | None:
        """Return what an effect's slot was assigned in the effect's own round, None if it has no slot."""
        if self.open and (opened := self.open.get(str(key))) is not None:
            return opened.slot
        return self.assigned_slot(key)

    def assigned_slot(self, key: EffectKey) -> SlotAssignment | None:
        """Return the same for an effect that is not open."""
        if self.late and (late := self.late.get(str(key.for_role(Role.EXECUTOR)))) is not None:
            return late.slot
        if key.round != self.round:
            return None
        return next((one for one in self.slots if one.slot == key.slot), None)

    @property
    def has_ended(self) -> bool:
        return self.status in (RunStatus.COMPLETED, RunStatus.CANCELLED)


def evolve(value: T, **changes: Any) -> T:
    """Return a copy of a state or a part of it with `changes`, which were validated in their events.

    This is `model_copy` without its generality, and takes a third of its time in a replay.
    """
    copy: T = _new(value.__class__)
    _put(copy, "__dict__", value.__dict__ | changes)
    _put(copy, "__pydantic_fields_set__", value.__pydantic_fields_set__)
    _put(copy, "__pydantic_extra__", None)
    _put(copy, "__pydantic_private__", None)
    return copy


_new = object.__new__
_put = object.__setattr__  # the models are frozen


def require_live(state: RunState, event: Event) -> None:
    if state.has_ended:
        raise IllegalEvent(f"{type(event).__name__} in a run that is {state.status}")


def is_by_person(event: EffectEnded) -> bool:
    """Return whether a person proposed this kernel; no effect of ours produced it."""
    return isinstance(event, KernelProposed) and event.author == PERSON
