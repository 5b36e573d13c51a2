"""Events of sessions: dialogues in which a model works on one effect's kernel by calling tools.

A turn of a session is the call of the same number (`state.events.call`); its answer is the blob of a whole
turn. Each call of a tool is a start and one outcome. What a tool gave is in the log before the next turn is
bought, so a session that is run again after a crash continues at its first missing step.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from state.events.base import Event
from state.model import (
    Digest,
    Evaluation,
    EvaluationHost,
    Key,
    SessionEndReason,
    Usage,
    is_empty,
)


def tool_call_name(key: str, turn: int, number: int) -> str:
    """Return the name of a tool call in its run; those of its events begin with it."""
    return f"{key}#tool{turn}.{number}"


class SessionStarted(Event):
    """A session begins for an effect in flight: the prompt's role, the model, the tools, the most turns."""

    family = "call"
    type: Literal["SessionStarted"] = "SessionStarted"
    key: Key
    role: str
    model: str
    tools: tuple[str, ...]
    turns: int = Field(ge=1)
    by_agent: bool = Field(default=False, exclude_if=is_empty)
    """A coding agent works in it: each tool call is a turn, and `turns` are the most tool calls."""

    @property
    def once_key(self) -> str:
        return f"{self.key}#session"


class SessionStep(Event):
    """Base of the events of one tool call: number `number` of the answer of turn `turn`, from 0."""

    key: Key
    turn: int = Field(ge=0)
    number: int = Field(ge=0)

    @property
    def step_key(self) -> str:
        """The name of the tool call in its run."""
        return tool_call_name(self.key, self.turn, self.number)


class ToolCallStarted(SessionStep):
    """A tool is about to run. `delivery` counts starts of the same call; it rises after a crash."""

    family = "call"
    type: Literal["ToolCallStarted"] = "ToolCallStarted"
    tool: str
    arguments: Digest
    delivery: int = Field(default=1, ge=1)

    @property
    def once_key(self) -> str:
        return f"{self.step_key}#start{self.delivery}"


class KernelTried(SessionStep):
    """The judge's verdict on a kernel that a tool had judged, beside the call that asked for it.

    The fields are those of EvaluationCompleted. The verdict is in the evaluation cache, and the kernel in the
    attempt history; it does not compete unless it is submitted.
    """

    family = "evaluation"
    type: Literal["KernelTried"] = "KernelTried"
    source: Digest
    evaluation: Evaluation
    cache_key: Digest
    cached_from: str | None = None
    stage_ms: dict[str, float] = Field(default_factory=dict)
    device_seconds: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    where: EvaluationHost | None = None

    @property
    def once_key(self) -> str:
        return f"{self.step_key}#tried"


class ToolCallCompleted(SessionStep):
    """A tool has answered. `result` is the blob of the text that the model reads, `code` that of a refusal.

    `sources` are the kernels that the call gave a version for the first time, in order.
    """

    family = "call"
    type: Literal["ToolCallCompleted"] = "ToolCallCompleted"
    tool: str
    result: Digest
    code: str | None = None
    sources: tuple[Digest, ...] = ()
    ms: float = Field(default=0.0, ge=0)

    @property
    def once_key(self) -> str:
        return f"{self.step_key}#outcome"


class SessionEnded(Event):
    """A session is over, for a typed reason; `submitted` is the kernel that competes, if there is one."""

    family = "call"
    type: Literal["SessionEnded"] = "SessionEnded"
    key: Key
    reason: SessionEndReason
    detail: str = ""
    turns: int = Field(ge=0)
    submitted: Digest | None = None

    @property
    def once_key(self) -> str:
        return f"{self.key}#session#end"


AGENT_LOST = "lost"
"""The reason of an AgentEnded whose agent nobody awaited: its host, or its run, was ended."""


class AgentStarted(Event):
    """The process of a coding agent is about to start; `reserved_usd` is held of the budgets until it ends.

    `number` counts the agents that were started for the effect, from 1; it rises after a crash.
    """

    family = "call"
    type: Literal["AgentStarted"] = "AgentStarted"
    key: Key
    number: int = Field(ge=1)
    reserved_usd: float = Field(ge=0, allow_inf_nan=False)

    @property
    def once_key(self) -> str:
        return f"{self.key}#agent_start{self.number}"


class AgentEnded(Event):
    """The process of a coding agent is over: how, what it wrote, and what it says that it cost.

    `delivery` is that of its effect. `transcript` is the blob of its output, whose middle is left out if
    `cut`. `reason` is why it was ended, `exited`, or `lost` if nobody could await its end. A known cost is
    charged with the effect's outcome. If it is unknown, all that was reserved is charged at once:
    `charged_usd`.
    """

    family = "call"
    type: Literal["AgentEnded"] = "AgentEnded"
    key: Key
    delivery: int = Field(ge=1)
    reason: str
    status: int | None = None
    transcript: Digest
    cut: bool = False
    tool_calls: int = Field(default=0, ge=0)
    seconds: float = Field(default=0.0, ge=0)
    usage: Usage = Field(default_factory=Usage)
    charged_usd: float = Field(default=0.0, ge=0, allow_inf_nan=False, exclude_if=is_empty)

    @property
    def once_key(self) -> str | None:
        return None if self.reason == AGENT_LOST else f"{self.key}#agent{self.delivery}"
