"""One question over HTTP by a vendor's SDK: what both endpoints share between request and typed outcome.

A subclass says what to send, in its service's words, and reads the answer's events. Here is the rest: the
client and its deadlines, the headers of every answer, the bound on its length, that whatever an SDK raises
comes out as a `CallError`, and that all text which comes out can be written down. SDKs retry nothing, and
follow no redirect: a key is sent to the configured address only. Proxies are those of the environment, and
none to this machine itself.
"""

from __future__ import annotations

import asyncio
import re
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import httpx2

from agent_core.providers import error_bodies, headers
from agent_core.providers.addresses import is_loopback, public_address, require_allowed
from agent_core.providers.completion import Completion, CompletionRequest, ObserveLimits, Tokens
from agent_core.providers.failures import CallError, Failure, FailureKind

if TYPE_CHECKING:
    from agent_core.providers.registry import EndpointSettings

MOST_BYTES = 64 << 20
"""An answer of more bytes on the wire is broken off: the longest real ones are a third of that."""

_GATEWAY_STATUSES = frozenset({502, 504})
"""Statuses of something in between, behind which the endpoint may have answered all the same."""

_NOT_TAKEN = re.compile(
    r"unsupported|not support|unrecogni[sz]ed|unknown|unexpected|extra (?:inputs|fields)"
    r"|not (?:permitted|allowed)",
    re.IGNORECASE,
)
_NOT_TAKEN_CODES = frozenset({"unsupported_parameter", "unknown_parameter", "unsupported_value"})


class AnswerTooLong(Exception):  # noqa: N818 - the names of this tree say what happened
    """An answer had more bytes than any real one."""


@dataclass(slots=True)
class PartialAnswer:
    """What has come of an answer so far; `refusal` is what the model says instead of one."""

    text: list[str] = field(default_factory=list)
    model: str | None = None
    stop_reason: str | None = None
    tokens: Tokens | None = None
    refusal: str | None = None
    events: int = 0


class OptionalField(NamedTuple):
    """A field that a server may not take: how it calls it then, and which one says the same, if any."""

    word: str
    instead: str | None = None


class CallFault(NamedTuple):
    """Why there is no answer. `began`: the endpoint may have worked on it, and nobody says how much."""

    kind: FailureKind
    text: str
    began: bool


