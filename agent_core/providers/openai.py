"""OpenAI's chat completions API, and the many servers that speak like it, through the official SDK.

vLLM, llama.cpp, Fireworks and most gateways take the same request at another address. They differ in the name
of the output limit, and in whether effort and the schema of an answer can be set; fields that a server
rejects are left out.

Some servers neither count tokens in a stream nor say there why a request failed (llama-cpp-python 0.3.36, for
example). The tokens of a whole answer without counts are estimated. From then on, such a server is asked for
answers in one piece; the vendor never is, because its streams are counted. Prefixes are cached automatically.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Self
from urllib.parse import urlsplit

import httpx2

from agent_core.providers.completion import CompletionRequest, Tokens, ToolCall, join_parts
from agent_core.providers.event_fields import (
    get_count,
    get_first_table,
    get_table,
    get_text,
    get_text_or_parts,
)
from agent_core.providers.failures import FailureKind
from agent_core.providers.http_provider import (
    SCHEMA_WORDS,
    TOOLS_FIELD,
    HttpProvider,
    OptionalField,
    PartialAnswer,
)

if TYPE_CHECKING:
    from agent_core.providers.registry import EndpointSettings, Service

_THOUGHTS = ("reasoning_content", "reasoning")
"""Where servers of models that think put the thoughts."""

_NEW, _OLD = "max_completion_tokens", "max_tokens"
"""The output limit's name at the vendor today, and at nearly all other servers."""


def create(name: str, settings: EndpointSettings, service: Service) -> OpenAIProvider:
    """Return a provider. The SDK is imported here; nothing is sent yet."""
    return OpenAIProvider(name, settings, service)


class OpenAIProvider(HttpProvider):
    """The chat completions API of one service."""

    ends: ClassVar[Mapping[str, FailureKind | None]] = {
        "stop": None,
        "length": FailureKind.TRUNCATED,
        "content_filter": FailureKind.REFUSED,
        "safety": FailureKind.REFUSED,
        "tool_calls": FailureKind.INVALID,
        "function_call": FailureKind.INVALID,
        "abort": FailureKind.SERVER,
        "error": FailureKind.SERVER,
    }
    calling: ClassVar[frozenset[str]] = frozenset({"tool_calls", "function_call"})
    optional: ClassVar[Mapping[str, OptionalField]] = {
        TOOLS_FIELD: OptionalField(TOOLS_FIELD.removesuffix("s")),
        _NEW: OptionalField(_NEW, instead=_OLD),
        _OLD: OptionalField(_OLD, instead=_NEW),
        "reasoning_effort": OptionalField("effort"),
        "response_format": OptionalField(f"response_?format|{SCHEMA_WORDS}"),
    }

    def __init__(self, name: str, settings: EndpointSettings, service: Service) -> None:
        import openai

        super().__init__(name, settings, service)
        host = urlsplit(self._address).hostname or ""
        self._vendor = host == "openai.com" or host.endswith(".openai.com")
        self._stream_class = openai.AsyncStream[object]

    def build_body(self, request: CompletionRequest) -> dict[str, Any]:
        roles = (("system", request.guide), ("user", request.case))
        body: dict[str, Any] = {
            "model": request.model,
            _NEW if self._vendor else _OLD: request.max_output_tokens,
            "messages": [
                {"role": role, "content": joined} for role, parts in roles if (joined := join_parts(parts))
            ]
            + _dialogue_messages(request),
        }
        if request.tools:
            body["tools"] = [
                {"type": "function", "function": tool.model_dump(mode="json")} for tool in request.tools
            ]
        if not self.traits_of(request.model).uncounted:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        if request.effort is not None:
            body["reasoning_effort"] = request.effort
        if (form := request.answer) is not None:
            schema = {"name": form.name, "strict": True, "schema": form.load()}
            body["response_format"] = {"type": "json_schema", "json_schema": schema}
        return body

    async def send(self, body: Mapping[str, Any]) -> Any:
        if "stream" not in body:
            whole = await self._sdk.post("/chat/completions", body=body, cast_to=httpx2.Response)
            return _WholeResponse(whole)
        return await self._sdk.post(
            "/chat/completions",
            body=body,
            cast_to=object,
            stream=True,
            stream_cls=self._stream_class,
        )

    def take_event(self, answer: PartialAnswer, event: Mapping[str, Any]) -> None:
        choice = get_first_table(event, "choices")
        delta = get_table(choice, "delta") or get_table(choice, "message")
        answer.model = get_text(event, "model") or answer.model
        answer.text.append(get_text_or_parts(delta, "content"))
        _take_calls(answer, delta.get("tool_calls"))
        answer.has_begun = answer.has_begun or any(delta.get(name) for name in _THOUGHTS)
        if refusal := get_text(delta, "refusal"):
            answer.refusal = (answer.refusal or "") + refusal
        answer.stop_reason = get_text(choice, "finish_reason") or answer.stop_reason
        answer.tokens = _read_tokens(get_table(event, "usage")) or answer.tokens

    def read_calls(self, answer: PartialAnswer) -> tuple[ToolCall, ...]:
        return tuple(
            ToolCall(id=item["id"] or f"call_{number}", name=item["name"], arguments=item["arguments"])
            for number, item in sorted(answer.items.items())
        )

    def may_count_nothing(self) -> bool:
        return not self._vendor


