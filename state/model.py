"""The vocabulary: frozen value types that events carry and folds hold.

Everything here is data: no clock, no randomness, no I/O. Types are pydantic models because they cross
process and version boundaries as JSON; unknown fields are refused, and floats that JSON cannot spell
(NaN, infinities) are written as strings, so that what was logged reads back as it was.

Units: latency in milliseconds (`*_ms`), sizes in bytes (`*_bytes`), ratios as factors (`*_ratio`,
`speedup`), percentages 0 to 100 (`*_percent`), money in US dollars (`*_usd`).
"""

from __future__ import annotations

import hashlib
import json
import re
from enum import StrEnum
from functools import lru_cache
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, Field, JsonValue, StringConstraints, TypeAdapter

Digest = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
"""SHA-256 of a blob's bytes, in hexadecimal."""

FiniteFloat = Annotated[float, Field(allow_inf_nan=False)]
PositiveMs = Annotated[float, Field(gt=0, allow_inf_nan=False)]

SYSTEM_STREAM = "system"
"""The stream that holds what runs share: commands, configuration, budgets of the day."""


def digest_of(data: bytes) -> str:
    """Return the content address of `data`: its SHA-256 in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def canonical_json(value: Any) -> bytes:
    """Serialise JSON-like data so that equal values give equal bytes, on any machine.

    Raises:
        ValueError: `value` holds a NaN or an infinity that was not spelled out as a string.
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


class Frozen(BaseModel):
    """Base of all values: immutable, closed, and exact about floats in JSON."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")


class Role(StrEnum):
    """Who answers an effect."""

    PLANNER = "planner"
    EXECUTOR = "executor"
    EVALUATOR = "evaluator"
    VERIFIER = "verifier"
    AUDITOR = "auditor"
    SUMMARIZER = "summarizer"
    REFLECTOR = "reflector"


JUDGES = frozenset({Role.EVALUATOR, Role.VERIFIER, Role.AUDITOR})
"""Who judges a kernel: as it is proposed, before it enters the beam, before it is reported as the best."""


PERSON = "person"
"""The author of kernels that people hand in: those that runs start from, and those proposed to runs."""

NOBODY = "unknown"
"""The author of a kernel of which nobody knows who wrote it: nobody trusts it."""

TRUSTED_AUTHORS = frozenset({PERSON, "builtin", "scripted"})
"""Who may have written a kernel that runs where only a weak jail holds it; all others are models."""


class EffectKey(NamedTuple):
    """Where in the search an effect belongs; relative to its run, so twins and forks agree on it.

    Ordering is slot order, the order in which results apply whatever order they arrive in.
    """

    round: int
    slot: int
    plan: int
    implementation: int
    repair: int
    role: Role

    def __str__(self) -> str:
        return f"r{self.round}.b{self.slot}.p{self.plan}.k{self.implementation}.f{self.repair}.{self.role}"

    @property
    def candidate(self) -> str:
        """The id of the candidate that this place in the search produces, e.g. `r1.b0.p2.k0.f0`."""
        return str(self).rsplit(".", 1)[0]

    def for_role(self, role: Role) -> EffectKey:
        """Return the key of another role's effect at the same place."""
        return self._replace(role=role)

    @classmethod
    def parse(cls, text: str) -> EffectKey:
        """Read back what `str` wrote.

        Raises:
            ValueError: `text` is not an effect key.
        """
        return _parse_key(text)


_KEY = re.compile(r"r(\d+)\.b(\d+)\.p(\d+)\.k(\d+)\.f(\d+)\.([a-z]+)")


@lru_cache(maxsize=8192)
def _parse_key(text: str) -> EffectKey:
    match = _KEY.fullmatch(text)
    if match is None:
        raise ValueError(f"not an effect key: {text!r}")
    *numbers, role = match.groups()
    round_, slot, plan, implementation, repair = map(int, numbers)
    return EffectKey(round_, slot, plan, implementation, repair, Role(role))


Key = Annotated[str, StringConstraints(pattern=_KEY.pattern + "$")]

PERSON_SLOT = 1000
"""The slot of kernels that people propose: after every beam slot, so a person's duplicate never owns."""

INITIAL_KEY = EffectKey(0, 0, 0, 0, 0, Role.EVALUATOR)
"""The evaluation of the kernel that a run starts from; its candidate is `r0.b0.p0.k0.f0`."""


