"""What the state knows of a session in flight, and what an outcome keeps of it."""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field

from state.model.base import Digest, ErrorInfo, FrozenModel, PositiveMs, is_empty
from state.model.judgement import Verdict


class SessionEndReason(StrEnum):
    """Why a session ended."""

    SUBMITTED = "submitted"
    GAVE_UP = "gave_up"
    NEAR_BOUND = "near_bound"
    TURNS = "turns"
    REPETITION = "repetition"
    NO_CALLS = "no_calls"
    BUDGET = "budget"
    DEADLINE = "deadline"
    MODEL = "model"
    EXITED = "exited"


class TriedKernel(FrozenModel):
    """A kernel that a session had judged: enough for the attempt history.

    `latency_ms` is None unless it is correct and timed.
    """

    source: Digest
    code: Digest
    verdict: Verdict
    error: ErrorInfo | None = None
    latency_ms: PositiveMs | None = None


class ToolStep(FrozenModel):
    """One tool call of a session; `result` is None while it runs."""

    turn: int
    number: int
    tool: str
    delivery: int = 1
    result: Digest | None = None
    tried: TriedKernel | None = None


class AgentHold(FrozenModel):
    """What an effect's coding agent holds of the budgets: all that is reserved for it while it works.

    When it has `ended`, it is what it says that it cost, until the effect's outcome charges that. `number`
    counts the agents of the effect.
    """

    number: int
    usd: float = Field(ge=0)
    ended: bool = False


class SessionProgress(FrozenModel):
    """A session in flight: its role and model, and its tool calls in order. Turns are the effect's calls.

    `by_agent`: a coding agent of its own works in it, so each tool call is a turn, and no call was bought.
    """

    role: str
    model: str
    turns: int = Field(ge=1)
    steps: tuple[ToolStep, ...] = ()
    ended: SessionEndReason | None = None
    by_agent: bool = Field(default=False, exclude_if=is_empty)

    @property
    def tried(self) -> tuple[TriedKernel, ...]:
        """The kernels that were judged, in the order of the calls."""
        return tuple(step.tried for step in self.steps if step.tried is not None)
