"""What tools take and give: the base classes of their arguments and answers, and the fault of a call."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

from pydantic import ConfigDict, Field

from state.model import Evaluation, FrozenModel, Plan

MOST_CHARACTERS = 1600
"""The longest answer, about 400 tokens."""
MOST_WITH_MORE = 12_000
"""The longest answer if more was asked for."""


class ToolArguments(FrozenModel):
    """Base of all arguments. Unknown names are refused, so that a misspelt one is noticed."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=False)

    more: bool = Field(default=False, description="answer at length")


class ToolAnswer(FrozenModel):
    """Base of all answers: fields for programs, and `render` for models."""

    next: str = ""
    """What would help next, in one sentence."""

    @abstractmethod
    def render(self) -> str:
        """Return the answer as text, the most important first, without `next`."""


class ToolRefusal(ToolAnswer):
    """The answer to a call that could not be carried out: what is wrong, and in `next` how to mend it."""

    code: str
    message: str

    def render(self) -> str:
        """Return the code and the message."""
        return f"[{self.code}] {self.message}"


class ToolFault(Exception):  # noqa: N818 - it is said to the model, not raised to people
    """A call cannot be carried out; `code` is stable, `hint` says how to mend it."""

    def __init__(self, code: str, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.hint = hint


@dataclass(frozen=True, slots=True)
class JudgedKernel:
    """A verdict that `evaluate` obtained, and the version of the source that it is about.

    `cache_key` stands for code, problem, toolchain and target; `cached_from` is the event whose verdict was
    reused, None if the kernel was judged for this call.
    """

    version: str
    evaluation: Evaluation
    cache_key: str
    cached_from: str | None = None


@dataclass(frozen=True, slots=True)
class Submission:
    """A kernel that a session ends with, and what it is said to do.

    `technique` is empty if it is the plan's; `speedup` is the expected one, if it was said.
    """

    version: str
    source: str
    title: str
    technique: str = ""
    speedup: float | None = None


@dataclass(frozen=True, slots=True)
class SessionEnd:
    """How a tool ends the session: with kernels, with plans, or without either for a reason.

    `further` are the kernels that compete besides the first.
    """

    submitted: Submission | None = None
    further: tuple[Submission, ...] = ()
    plans: tuple[Plan, ...] = ()
    reason: str = ""


@dataclass(frozen=True, slots=True)
class ToolOutcome:
    """What came of a call: the answer, and what the session keeps of it.

    `judged` is set by `evaluate`, `end` by the tools that end a session.
    """

    answer: ToolAnswer
    judged: JudgedKernel | None = None
    end: SessionEnd | None = None


def render_outcome(outcome: ToolOutcome, *, more: bool = False) -> str:
    """Return an answer as the model reads it: cut at a line if it is too long, with what would help next."""
    limit = MOST_WITH_MORE if more else MOST_CHARACTERS
    text = outcome.answer.render().strip("\n")
    if len(text) > limit:
        kept = text[:limit].rpartition("\n")[0] or text[:limit]
        hint = "" if more else "; `more: true` shows them"
        text = f"{kept}\n({len(text) - len(kept)} more characters left out{hint})"
    return f"{text}\n\nNext: {outcome.answer.next}" if outcome.answer.next else text