def draw_seed(run_seed: int, key: EffectKey) -> int:
    """Return the seed of every random draw of one effect: a function of run seed and effect key alone."""
    return int.from_bytes(hashlib.sha256(f"{run_seed}|{key}".encode()).digest()[:8])


class Verdict(StrEnum):
    """What the judge says of a candidate. An infrastructure error is no verdict: see EvaluationFailed."""

    CORRECT = "correct"
    INCORRECT = "incorrect"
    LINT_ERROR = "lint_error"
    COMPILE_ERROR = "compile_error"
    RUNTIME_ERROR = "runtime_error"
    TIMEOUT = "timeout"
    UNSTABLE = "unstable"


class Level(StrEnum):
    """How much of a kernel's outputs the judge compares, least first.

    `slices`: tiles of them, on every input set; `one_seed`: also whole outputs of the first seed; `whole`: of
    every seed.
    """

    SLICES = "slices"
    ONE_SEED = "one_seed"
    WHOLE = "whole"

    def covers(self, other: Level) -> bool:
        """Return whether a kernel judged at this level needs no judging at `other`."""
        order = tuple(Level)
        return order.index(self) >= order.index(other)


class ErrorInfo(Frozen):
    """Why something failed, for people and for repair: a stable code, a message, where, and what fixes it."""

    code: str
    message: str
    line: int | None = None
    hint: str | None = None


RESOLUTION_RATIO = 0.005
"""Predicted latencies that differ by less are too near each other to tell which is lower."""


class Benchmark(Frozen):
    """A latency with its interval. `predicted` is true when a model produced it, false when a device did.

    `draws_ms` are the latencies that the model gives with its uncertain constants moved, the same moves in
    the same order for every kernel; empty for what was measured.
    """

    latency_ms: PositiveMs
    lo_ms: PositiveMs
    hi_ms: PositiveMs
    predicted: bool
    samples: int = Field(ge=1)
    draws_ms: tuple[PositiveMs, ...] = ()

    def wins_percent(self, other: Benchmark) -> float | None:
        """Return the share of wins among the draws that tell the two apart: 50 where none does.

        Nearer to each other than `RESOLUTION_RATIO` a draw says nothing, nor does one that only one of the
        two has. None when they share no draw.
        """
        pairs = list(zip(self.draws_ms, other.draws_ms, strict=False))
        told = [mine < theirs for mine, theirs in pairs if _apart(mine, theirs)]
        if not pairs:
            return None
        return 100.0 * sum(told) / len(told) if told else 50.0

    @property
    def noise_ratio(self) -> float:
        """Half the interval's width relative to the latency, when the latency was measured.

        A prediction's interval is the model's uncertainty, common to the kernels compared, not
        run-to-run noise: of a prediction it is half of what the model resolves.
        """
        if self.predicted:
            return RESOLUTION_RATIO / 2
        return (self.hi_ms - self.lo_ms) / (2 * self.latency_ms)


def _apart(mine: float, theirs: float) -> bool:
    return abs(mine - theirs) > RESOLUTION_RATIO * max(mine, theirs)


class Identity(Frozen):
    """Whether a correct kernel computes the reference's formula, and not only its numbers.

    `proven`: on `elements` of the outputs, which are `share_percent` of them, the formulas are the same.
    `tested`: the numbers agreed, and `reason` says why no more is known.
    """

    verdict: Literal["proven", "tested"]
    reason: str = ""
    elements: int = Field(default=0, ge=0)
    share_percent: float = Field(default=0.0, ge=0, le=100)


class Evaluation(Frozen):
    """The judge's full answer on one candidate.

    `rel_l2` maps each input seed to the relative L2 error of the outputs. `identity` is there where the
    judge got as far as looking at it. `profile` is the blob of the neuron-profile-like counters (JSON),
    `bottleneck` their one-word summary. `code` is the digest of the normalised syntax tree, by which
    duplicates are known. `level` is the one that was asked for, or what a gain too good raised it to; before
    there were levels, everything was compared.
    """

    verdict: Verdict
    stage: str
    code: Digest
    error: ErrorInfo | None = None
    rel_l2: dict[int, float] = Field(default_factory=dict)
    identity: Identity | None = None
    benchmark: Benchmark | None = None
    profile: Digest | None = None
    bottleneck: str | None = None
    target: str
    toolchain: str
    level: Level = Level.WHOLE

    @property
    def correct(self) -> bool:
        return self.verdict is Verdict.CORRECT


