"""Anthropic's messages API, also on Amazon Bedrock and Vertex AI, through the official SDK's clients.

The guide is the system prompt, the case is the only message. A cached part ends with a breakpoint. The
service allows four; if there are more, the last four are used, because their prefixes are the longest. No
temperature is sent, because today's models accept none. The model may think as long as it wants, between
calls of tools too; its blocks are sent back unchanged, as the service requires. Where the answer is JSON, its
schema is sent, and the service holds the model to it. The SDK's `messages.create`
is not used, because it raises Python warnings for models that will be retired.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from agent_core.providers.completion import (
    CompletionRequest,
    ModelTurn,
    NativeAnswer,
    PromptPart,
    Tokens,
    ToolCall,
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

FORMAT = "anthropic"
MOST_BREAKPOINTS = 4
MOVING_BREAKPOINTS = 2
"""Breakpoints that move with a dialogue: where the last request ended, and where this one does."""

_COUNTS = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens", "output_tokens")


def create(name: str, settings: EndpointSettings, service: Service) -> AnthropicProvider:
    """Return a provider. The SDK is imported here; nothing is sent yet."""
    return AnthropicProvider(name, settings, service)


class AnthropicProvider(HttpProvider):
    """The messages API of one service."""

    ends: ClassVar[Mapping[str, FailureKind | None]] = {
        "end_turn": None,
        "stop_sequence": None,
        "max_tokens": FailureKind.TRUNCATED,
        "model_context_window_exceeded": FailureKind.TOO_LARGE,
        "refusal": FailureKind.REFUSED,
        "tool_use": FailureKind.INVALID,
        "pause_turn": FailureKind.INVALID,
    }
    calling: ClassVar[frozenset[str]] = frozenset({"tool_use", "pause_turn"})
    optional: ClassVar[Mapping[str, OptionalField]] = {
        "output_config.format": OptionalField(rf"output_config\.format|output_?format|{SCHEMA_WORDS}"),
        "output_config.effort": OptionalField("effort"),
        "output_config": OptionalField("output_config"),
        "thinking": OptionalField("thinking"),
        TOOLS_FIELD: OptionalField(TOOLS_FIELD),
    }

    def __init__(self, name: str, settings: EndpointSettings, service: Service) -> None:
        import anthropic

        super().__init__(name, settings, service)
        self._stream_class = anthropic.AsyncStream[object]

    def build_body(self, request: CompletionRequest) -> dict[str, Any]:
        guide, case = _prompt_blocks(request)
        body: dict[str, Any] = {
            "model": request.model,
            "max_tokens": request.max_output_tokens,
            "messages": [{"role": "user", "content": case}, *_dialogue_messages(request)],
            "stream": True,
            "thinking": {"type": "adaptive"},  # also between calls
        }
        if guide:
            body["system"] = guide
        if request.tools:
            body["tools"] = [
                {"name": tool.name, "description": tool.description, "input_schema": tool.parameters}
                for tool in request.tools
            ]
        output: dict[str, Any] = {}
        if request.effort is not None:
            output["effort"] = request.effort
        if request.answer is not None:
            output["format"] = {"type": "json_schema", "schema": request.answer.load()}
        if output:
            body["output_config"] = output
        return body

    async def send(self, body: Mapping[str, Any]) -> Any:
        return await self._sdk.post(
            "/v1/messages",
            body=body,
            cast_to=object,
            stream=True,
            stream_cls=self._stream_class,
        )

    def take_event(self, answer: PartialAnswer, event: Mapping[str, Any]) -> None:
        match event.get("type"):
            case "message_start":
                message = get_table(event, "message")
                answer.model = get_text(message, "model")
                answer.tokens = _merge_tokens(get_table(message, "usage"), answer.tokens)
            case "content_block_start":
                block = get_table(event, "content_block")
                answer.items[get_count(event, "index") or 0] = dict(block)
                answer.text.append(get_text(block, "text") or "")
            case "content_block_delta":
                delta = get_table(event, "delta")
                item = answer.items.setdefault(get_count(event, "index") or 0, {})
                for name, value in delta.items():
                    if name != "type" and isinstance(value, str):
                        item[name] = (get_text(item, name) or "") + value
                answer.text.append(get_text(delta, "text") or "")
            case "message_delta":
                delta = get_table(event, "delta")
                answer.stop_reason = get_text(delta, "stop_reason") or answer.stop_reason
                if answer.stop_reason == "refusal":
                    details = get_table(delta, "stop_details")
                    answer.refusal = get_text(details, "explanation") or get_text(details, "category") or ""
                answer.tokens = _merge_tokens(get_table(event, "usage"), answer.tokens)

    def read_calls(self, answer: PartialAnswer) -> tuple[ToolCall, ...]:
        return tuple(
            ToolCall(
                id=get_text(item, "id") or f"call_{number}",
                name=get_text(item, "name") or "",
                arguments=_arguments_of(item),
            )
            for number, item in sorted(answer.items.items())
            if item.get("type") == "tool_use"
        )

    def native_answer(self, answer: PartialAnswer) -> NativeAnswer | None:
        items = [_finish_item(item) for _, item in sorted(answer.items.items())]
        kept = [item for item in items if item.get("type") != "text" or str(item.get("text")).strip()]
        return NativeAnswer(format=FORMAT, items=tuple(kept)) if kept else None


def _arguments_of(item: Mapping[str, Any]) -> str:
    """Return the arguments of a call, as they were streamed piece by piece or given whole."""
    streamed = get_text(item, "partial_json")
    return streamed if streamed is not None else json.dumps(item.get("input") or {})


def _finish_item(item: Mapping[str, Any]) -> dict[str, Any]:
    """Return an item as the service takes it back; arguments that are no JSON object come back empty."""
    kept = {name: value for name, value in item.items() if name != "partial_json"}
    if item.get("type") == "tool_use":
        try:
            found = json.loads(_arguments_of(item) or "{}")
        except json.JSONDecodeError:
            found = {}
        kept["input"] = found if isinstance(found, dict) else {}
    return kept


def _dialogue_messages(request: CompletionRequest) -> list[dict[str, Any]]:
    """Return the messages after the first one; the last two that a user sends end a cached prefix."""
    messages: list[dict[str, Any]] = []
    for number, step in enumerate(request.dialogue):
        messages.append({"role": "assistant", "content": _answer_blocks(step.answer)})
        blocks: list[dict[str, Any]] = [
            {"type": "tool_result", "tool_use_id": one.id, "content": one.text, "is_error": one.is_error}
            for one in step.results
        ]
        blocks += [{"type": "text", "text": step.note}] if step.note else []
        if blocks and len(request.dialogue) - number <= MOVING_BREAKPOINTS:
            blocks[-1]["cache_control"] = {"type": "ephemeral"}
        if blocks:
            messages.append({"role": "user", "content": blocks})
    return messages


def _answer_blocks(answer: ModelTurn) -> list[dict[str, Any]]:
    """Return an answer's own blocks, thinking included; of another format, its text and calls."""
    own = answer.native_items(FORMAT)
    if own is not None:
        return own
    blocks: list[dict[str, Any]] = [{"type": "text", "text": answer.text}] if answer.text.strip() else []
    for call in answer.calls:
        item = {"type": "tool_use", "id": call.id, "name": call.name, "partial_json": call.arguments}
        blocks.append(_finish_item(item))
    return blocks or [{"type": "text", "text": "(nothing)"}]