class _WholeResponse:
    """An answer that came in one piece, as a stream of one event."""

    def __init__(self, response: httpx2.Response) -> None:
        self.response = response

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Do nothing: all of it has been read."""

    async def __aiter__(self) -> AsyncIterator[object]:
        yield self.response.json()


def _take_calls(answer: PartialAnswer, pieces: object) -> None:
    """Add pieces of calls to the answer; a piece without a place begins a call of its own."""
    for piece in pieces if isinstance(pieces, list) else ():
        if not isinstance(piece, Mapping):
            continue
        place = get_count(piece, "index")
        empty = {"id": "", "name": "", "arguments": ""}
        item = answer.items.setdefault(len(answer.items) if place is None else place, empty)
        function = get_table(piece, "function")
        item["id"] = get_text(piece, "id") or item["id"]
        item["name"] = get_text(function, "name") or item["name"]
        arguments = function.get("arguments")
        item["arguments"] += arguments if isinstance(arguments, str) else json.dumps(arguments or {})


def _dialogue_messages(request: CompletionRequest) -> list[dict[str, Any]]:
    """Return the messages after the question: answers with their calls, a message for each result, notes."""
    messages: list[dict[str, Any]] = []
    for step in request.dialogue:
        said: dict[str, Any] = {"role": "assistant", "content": step.answer.text or None}
        if step.answer.calls and request.tools:
            said["tool_calls"] = [
                {"id": one.id, "type": "function", "function": {"name": one.name, "arguments": one.arguments}}
                for one in step.answer.calls
            ]
        messages.append(said)
        messages += [{"role": "tool", "tool_call_id": one.id, "content": one.text} for one in step.results]
        messages += [{"role": "user", "content": step.note}] if step.note else []
    return messages


def _read_tokens(usage: Mapping[str, Any]) -> Tokens | None:
    """Return the token counts; input already includes what was read from a cache."""
    whole, output = get_count(usage, "prompt_tokens"), get_count(usage, "completion_tokens")
    if whole is None or output is None:
        return None
    details = get_table(usage, "prompt_tokens_details")
    cached = min(get_count(details, "cached_tokens") or 0, whole)
    written = min(get_count(details, "cache_write_tokens") or 0, whole - cached)
    total = get_count(usage, "total_tokens") or 0
    output = max(output, total - whole)  # some servers count a model's thoughts in the total alone
    made = get_table(usage, "completion_tokens_details")
    reasoning = min(get_count(made, "reasoning_tokens") or 0, output)
    return Tokens(input=whole, cached=cached, written=written, output=output, reasoning=reasoning)
