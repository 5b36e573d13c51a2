"""OpenAI's Responses API, also on Azure and Amazon Bedrock, through the official SDK's clients.

Nothing is stored at the service: each request carries the whole dialogue. The items of an answer are sent
back unchanged, the model's reasoning among them, encrypted; so it goes on with its thoughts between calls.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from agent_core.providers.completion import (
    CompletionRequest,
    ModelTurn,
    NativeAnswer,
    Tokens,
    ToolCall,
    join_parts,
)
from agent_core.providers.event_fields import get_count, get_table, get_text
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

FORMAT = "openai_responses"

_ENDS = ("response.completed", "response.incomplete", "response.failed", "response.cancelled")
"""The events that end an answer; each has the whole response."""

_RETURNED = frozenset({"reasoning", "message", "function_call", "compaction"})
"""Items of an answer that are sent back; others cannot come, as no other tools are offered."""


def create(name: str, settings: EndpointSettings, service: Service) -> ResponsesProvider:
    """Return a provider. The SDK is imported here; nothing is sent yet."""
    return ResponsesProvider(name, settings, service)


class ResponsesProvider(HttpProvider):
    """The Responses API of one service. A stop reason is the response's status, or why it is incomplete."""

    ends: ClassVar[Mapping[str, FailureKind | None]] = {
        "completed": None,
        "max_output_tokens": FailureKind.TRUNCATED,
        "content_filter": FailureKind.REFUSED,
        "refusal": FailureKind.REFUSED,
        "failed": FailureKind.SERVER,
        "cancelled": FailureKind.SERVER,
        "incomplete": FailureKind.SERVER,
        "tool_calls": FailureKind.INVALID,
    }
    calling: ClassVar[frozenset[str]] = frozenset({"tool_calls"})
    optional: ClassVar[Mapping[str, OptionalField]] = {
        TOOLS_FIELD: OptionalField(TOOLS_FIELD),
        "parallel_tool_calls": OptionalField("parallel"),
        "include": OptionalField("include|ncrypted"),
        "reasoning": OptionalField("effort"),
        "text.format": OptionalField(rf"text\.format|^text$|'text'|{SCHEMA_WORDS}"),
    }

    def __init__(self, name: str, settings: EndpointSettings, service: Service) -> None:
        import openai

        super().__init__(name, settings, service)
        self._stream_class = openai.AsyncStream[object]

    def build_body(self, request: CompletionRequest) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": request.model,
            "input": [{"role": "user", "content": join_parts(request.case)}, *_dialogue_items(request)],
            "max_output_tokens": request.max_output_tokens,
            "store": False,
            "include": ["reasoning.encrypted_content"],
            "stream": True,
        }
        if guide := join_parts(request.guide):
            body["instructions"] = guide
        if request.tools:
            body["tools"] = [
                {"type": "function", "strict": False, **tool.model_dump(mode="json")}
                for tool in request.tools
            ]
            body["parallel_tool_calls"] = True
        if request.effort is not None:
            body["reasoning"] = {"effort": request.effort}
        if (form := request.answer) is not None:
            schema = {"name": form.name, "strict": True, "schema": form.load()}
            body["text"] = {"format": {"type": "json_schema", **schema}}
        return body

    async def send(self, body: Mapping[str, Any]) -> Any:
        return await self._sdk.post(
            "/responses", body=body, cast_to=object, stream=True, stream_cls=self._stream_class
        )

    def take_event(self, answer: PartialAnswer, event: Mapping[str, Any]) -> None:
        kind = get_text(event, "type") or ""
        if kind == "response.output_text.delta":
            answer.text.append(get_text(event, "delta") or "")
        elif kind == "response.output_item.added":
            answer.has_begun = True
        elif kind == "response.output_item.done":  # only now is its encrypted reasoning complete
            place = get_count(event, "output_index")
            answer.items[len(answer.items) if place is None else place] = dict(get_table(event, "item"))
        elif kind == "response.refusal.delta":
            answer.refusal = (answer.refusal or "") + (get_text(event, "delta") or "")
        elif kind == "error":
            answer.error, answer.stop_reason = event, "failed"
        elif kind in _ENDS:
            self._take_end(answer, kind.removeprefix("response."), get_table(event, "response"))

    def _take_end(self, answer: PartialAnswer, status: str, response: Mapping[str, Any]) -> None:
        answer.model = get_text(response, "model") or answer.model
        answer.tokens = _read_tokens(get_table(response, "usage")) or answer.tokens
        output = response.get("output")
        for place, item in enumerate(output if isinstance(output, list) else ()):
            if isinstance(item, Mapping) and item:
                answer.items.setdefault(place, dict(item))
        if not answer.text:
            answer.text += _texts_of(answer.items.values())
        if status == "failed":
            answer.error = get_table(response, "error")
        reason = get_text(get_table(response, "incomplete_details"), "reason")
        if status == "completed" and answer.refusal is not None:
            status = "refusal"
        elif status == "completed" and self.read_calls(answer):
            status = "tool_calls"
        answer.stop_reason = reason if reason in self.ends else status

    def read_calls(self, answer: PartialAnswer) -> tuple[ToolCall, ...]:
        return tuple(
            ToolCall(
                id=get_text(item, "call_id") or f"call_{number}",
                name=get_text(item, "name") or "",
                arguments=get_text(item, "arguments") or "",
            )
            for number, item in sorted(answer.items.items())
            if item.get("type") == "function_call"
        )

    def native_answer(self, answer: PartialAnswer) -> NativeAnswer | None:
        items = [item for _, item in sorted(answer.items.items()) if item.get("type") in _RETURNED]
        if any(item["type"] == "reasoning" and not item.get("encrypted_content") for item in items):
            items = [_without_id(item) for item in items if item["type"] != "reasoning"]
        return NativeAnswer(format=FORMAT, items=tuple(items)) if items else None