class Prediction(Frozen):
    """What a plan says will happen, written down before its result exists.

    `speedup` is the factor expected over the parent; `counter` names the profile counter expected to
    move and `direction` its sign (-1 falls, +1 rises).
    """

    speedup: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    counter: str | None = None
    direction: int = Field(default=-1, ge=-1, le=1)
    reason: str = ""


class Plan(Frozen):
    """One intended change: a technique (menu id) at a site, in words, with its prediction."""

    technique: str
    site: str
    title: str
    prediction: Prediction
    detail: JsonValue = None


class Candidate(Frozen):
    """A kernel that the judge found correct, at `level`, and timed."""

    id: str
    parent: str | None
    lineage: str
    round: int
    source: Digest
    code: Digest
    technique: str | None
    title: str
    benchmark: Benchmark
    profile: Digest | None
    bottleneck: str | None
    level: Level = Level.WHOLE
    author: str = NOBODY
    """Who wrote it, as in EvaluationRequest; of kernels from before levels it is not known."""

    @property
    def latency_ms(self) -> float:
        return self.benchmark.latency_ms


class BeamRole(StrEnum):
    ELITE = "elite"
    EXPLORER = "explorer"


class BeamEntry(Frozen):
    candidate: Candidate
    role: BeamRole


class Checkpoint(Frozen):
    """The state that an explorer lineage returns to when it diverges (the guard's memory of it)."""

    lineage: str
    candidate: Candidate
    depth: int = Field(default=0, ge=0)
    """Rounds in a row that the lineage went without beating the checkpoint."""


class ExperienceKind(StrEnum):
    POSITIVE = "positive"
    NEGATIVE = "negative"


class Experience(Frozen):
    """A slow kernel, a fast kernel and what made the difference: an item of the optimisation memory.

    `cites` are the candidate ids it was distilled from.
    """

    kind: ExperienceKind
    technique: str
    slow: Digest
    fast: Digest
    speedup: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    summary: str
    cites: tuple[str, ...]


class Grade(StrEnum):
    """How a prediction fared, decided mechanically from prediction and outcome."""

    CONFIRMED = "confirmed"
    OVERSTATED = "overstated"
    UNDERSTATED = "understated"
    REFUTED = "refuted"
    FAILED = "failed"


class Reflection(Frozen):
    """What one attempt taught: keyed by (operator, bottleneck, technique), prediction against outcome."""

    operator: str
    bottleneck: str
    technique: str
    predicted_speedup: float
    actual_speedup: float | None
    grade: Grade
    lesson: str
    seen: int = Field(default=1, ge=1)
    cites: tuple[str, ...] = ()


class Attempt(Frozen):
    """One line of the attempt history that later proposals read."""

    candidate: str
    parent: str
    technique: str
    site: str
    code: Digest | None
    verdict: Verdict | None
    error: ErrorInfo | None
    speedup: float | None
    """Parent latency over this latency; None when there is no latency."""
    gained: bool = False
    """Whether it counted as a gain: beyond noise, and no other kernel's code."""
    round: int


class Credit(Frozen):
    """What a technique has brought in this run: tries, keeps, and the sum of ln(speed-up) of its gains."""

    tries: int = 0
    gains: int = 0
    log_gain: float = 0.0


class ProblemRef(Frozen):
    """A problem as a run holds it: its name, the digest of all its files, and the files as blobs."""

    name: str
    digest: Digest
    files: dict[str, Digest]


class Bounds(Frozen):
    """Lower bounds on latency: NKIBench's plain roofline, and the tight bound of the target's own table."""

    plain_ms: PositiveMs
    tight_ms: PositiveMs


