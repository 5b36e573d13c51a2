"""What a model is asked and what it answers, whoever serves it.

Tokens of the input always include those that were read from a cache; endpoints that count them apart are
brought to that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, Protocol

from pydantic import Field

from state.model import FrozenModel, Tokens

__all__ = [
    "Completion",
    "CompletionRequest",
    "Effort",
    "ObserveLimits",
    "PromptPart",
    "Provider",
    "RateLimits",
    "Tokens",
]

Effort = Literal["low", "medium", "high"]
"""How long a model that can be told so may think."""


class PromptPart(FrozenModel):
    """A piece of a prompt. `cached`: other requests begin with the same text up to here, so cache it."""

    text: str
    cached: bool = False


class CompletionRequest(FrozenModel):
    """One question to one model: `guide` is what it is told about its task, `case` what it is asked."""

    model: str
    guide: tuple[PromptPart, ...]
    case: tuple[PromptPart, ...]
    max_output_tokens: int = Field(ge=1)
    effort: Effort | None = None


class Completion(FrozenModel):
    """A whole answer: it ended by itself, and its tokens are known. `model` is who says that it answered."""

    text: str
    model: str
    stop_reason: str
    tokens: Tokens
    request_id: str | None = None


class RateLimits(FrozenModel):
    """What an endpoint said of its limits in an answer's headers; None is not said.

    Requests and tokens that remain, how many there are at most, and the seconds until there are so many
    again.
    """

    requests: int | None = None
    requests_limit: int | None = None
    requests_reset_seconds: float | None = None
    tokens: int | None = None
    tokens_limit: int | None = None
    tokens_reset_seconds: float | None = None


ObserveLimits = Callable[[RateLimits], None]
"""Is told the limits that an answer, also a refusal, came with."""


class Provider(Protocol):
    """One endpoint. Any number of requests at a time."""

    name: str

    async def complete(
        self, request: CompletionRequest, *, deadline_seconds: float, observe: ObserveLimits
    ) -> Completion:
        """Ask once, and wait for the whole answer at most so long.

        Raises:
            agent_core.providers.failures.CallError: there is none; its failure says of which kind.
        """

    async def aclose(self) -> None: ...