def _prompt_blocks(request: CompletionRequest) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return guide and case as the service's blocks, with breakpoints. The service forbids blank texts."""
    guide, case = ([part for part in parts if part.text.strip()] for parts in (request.guide, request.case))
    cached = [part for part in (*guide, *case) if part.cached]
    free = MOST_BREAKPOINTS - min(MOVING_BREAKPOINTS, len(request.dialogue))
    marked = {id(part) for part in cached[-free:]}
    return _text_blocks(guide, marked), _text_blocks(case, marked)


def _text_blocks(parts: Iterable[PromptPart], marked: set[int]) -> list[dict[str, Any]]:
    return [
        {"type": "text", "text": part.text}
        | ({"cache_control": {"type": "ephemeral"}} if id(part) in marked else {})
        for part in parts
    ]


def _merge_tokens(usage: Mapping[str, Any], before: Tokens | None) -> Tokens | None:
    """Return the token counts; later ones replace earlier ones. Input is plain plus cached tokens."""
    plain, cached, written, output = (get_count(usage, name) for name in _COUNTS)
    if plain is None and output is None:
        return before
    old = before or Tokens()
    cached = old.cached if cached is None else cached
    written = old.written if written is None else written
    plain = old.input - old.cached - old.written if plain is None else plain
    return Tokens(
        input=plain + cached + written,
        cached=cached,
        written=written,
        output=old.output if output is None else output,
    )