class HttpProvider(ABC):
    """A provider over HTTP. One event loop's; any number of requests at a time."""

    ends: ClassVar[Mapping[str, FailureKind | None]]
    """By stop reason: None for an answer that ended by itself, else the failure that it is."""
    optional: ClassVar[Mapping[str, OptionalField]]
    """Fields of a body that not every server takes."""

    def __init__(self, name: str, settings: EndpointSettings) -> None:
        assert settings.base_url is not None
        self.name = name
        self._settings = settings
        self._address = settings.base_url
        self._not_taken: dict[str, set[str]] = {}

    @abstractmethod
    def build_body(self, request: CompletionRequest) -> dict[str, Any]:
        """Return the request as the service takes it."""

    @abstractmethod
    async def send(self, body: Mapping[str, Any]) -> Any:
        """Return the SDK's stream of the answer's events, each a JSON value, or what can be read like one."""

    @abstractmethod
    def take_event(self, answer: PartialAnswer, event: Mapping[str, Any]) -> None:
        """Take an event into the answer; what is not as the service describes it counts as absent."""

    @abstractmethod
    def note_uncounted(self, model: str) -> None:
        """Learn that an answer of the model ended in good order and without a count of its tokens."""

    @abstractmethod
    async def aclose(self) -> None:
        """Close the connections."""

    async def complete(
        self, request: CompletionRequest, *, deadline_seconds: float, observe: ObserveLimits
    ) -> Completion:
        """Ask once, and wait for the whole answer at most so long.

        Raises:
            CallError: there is none.
            agent_core.providers.addresses.RealRequestForbidden: the address must not be asked here.
        """
        require_allowed(self._address)
        answer, seen = PartialAnswer(), _ResponseHeaders(observe)
        try:
            async with asyncio.timeout(deadline_seconds):
                await self._stream_answer(request, answer, seen)
        except TimeoutError:
            fault = CallFault(FailureKind.TRANSPORT, f"no whole answer in {deadline_seconds:g} s", began=True)
        except Exception as error:  # noqa: BLE001 - the edge: whatever an SDK raises is a failure of the call
            fault = self._exception_fault(error, answer, seen)
        else:
            if answer.tokens is None:
                self.note_uncounted(request.model)
            if (unfit := self._answer_fault(answer)) is None:
                return self._make_completion(request, answer, seen)
            fault = unfit
        raise CallError(self._make_failure(fault, request, answer, seen)) from None

    async def _stream_answer(
        self, request: CompletionRequest, answer: PartialAnswer, seen: _ResponseHeaders
    ) -> None:
        """Ask without the fields that the model's server was found not to take.

        A body that is refused for such a field is sent again without it at once: nothing was worked on, and
        there is no other way to know.
        """
        without = self._not_taken.setdefault(request.model, set())
        while True:
            body = self.build_body(request)
            for name in without & body.keys():
                value = body.pop(name)
                if (instead := self.optional[name].instead) is not None:
                    body[instead] = value
            try:
                stream = await self.send(body)
            except Exception as error:
                refused = self._refused_field(error, body)
                if refused is None or self.optional[refused].instead in without:
                    raise
                without.add(refused)
            else:
                break
        seen.read_response(stream.response)
        async with stream:
            async for event in stream:
                answer.events += 1
                if isinstance(event, Mapping):
                    self.take_event(answer, event)

    def _refused_field(self, error: Exception, body: Mapping[str, Any]) -> str | None:
        """Return the optional field of the body for which the server refused it, if that is why."""
        response = _error_response(error)
        if response is None or response.status_code not in {400, 422}:
            return None
        refusal = error_bodies.parse_error_body(getattr(error, "body", None))
        if not (refusal.codes & _NOT_TAKEN_CODES or _NOT_TAKEN.search(refusal.message)):
            return None
        said = refusal.message if refusal.parameter is None else refusal.parameter
        return next((n for n, field in self.optional.items() if n in body and field.word in said), None)

    def _answer_fault(self, answer: PartialAnswer) -> CallFault | None:
        """Return why what came is no answer; None if it is one."""
        reason = answer.stop_reason
        if not answer.events:
            return CallFault(FailureKind.SERVER, "what came is no stream of events", began=True)
        if reason is None:
            return CallFault(FailureKind.TRANSPORT, "cut off: it ended without a stop reason", began=True)
        kind = self.ends.get(reason, FailureKind.INVALID)
        if answer.refusal is not None or kind is FailureKind.REFUSED:
            return CallFault(
                FailureKind.REFUSED, f"the model refused: {answer.refusal or reason}", began=True
            )
        if kind is not None:
            return CallFault(kind, f"the answer stopped for {reason}", began=True)
        if answer.tokens is None:
            return CallFault(FailureKind.TRANSPORT, "cut off: no count of tokens came", began=True)
        return None

    def _exception_fault(self, error: Exception, answer: PartialAnswer, seen: _ResponseHeaders) -> CallFault:
        """Return what an exception of an SDK, or of what it stands on, means."""
        began = answer.events > 0
        response, body = _error_response(error), getattr(error, "body", None)
        if response is not None:
            seen.read_response(response)
        if response is not None or body is not None:  # the service itself says so
            status = seen.status or 0
            refusal = error_bodies.parse_error_body(body)
            text = refusal.message or f"status {status}, unexplained"
            return CallFault(
                error_bodies.classify_error(status, refusal), text, began or status in _GATEWAY_STATUSES
            )
        cause = error if isinstance(error, httpx2.HTTPError) else error.__cause__ or error
        if isinstance(cause, httpx2.ConnectTimeout | httpx2.PoolTimeout):
            text = f"no connection to {public_address(self._address)} in {self._settings.connect_seconds:g} s"
            return CallFault(FailureKind.TRANSPORT, text, began)
        if isinstance(cause, httpx2.TimeoutException):
            text = f"silent for {self._settings.silence_seconds:g} s"
            return CallFault(FailureKind.TRANSPORT, text, began=True)
        if isinstance(cause, httpx2.ConnectError | httpx2.WriteError | httpx2.UnsupportedProtocol):
            text = f"{public_address(self._address)} cannot be reached: {cause}"
            return CallFault(FailureKind.TRANSPORT, text, began)
        if isinstance(cause, httpx2.HTTPError):
            return CallFault(FailureKind.TRANSPORT, f"the connection broke: {cause}", began=True)
        return CallFault(
            FailureKind.SERVER, f"what came is no answer: {type(cause).__name__}: {cause}", began=True
        )

    def _make_failure(
        self, fault: CallFault, request: CompletionRequest, answer: PartialAnswer, seen: _ResponseHeaders
    ) -> Failure:
        # Counts that came before the end may not be the last ones.
        tokens = answer.tokens if answer.stop_reason is not None else None
        return Failure(
            kind=fault.kind,
            message=self._loggable_text(fault.text, request),
            status=seen.status,
            retry_after_seconds=seen.retry_after_seconds,
            request_id=self._loggable_request_id(request, seen),
            tokens=tokens,
            may_cost=fault.began and tokens is None,
        )

    def _make_completion(
        self, request: CompletionRequest, answer: PartialAnswer, seen: _ResponseHeaders
    ) -> Completion:
        assert answer.stop_reason is not None  # and one of `ends`, so it is no text of the server's own
        assert answer.tokens is not None
        model = answer.model or request.model
        return Completion(
            text=_repair_surrogates("".join(answer.text)),
            model=model if model == request.model else self._loggable_text(model, request),
            stop_reason=answer.stop_reason,
            tokens=answer.tokens,
            request_id=self._loggable_request_id(request, seen),
        )

    def _loggable_request_id(self, request: CompletionRequest, seen: _ResponseHeaders) -> str | None:
        return None if seen.request_id is None else self._loggable_text(seen.request_id, request)

    def _loggable_text(self, text: str, request: CompletionRequest) -> str:
        """Return a text of the server's as the log may have it."""
        return error_bodies.redact_message(_repair_surrogates(text), (self._settings.key,), request)

    def _http_client(self) -> httpx2.AsyncClient:
        """Return the client for an SDK: with deadlines, for one address, and bounded."""
        return httpx2.AsyncClient(
            timeout=self._http_timeout(),
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=32),
            follow_redirects=False,
            trust_env=not is_loopback(self._address),
            verify=not self._address.startswith("http:"),  # nothing to verify, so no certificates to load
            headers={"accept-encoding": "identity"},  # what is bounded is what is read
            event_hooks={"response": [_bound_response]},
        )

    def _http_timeout(self) -> httpx2.Timeout:
        return httpx2.Timeout(self._settings.silence_seconds, connect=self._settings.connect_seconds)

    def _api_key(self) -> str:
        """Return the key as SDKs want one: a server that asks for none is sent a word."""
        return "none" if self._settings.key is None else self._settings.key.reveal()


