"""The request to an LLM and its completion, whatever the endpoint.

Input tokens always include those read from a cache; counts of endpoints that separate the two are converted.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, Literal, Protocol

from pydantic import Field, JsonValue

from state.model import FrozenModel, Tokens

__all__ = [
    "AnswerSchema",
    "Completion",
    "CompletionRequest",
    "DialogueStep",
    "Effort",
    "ModelTurn",
    "NativeAnswer",
    "ObserveLimits",
    "PromptPart",
    "Provider",
    "RateLimits",
    "Tokens",
    "ToolCall",
    "ToolDefinition",
    "ToolResult",
]

Effort = Literal["low", "medium", "high", "xhigh", "max"]
"""How long a model may think, for models with that setting."""


class PromptPart(FrozenModel):
    """A piece of a prompt. `cached`: other requests start with the same text up to here, so cache it."""

    text: str
    cached: bool = False


def join_parts(parts: tuple[PromptPart, ...]) -> str:
    """Return the parts as one text, separated by empty lines."""
    return "\n\n".join(part.text.rstrip("\n") for part in parts if part.text.rstrip("\n"))


def _is_empty(value: object) -> bool:
    return not value


class AnswerSchema(FrozenModel):
    """The JSON that an answer must be; `text` is its schema, as JSON whose keys keep their order.

    Models write the keys in this order, so one that explains the others comes first.
    """

    name: str
    text: str

    def load(self) -> dict[str, Any]:
        """Return the schema."""
        loaded: dict[str, Any] = json.loads(self.text)
        return loaded


class ToolDefinition(FrozenModel):
    """A tool that a model may call; `parameters` is the JSON schema of its arguments."""

    name: str
    description: str
    parameters: dict[str, JsonValue]


class ToolCall(FrozenModel):
    """One call of a tool in an answer; `arguments` is the JSON as the model wrote it, valid or not."""

    id: str
    name: str
    arguments: str


class ToolResult(FrozenModel):
    """What came of the call with this id."""

    id: str
    text: str
    is_error: bool = False


class NativeAnswer(FrozenModel):
    """An answer in a wire format's own items, to be sent back unchanged: thinking, signatures, calls."""

    format: str
    items: tuple[JsonValue, ...]


class ModelTurn(FrozenModel):
    """One answer of a dialogue. `native` holds what only its own wire format can say."""

    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    native: NativeAnswer | None = None
    stop_reason: str = ""

    def native_items(self, wire_format: str) -> list[Any] | None:
        """Return the answer's items in a wire format; None if it came in another one."""
        return list(self.native.items) if self.native and self.native.format == wire_format else None


class DialogueStep(FrozenModel):
    """An answer and what it was told next: the results of its calls, in order, and a note.

    Without results and note, the model paused and goes on.
    """

    answer: ModelTurn
    results: tuple[ToolResult, ...] = ()
    note: str = ""


class CompletionRequest(FrozenModel):
    """One request to one model: `guide` explains the task, `case` is the question.

    `dialogue` is what followed, oldest first. `answer` is the form of the answer, for servers that can hold a
    model to one; others ignore it. Requests without these are stored as before there were any.
    """

    model: str
    guide: tuple[PromptPart, ...]
    case: tuple[PromptPart, ...]
    max_output_tokens: int = Field(ge=1)
    effort: Effort | None = None
    tools: tuple[ToolDefinition, ...] = Field(default=(), exclude_if=_is_empty)
    dialogue: tuple[DialogueStep, ...] = Field(default=(), exclude_if=_is_empty)
    answer: AnswerSchema | None = Field(default=None, exclude_if=_is_empty)

    def texts(self) -> Iterator[str]:
        """Yield all that is sent, as text: what is counted, and what must not be quoted in a log."""
        yield from (part.text for part in (*self.guide, *self.case))
        yield from (tool.model_dump_json() for tool in self.tools)
        if self.answer is not None:
            yield self.answer.text
        for step in self.dialogue:
            native = step.answer.native
            yield step.answer.text if native is None else native.model_dump_json()
            yield from (call.model_dump_json() for call in step.answer.calls)
            yield from (one.model_dump_json() for one in step.results)
            yield step.note


class Completion(FrozenModel):
    """A complete answer with known token counts. `model` is the model that the endpoint says answered."""

    text: str
    model: str
    stop_reason: str
    tokens: Tokens
    request_id: str | None = None
    calls: tuple[ToolCall, ...] = ()
    native: NativeAnswer | None = None

    @property
    def turn(self) -> ModelTurn:
        """The answer as a turn of a dialogue."""
        return ModelTurn(text=self.text, calls=self.calls, native=self.native, stop_reason=self.stop_reason)


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
