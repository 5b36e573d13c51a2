"""The roles that answer effects: planner, executor (which also repairs), summarizer and reflector.

Each role is a small async protocol. An implementation gets a frozen request and a function that reads blobs,
and returns an answer or raises `RoleError`; it never touches the log. `scripted` serves tests, `llm` asks
models, and targets bring their own proposers. Open this file first, then `scripted.py` and `llm/`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from agent_core.effects import (
    ImplementRequest,
    PlanRequest,
    ReflectRequest,
    SimplifyRequest,
    SummarizeRequest,
    Variants,
)
from state.model import (
    Digest,
    ErrorInfo,
    Experience,
    Plan,
    PredictedLatency,
    Reflection,
    SequenceLeg,
    Usage,
)

ReadBlob = Callable[[Digest], bytes]
"""Returns a blob's bytes by digest."""


class Predict(Protocol):
    """Predicts kernels' latencies from their sources, for the request's problem, size and target."""

    async def __call__(
        self, sources: Sequence[str], dims: Mapping[str, int] | None = None, *, canonical: bool = False
    ) -> Sequence[PredictedLatency]:
        """Return one prediction for each source; `dims` replaces the dimensions of the size.

        With `canonical`, each answer also has the kernel's canonical form, if the target has one.

        Raises:
            RoleError: the infrastructure failed for good.
        """


class RoleError(Exception):
    """A role could not answer; `info` says why with a stable code, `usage` is the cost of the failure."""

    def __init__(self, info: ErrorInfo, usage: Usage | None = None) -> None:
        super().__init__(f"{info.code}: {info.message}")
        self.info = info
        self.usage = usage or Usage()


class PredictionsEndedError(RoleError):
    """There are no more predictions for this request: their share of the run's time is used up.

    A look-ahead answers with what it has found by then, so that there is time to judge it. It may ask for a
    few kernels more, to complete that; how many is for the daemon to say, by raising this again.
    """

    def __init__(self) -> None:
        text = "the share of the run's time for predictions was used up"
        super().__init__(ErrorInfo(code="predictions_ended", message=text))


@dataclass(frozen=True, slots=True)
class LookAheadAnswer:
    """The result of a lookahead, with the sources that it names, and the work it took.

    `predicted` kernels got a latency, `failed` did not; `instructions` counts those of all of them.
    """

    variants: Variants
    sources: Mapping[Digest, bytes]
    predicted: int
    failed: int
    instructions: int
    usage: Usage = field(default_factory=Usage)


@dataclass(frozen=True, slots=True)
class PlanAnswer:
    """A plan, and further ones for the numbers that follow its own."""

    plan: Plan
    usage: Usage = field(default_factory=Usage)
    further: tuple[Plan, ...] = ()


@dataclass(frozen=True, slots=True)
class KernelAnswer:
    """A kernel's source, and one line that tells people what was changed.

    `technique` and `speedup` are what is said of it, where that is not what the plan says. `further` are
    kernels that compete besides it.
    """

    source: str
    note: str
    technique: str | None = None
    speedup: float | None = None
    further: tuple[KernelAnswer, ...] = ()
    usage: Usage = field(default_factory=Usage)


@dataclass(frozen=True, slots=True)
class ExperienceAnswer:
    """The experience in a pair; None if no optimisation was found in it."""

    experience: Experience | None
    usage: Usage = field(default_factory=Usage)


@dataclass(frozen=True, slots=True)
class ReflectionAnswer:
    reflection: Reflection
    usage: Usage = field(default_factory=Usage)


class WinnerSimplifier(Protocol):
    """A proposer that simplifies winners; `proposers.find_simplifier` tells which one does for a run."""

    async def simplify(
        self, request: SimplifyRequest, leg: SequenceLeg | None, read: ReadBlob, predict: Predict
    ) -> KernelAnswer:
        """Return the simplest kernel that is predicted to be within the request's limit of its best kernel.

        `leg` is the kernel that the rewrites of the best one began with, and all these rewrites; None if it
        was not made by rewrites.

        Raises:
            RoleError: `nothing_simpler`, or what `predict` raises.
        """


class Planner(Protocol):
    async def plan(self, request: PlanRequest, read: ReadBlob) -> PlanAnswer: ...


class Executor(Protocol):
    async def implement(self, request: ImplementRequest, read: ReadBlob) -> KernelAnswer: ...


class Summarizer(Protocol):
    async def summarize(self, request: SummarizeRequest, read: ReadBlob) -> ExperienceAnswer: ...


class Reflector(Protocol):
    async def reflect(self, request: ReflectRequest, read: ReadBlob) -> ReflectionAnswer: ...


class Proposer(Planner, Executor, Summarizer, Reflector, Protocol):
    """All roles under one name of a configuration, such as `builtin`, `anthropic`, `openai` or `scripted`."""

    name: str
    repairs: bool
    """Whether its executor can repair a refused kernel from the error (the built-in rewrites cannot)."""

    async def aclose(self) -> None: ...
