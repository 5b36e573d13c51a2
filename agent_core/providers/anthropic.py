"""Anthropic's messages, and services that speak like them, by the official SDK.

The guide is the system prompt, the case the one message. A part that is cached ends with a breakpoint; of
more than the four that the service allows, the last four count, whose prefixes are the longest. There is no
temperature: today's models take none. The SDK's `messages.create` is passed over, since it warns, by Python's
warnings, of models that are going to be retired.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from agent_core.providers.completion import CompletionRequest, Part, Tokens
from agent_core.providers.events import number, table, text
from agent_core.providers.failures import FailureKind
from agent_core.providers.wire import Answer, Endpoint, Field

if TYPE_CHECKING:
    from agent_core.providers.registry import EndpointSettings

MOST_BREAKPOINTS = 4

_COUNTS = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens", "output_tokens")


def create(name: str, settings: EndpointSettings) -> Anthropic:
    """Return a provider; the SDK is imported here and nothing is sent yet."""
    return Anthropic(name, settings)


class Anthropic(Endpoint):
    """The messages of one service."""

    ends: ClassVar[Mapping[str, FailureKind | None]] = {
        "end_turn": None,
        "stop_sequence": None,
        "max_tokens": FailureKind.TRUNCATED,
        "model_context_window_exceeded": FailureKind.TOO_LARGE,
        "refusal": FailureKind.REFUSED,
    }
    optional: ClassVar[Mapping[str, Field]] = {"output_config": Field("effort")}

    def __init__(self, name: str, settings: EndpointSettings) -> None:
        import anthropic

        super().__init__(name, settings)
        self._stream_class = anthropic.AsyncStream[object]
        self._sdk = anthropic.AsyncAnthropic(
            api_key=self._key(),
            base_url=self._address,
            max_retries=0,
            timeout=self._timeout(),
            http_client=self._client(),
            open_telemetry=False,
        )

    def body(self, request: CompletionRequest) -> dict[str, Any]:
        guide, case = _blocks(request)
        body: dict[str, Any] = {
            "model": request.model,
            "max_tokens": request.max_output_tokens,
            "messages": [{"role": "user", "content": case}],
            "stream": True,
        }
        if guide:
            body["system"] = guide
        if request.effort is not None:
            body["output_config"] = {"effort": request.effort}
        return body

    async def send(self, body: Mapping[str, Any]) -> Any:
        return await self._sdk.post(
            "/v1/messages",
            body=body,
            options={"timeout": self._timeout()},
            cast_to=object,
            stream=True,
            stream_cls=self._stream_class,
        )

    def take(self, answer: Answer, event: Mapping[str, Any]) -> None:
        match event.get("type"):
            case "message_start":
                message = table(event, "message")
                answer.model = text(message, "model")
                answer.tokens = _tokens(table(message, "usage"), answer.tokens)
            case "content_block_start":
                answer.text.append(text(table(event, "content_block"), "text") or "")
            case "content_block_delta":
                answer.text.append(text(table(event, "delta"), "text") or "")
            case "message_delta":
                delta = table(event, "delta")
                answer.stop_reason = text(delta, "stop_reason") or answer.stop_reason
                if answer.stop_reason == "refusal":
                    details = table(delta, "stop_details")
                    answer.refusal = text(details, "explanation") or text(details, "category") or ""
                answer.tokens = _tokens(table(event, "usage"), answer.tokens)

    def uncounted(self, model: str) -> None:
        """Counts belong to this format's streams: without them an answer was cut off."""

    async def aclose(self) -> None:
        await self._sdk.close()


def _blocks(request: CompletionRequest) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return guide and case as the service's blocks, with breakpoints; blank texts are not allowed there."""
    guide, case = ([part for part in parts if part.text.strip()] for parts in (request.guide, request.case))
    cached = [part for part in (*guide, *case) if part.cached]
    marked = {id(part) for part in cached[-MOST_BREAKPOINTS:]}
    return _marked(guide, marked), _marked(case, marked)


def _marked(parts: Iterable[Part], marked: set[int]) -> list[dict[str, Any]]:
    return [
        {"type": "text", "text": part.text}
        | ({"cache_control": {"type": "ephemeral"}} if id(part) in marked else {})
        for part in parts
    ]


def _tokens(usage: Mapping[str, Any], before: Tokens | None) -> Tokens | None:
    """Return the counts, later ones instead of earlier; input is what is plain and both caches' together."""
    plain, cached, written, output = (number(usage, name) for name in _COUNTS)
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
