"""OpenAI's chat completions, and the many servers that speak like them, by the official SDK.

vLLM, llama.cpp, Fireworks and most gateways take the same request at another address. They differ in what the
bound of the answer is called and in whether effort can be set; what a server turns out not to take is left
out. Some do not count tokens in a stream, nor say there why a question failed (that of llama-cpp-python
0.3.36 does neither): such a server is asked for whole answers from then on; the vendor never, whose streams
are counted. Prefixes are cached without being told so.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Self
from urllib.parse import urlsplit

import httpx2

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
        self._vendor = host == "openai.com" or host.endswith(".openai.com")
        self._unstreamed: set[str] = set()
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
            _NEW if self._vendor else _OLD: request.max_output_tokens,
            "messages": [
                {"role": role, "content": joined} for role, parts in roles if (joined := _joined(parts))
            ],
        }
        if request.model not in self._unstreamed:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        if request.effort is not None:
            body["reasoning_effort"] = request.effort
        return body

    async def send(self, body: Mapping[str, Any]) -> Any:
        if "stream" not in body:
            # Silent until it is whole: the deadline of the question is the only one.
            timeout = httpx2.Timeout(None, connect=self._settings.connect_seconds)
            return _Whole(
                await self._sdk.post(
                    "/chat/completions", body=body, options={"timeout": timeout}, cast_to=httpx2.Response
                )
            )
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
        delta = table(choice, "delta") or table(choice, "message")
        answer.model = text(event, "model") or answer.model
        answer.text.append(text(delta, "content") or "")
        if refusal := text(delta, "refusal"):
            answer.refusal = (answer.refusal or "") + refusal
        answer.stop_reason = text(choice, "finish_reason") or answer.stop_reason
        answer.tokens = _tokens(table(event, "usage")) or answer.tokens

    def uncounted(self, model: str) -> None:
        if not self._vendor:
            self._unstreamed.add(model)

    async def aclose(self) -> None:
        await self._sdk.close()


class _Whole:
    """An answer that came in one piece, as a stream of one event."""

    def __init__(self, response: httpx2.Response) -> None:
        self.response = response

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        """All of it has been read."""

    async def __aiter__(self) -> AsyncIterator[object]:
        yield self.response.json()


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
