"""The protocol by which a session reaches its model, its tools, and the log; the process implements it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from state.model import Amount, Evaluation, SessionEndReason

if TYPE_CHECKING:
    from agent_core.prompting import PromptSet
    from agent_core.providers.completion import DialogueStep, ModelTurn, ToolCall, ToolDefinition
    from agent_core.roles.ask_protocol import FillPrompt
    from agent_core.tools.rewriting import Rewriter
    from agent_core.tools.workbench import KernelLab


@dataclass(frozen=True, slots=True)
class PastVerdict:
    """A verdict that a past call obtained, and the kernel that it is about."""

    source: str
    evaluation: Evaluation
    cache_key: str


@dataclass(frozen=True, slots=True)
class PastCall:
    """What came of a tool call: what the model reads, and what the session needs of it when it runs again.

    `code` is that of a refusal. `sources` are the kernels that the call gave a version for the first time.
    """

    text: str
    code: str | None
    sources: tuple[str, ...] = ()
    judged: PastVerdict | None = None


class SessionHost(Protocol):
    """One session's place in the process. Everything that it is told is in the log when it returns.

    Only the failure of the log, and a run that waits or is over, are raised; both end the session here, and
    it is run again when the run goes on.
    """

    @property
    def lab(self) -> KernelLab:
        """Where tools have kernels judged."""
        ...

    @property
    def rewriter(self) -> Rewriter | None:
        """The target's rewrite engine."""
        ...

    @property
    def prompts(self) -> PromptSet:
        """The prompts of the run's round."""
        ...

    def find_stop(self, turn: int, share: Amount) -> tuple[SessionEndReason, str] | None:
        """Return why a turn that is not in the log must not be taken.

        The session has ended or is late, or another turn like the last would spend more than its share; an
        amount of 0 is no limit.
        """
        ...

    async def begin(self, role: str, tools: Sequence[str], turns: int) -> None:
        """Log that a session by the prompt `role` begins, if it is not logged yet."""
        ...

    async def converse(
        self, role: str, fill: FillPrompt, tools: Sequence[ToolDefinition], dialogue: Sequence[DialogueStep]
    ) -> ModelTurn:
        """Return the next answer, bought or found in the log.

        Raises:
            agent_core.roles.RoleError: no answer came.
        """
        ...

    def find_past_call(self, turn: int, number: int) -> PastCall | None:
        """Return a call that is in the log with its outcome."""
        ...

    async def start_call(self, turn: int, number: int, call: ToolCall) -> None:
        """Log that a tool call begins."""
        ...

    async def complete_call(self, turn: int, number: int, call: ToolCall, made: PastCall) -> None:
        """Log what came of a tool call; its `judged` is in the log already, if it has one."""
        ...

    async def end(self, reason: SessionEndReason, detail: str, submitted: str | None) -> None:
        """Log that the session is over, if it is not logged yet; `submitted` is the kernel that competes."""
        ...
