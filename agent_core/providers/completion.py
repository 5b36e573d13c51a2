"""The request to an LLM and its completion, whatever the endpoint.

Input tokens always include those read from a cache; counts of endpoints that separate the two are converted.
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
"""How long a model may think, for models with that setting."""


class PromptPart(FrozenModel):
    """A piece of a prompt. `cached`: other requests start with the same text up to here, so cache it."""

    text: str
    cached: bool = False


class CompletionRequest(FrozenModel):
    """One request to one model: `guide` explains the task, `case` is the question."""

    model: str
    guide: tuple[PromptPart, ...]
    case: tuple[PromptPart, ...]
    max_output_tokens: int = Field(ge=1)
    effort: Effort | None = None


class Completion(FrozenModel):
    """A complete answer with known token counts. `model` is the model that the endpoint says answered."""

    text: str
    model: str
    stop_reason: str
    tokens: Tokens
    request_id: str | None = None


class RateLimits(FrozenModel):
    """The rate limits in an answer's headers; None where the endpoint gave no value.

    For requests and tokens: how many remain, the limit, and the seconds until the limit is reset.
    """

    requests: int | None = None
    requests_limit: int | None = None
    requests_reset_seconds: float | None = None
    tokens: int | None = None
    tokens_limit: int | None = None
    tokens_reset_seconds: float | None = None


ObserveLimits = Callable[[RateLimits], None]
"""Called with the limits of every answer, refusals included."""


class Provider(Protocol):
    """One endpoint, for any number of concurrent requests."""

    name: str

    async def complete(
        self, request: CompletionRequest, *, deadline_seconds: float, observe: ObserveLimits
    ) -> Completion:
        """Send the request once and wait at most `deadline_seconds` for the whole answer.

        Raises:
            agent_core.providers.failures.CallError: no answer came; its `failure` says why.
        """

    async def aclose(self) -> None: ...
