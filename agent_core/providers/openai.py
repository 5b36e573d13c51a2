"""OpenAI's chat completions, and the many servers that speak like them, by the official SDK.

vLLM, llama.cpp, Fireworks and most gateways take the same request at another address. They differ in what the
bound of the answer is called and in whether effort can be set; what a server turns out not to take is left
out. Prefixes are cached there without being told so.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import urlsplit

from agent_core.providers.completion import CompletionRequest, Part, Tokens
from agent_core.providers.events import first, number, table, text
from agent_core.providers.failures import FailureKind
from agent_core.providers.wire import Answer, Endpoint, Field

if TYPE_CHECKING:
    from agent_core.providers.registry import EndpointSettings

_NEW, _OLD = "max_completion_tokens", "max_tokens"
"""How the vendor calls the bound of an answer today, and how nearly all others know it."""


def create(name: str, settings: EndpointSettings) -> OpenAI:
    """Return a provider; the SDK is imported here and nothing is sent yet."""
    return OpenAI(name, settings)


class OpenAI(Endpoint):
    """The chat completions of one service."""

    ends: ClassVar[Mapping[str, FailureKind | None]] = {
        "stop": None,
        "length": FailureKind.TRUNCATED,
        "content_filter": FailureKind.REFUSED,
        "abort": FailureKind.SERVER,
        "error": FailureKind.SERVER,
    }
    optional: ClassVar[Mapping[str, Field]] = {
        _NEW: Field(_NEW, instead=_OLD),
        _OLD: Field(_OLD, instead=_NEW),
        "reasoning_effort": Field("effort"),
    }

    def __init__(self, name: str, settings: EndpointSettings) -> None:
        import openai

        super().__init__(name, settings)
        host = urlsplit(self._address).hostname or ""
        self._bound = _NEW if host == "openai.com" or host.endswith(".openai.com") else _OLD
        self._stream_class = openai.AsyncStream[object]
        self._sdk = openai.AsyncOpenAI(
            api_key=self._key(),
            base_url=self._address,
            max_retries=0,
            timeout=self._timeout(),
            http_client=self._client(),
        )

    def body(self, request: CompletionRequest) -> dict[str, Any]:
        roles = (("system", request.guide), ("user", request.case))
        body: dict[str, Any] = {
            "model": request.model,
            self._bound: request.max_output_tokens,
            "messages": [
                {"role": role, "content": joined} for role, parts in roles if (joined := _joined(parts))
            ],
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if request.effort is not None:
            body["reasoning_effort"] = request.effort
        return body

    async def send(self, body: Mapping[str, Any]) -> Any:
        return await self._sdk.post(
            "/chat/completions",
            body=body,
            options={"timeout": self._timeout()},
            cast_to=object,
            stream=True,
            stream_cls=self._stream_class,
        )

    def take(self, answer: Answer, event: Mapping[str, Any]) -> None:
        choice = first(event, "choices")
        delta = table(choice, "delta")
        answer.model = text(event, "model") or answer.model
        answer.text.append(text(delta, "content") or "")
        if refusal := text(delta, "refusal"):
            answer.refusal = (answer.refusal or "") + refusal
        answer.stop_reason = text(choice, "finish_reason") or answer.stop_reason
        answer.tokens = _tokens(table(event, "usage")) or answer.tokens

    async def aclose(self) -> None:
        await self._sdk.close()


def _joined(parts: tuple[Part, ...]) -> str:
    """Return parts as one text, an empty line between them."""
    return "\n\n".join(part.text.rstrip("\n") for part in parts if part.text.rstrip("\n"))


def _tokens(usage: Mapping[str, Any]) -> Tokens | None:
    """Return the counts; those of the input include what was read from a cache already."""
    whole, output = number(usage, "prompt_tokens"), number(usage, "completion_tokens")
    if whole is None or output is None:
        return None
    details = table(usage, "prompt_tokens_details")
    cached = min(number(details, "cached_tokens") or 0, whole)
    written = min(number(details, "cache_write_tokens") or 0, whole - cached)
    return Tokens(input=whole, cached=cached, written=written, output=output)