class _ResponseHeaders:
    """What the headers of a question's answer said; of several answers the last."""

    def __init__(self, observe: ObserveLimits) -> None:
        self._observe = observe
        self._taken: httpx2.Response | None = None
        self.status: int | None = None
        self.request_id: str | None = None
        self.retry_after_seconds: float | None = None

    def read_response(self, response: httpx2.Response) -> None:
        """Take in an answer's status and headers, once."""
        if response is self._taken:
            return
        self._taken = response
        now = datetime.now(UTC)
        self.status = response.status_code
        self.request_id = headers.request_id(response.headers)
        self.retry_after_seconds = headers.retry_after_seconds(response.headers, now)
        if (limits := headers.rate_limits(response.headers, now)) is not None:
            self._observe(limits)


class _BoundedStream(httpx2.AsyncByteStream):
    """A body that ends in an error when it grows beyond any real answer."""

    def __init__(self, inner: httpx2.AsyncByteStream) -> None:
        self._inner = inner

    async def __aiter__(self) -> AsyncIterator[bytes]:
        count = 0
        async for chunk in self._inner:
            count += len(chunk)
            if count > MOST_BYTES:
                raise AnswerTooLong(f"more than {MOST_BYTES} bytes")
            yield chunk

    async def aclose(self) -> None:
        await self._inner.aclose()


async def _bound_response(response: httpx2.Response) -> None:
    assert isinstance(response.stream, httpx2.AsyncByteStream)
    response.stream = _BoundedStream(response.stream)


def _error_response(error: Exception) -> httpx2.Response | None:
    """Return the answer that an SDK's error stands for."""
    response = getattr(error, "response", None)
    return response if isinstance(response, httpx2.Response) else None


def _repair_surrogates(text: str) -> str:
    """Return a text with halves of letters joined, and what has no other half replaced: UTF-8 takes neither.

    JSON may hold such halves, as of an emoji that a server cut into two pieces of its answer.
    """
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