class SearchConfig(Frozen):
    """The search's numbers; names and defaults as in AccelOpt's paper, sized for the built-in proposer."""

    beam: int = Field(default=4, ge=1, le=64, description="B: candidates kept between rounds")
    plans: int = Field(default=6, ge=1, le=64, description="N: plans per candidate and round")
    implementations: int = Field(default=1, ge=1, le=16, description="K: implementations per plan")
    rounds: int = Field(default=4, ge=1, le=10_000, description="T: rounds at most")
    explorers: int = Field(default=1, ge=0, le=64, description="X: beam slots for explorer lineages")
    explorer_slack_ratio: float = Field(
        default=1.5, ge=1, le=10, description="how much slower than its checkpoint an explorer may be"
    )
    explorer_depth: int = Field(default=3, ge=1, le=100, description="D: rounds without gain before a revert")
    confidence_percent: float = Field(
        default=80.0,
        ge=0,
        le=100,
        description="share of the model's draws in which a predicted gain must hold",
    )
    repairs: int = Field(default=2, ge=0, le=10, description="F: repair rounds for a failed kernel")
    top_k: int = Field(default=8, ge=0, le=256, description="TopK: pairs summarised per round")
    experiences: int = Field(default=16, ge=0, le=1024, description="ExpN: length of the optimisation memory")
    t_pos: float = Field(
        default=1.04, gt=1, le=10, description="speed-up from which a pair is a positive one"
    )
    t_neg: float = Field(
        default=1.15, gt=1, le=10, description="slow-down from which a pair is a negative one"
    )
    round_seconds: float | None = Field(
        default=None, gt=0, le=604_800, description="close a round after so long; what is late competes next"
    )
    history: int = Field(default=256, ge=1, le=4096, description="H: attempts kept for later proposals")
    reflections: int = Field(default=64, ge=0, le=1024, description="reflexion notes kept")
    plateau_rounds: int = Field(default=3, ge=1, le=1000, description="P: rounds without gain that end a run")
    within_percent: float = Field(
        default=2.0, ge=0, le=100, description="stop within this distance of the tight bound"
    )
    target_speedup: float | None = Field(default=None, gt=1, description="stop at this speed-up")


ApprovalPoint = Literal["before_round", "new_best", "completion"]
"""Where a run may wait for a person: before each round, when the best is a new one, before it completes."""


class RunConfig(Frozen):
    """Everything that decides how a run goes; the effective values are part of RunCreated."""

    problem: str = "rmsnorm_matmul"
    size: Literal["full", "reduced"] = "full"
    target: str = "trn2"
    seed: int = Field(default=0, ge=0, lt=2**63)
    evaluator: str = "sim"
    planner: tuple[str, ...] = Field(default=("builtin",), min_length=1)
    cap_usd: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    approval: tuple[ApprovalPoint, ...] = Field(
        default=(), description="where the run waits for `agentctl approve`"
    )
    search: SearchConfig = SearchConfig()


class Rebase(Frozen):
    """What a fork judges kernels by from its first event on, where its parent judges by something else."""

    config: RunConfig
    problem: ProblemRef
    bounds: Bounds
    toolchain: str


class SlotAssignment(Frozen):
    """What one beam slot does in a round: whose kernel is improved, by whom, how often."""

    slot: int = Field(ge=0)
    parent: str
    planner: str
    model: str | None = None
    plans: int = Field(ge=0)
    implementations: int = Field(ge=1)
    repairs: int = Field(default=0, ge=0)


class RunStatus(StrEnum):
    RUNNING = "running"
    PAUSED = "paused"
    CANCELLED = "cancelled"
    COMPLETED = "completed"


class StopReason(StrEnum):
    """Why a run ended; RunCompleted says which."""

    ROUNDS = "rounds"
    TARGET = "target"
    PLATEAU = "plateau"
    NEAR_BOUND = "near_bound"
    BUDGET = "budget"
    INITIAL_REJECTED = "initial_rejected"
    NO_PROPOSALS = "no_proposals"
    INFRASTRUCTURE = "infrastructure"


class Ending(Frozen):
    """Why a run ends."""

    reason: StopReason
    detail: str


class Usage(Frozen):
    """What one answer cost. `cost_usd` is None when the price is unknown, never 0."""

    cost_usd: float | None = Field(default=0.0, ge=0, allow_inf_nan=False)
    input_tokens: int = Field(default=0, ge=0)
    output_tokens: int = Field(default=0, ge=0)


class EvaluationRequest(Frozen):
    """All that an evaluator needs; everything it reads is a blob, so a rerun judges the same bytes.

    `author` is who wrote the kernel: one of TRUSTED_AUTHORS, or the name of a model's proposer. It bears
    on where the kernel may run, never on the verdict. `base_ms`, the latency of the kernel that this one
    was made from, raises the level where the gain is too good.
    """

    candidate: str
    author: str
    source: Digest
    problem: ProblemRef
    size: str
    target: str
    toolchain: str
    level: Level = Level.WHOLE
    base_ms: float | None = Field(default=None, gt=0)

    @classmethod
    def from_json(cls, data: bytes) -> Self:
        return cls.model_validate_json(data)


JSON_VALUE: TypeAdapter[JsonValue] = TypeAdapter(JsonValue)