def _without_id(item: Mapping[str, Any]) -> dict[str, Any]:
    """Return an item without the id by which the service would miss reasoning that it cannot be sent."""
    return {name: value for name, value in item.items() if name != "id"}


def _texts_of(items: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the texts of messages that came whole, without deltas."""
    contents = [item.get("content") for item in items if item.get("type") == "message"]
    parts = [part for content in contents if isinstance(content, list) for part in content]
    return [get_text(part, "text") or "" for part in parts if isinstance(part, Mapping)]


def _dialogue_items(request: CompletionRequest) -> list[dict[str, Any]]:
    """Return the items after the question: those of the answers, the output of each call, notes."""
    items: list[dict[str, Any]] = []
    for step in request.dialogue:
        items += _answer_items(step.answer) if request.tools else _text_items(step.answer)
        items += [
            {"type": "function_call_output", "call_id": one.id, "output": one.text} for one in step.results
        ]
        items += [{"role": "user", "content": step.note}] if step.note else []
    return items


def _answer_items(answer: ModelTurn) -> list[dict[str, Any]]:
    """Return an answer's own items, reasoning included; of another format, its text and calls."""
    own = answer.native_items(FORMAT)
    if own is not None:
        return own
    called = [
        {"type": "function_call", "call_id": one.id, "name": one.name, "arguments": one.arguments}
        for one in answer.calls
    ]
    return [*_text_items(answer), *called]


def _text_items(answer: ModelTurn) -> list[dict[str, Any]]:
    return [{"role": "assistant", "content": answer.text}] if answer.text.strip() else []


def _read_tokens(usage: Mapping[str, Any]) -> Tokens | None:
    """Return the token counts; output includes the model's reasoning, input what a cache had."""
    whole, output = get_count(usage, "input_tokens"), get_count(usage, "output_tokens")
    if whole is None or output is None:
        return None
    details = get_table(usage, "input_tokens_details")
    cached = min(get_count(details, "cached_tokens") or 0, whole)
    written = min(get_count(details, "cache_write_tokens") or 0, whole - cached)
    reasoning = min(get_count(get_table(usage, "output_tokens_details"), "reasoning_tokens") or 0, output)
    return Tokens(input=whole, cached=cached, written=written, output=output, reasoning=reasoning)
