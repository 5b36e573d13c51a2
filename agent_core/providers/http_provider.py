"""The common base of HTTP endpoints: sends one request through a vendor's SDK and returns a typed outcome.

A subclass builds the request and reads the answer's events in its service's format. This module does the
rest: the client and its deadlines, the answer's headers, the limit on its length. It turns all SDK exceptions
into a `CallError`, and makes all text safe to log.

SDKs do not retry, and follow no redirect: a key is sent to the configured address only. Proxies come from the
environment; there is none for this machine itself.
"""

from __future__ import annotations

import asyncio
import json
import re
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import httpx2

from agent_core.providers import error_bodies, headers, text_tools, windows
from agent_core.providers.addresses import is_loopback, public_address, require_allowed
from agent_core.providers.answer_pace import AnswerPace
from agent_core.providers.completion import (
    Completion,
    CompletionRequest,
    NativeAnswer,
    ObserveLimits,
    Tokens,
    ToolCall,
)
from agent_core.providers.failures import CallError, Failure, FailureKind
from state.model import ModelTraits

if TYPE_CHECKING:
    from agent_core.providers.registry import EndpointSettings, Service

MOST_BYTES = 64 << 20
"""An answer with more bytes is cut off. The longest real answers have a third of that."""

TAIL_SECONDS = 2.0
"""How long to wait for the end of a stream (seconds) once the answer is whole."""

TOOLS_FIELD = "tools"
"""The field of a body that holds the tools, in every format."""

_CUT_SHORT = re.compile(r"length|max|limit")
"""What an unknown stop reason says if the answer was cut off."""

_GATEWAY_STATUSES = frozenset({502, 504})
"""Statuses of a gateway, behind which the endpoint may have answered anyway."""

_NOT_TAKEN = re.compile(
    r"unsupported|not support|unrecogni[sz]ed|unknown|unexpected|extra (?:inputs|fields)"
    r"|not (?:permitted|allowed|enabled|implemented)|requires --"
    r"|invalid (?:json[_ ]?)?schema|too complex|failed to (?:parse|compile)|input should be '",
    re.IGNORECASE,
)
_NOT_TAKEN_STATUSES = frozenset({400, 422, 500, 501})
"""Statuses of refused fields; llama.cpp's server says 500 where an option for tools was not given."""
_NOT_TAKEN_CODES = frozenset(
    {"unsupported_parameter", "unknown_parameter", "unsupported_value", "invalid_json_schema"}
)


_NO_TRAITS = ModelTraits()

_CREDENTIAL_PACKAGES = frozenset({"botocore", "boto3", "google"})
"""Whose errors, raised before anything is sent, are about credentials."""
_UNCREDITED = re.compile(r"resolve (?:AWS credentials|API token|project_id)|credential", re.IGNORECASE)


class AnswerTooLong(Exception):  # noqa: N818 - the names of this tree say what happened
    """An answer had more bytes than any real one."""


@dataclass(slots=True)
class PartialAnswer:
    """What has arrived of an answer so far; `refusal` is the text with which the model refused to answer.

    It has begun with the first piece that the model made, which may be a thought that is not shown. `error`
    is what a service reports as the end of an answer, in the form of its errors.

    It is whole once it has said why it stopped, and its counts then or later: what follows changes nothing,
    and neither does a stream that breaks off or stays open.
    """

    text: list[str] = field(default_factory=list)
    model: str | None = None
    stop_reason: str | None = None
    tokens: Tokens | None = None
    refusal: str | None = None
    error: Mapping[str, Any] | None = None
    events: int = 0
    has_begun: bool = False
    is_whole: bool = False
    items: dict[int, dict[str, Any]] = field(default_factory=dict)
    """The items of an answer by place, as its wire format has them; only formats that take tools fill it."""


SCHEMA_WORDS = r"json_?schema|\bschema\b|structured|grammar|guided"
"""What servers call the schema of an answer, besides the field's name."""


class OptionalField(NamedTuple):
    """A field that some servers reject: a pattern for its name in their message, and what to use instead."""

    word: str
    instead: str | None = None


class CallFault(NamedTuple):
    """Why there is no answer. `began` says that the endpoint may have done work that it did not count."""

    kind: FailureKind
    text: str
    began: bool


class HttpProvider(ABC):
    """A provider over HTTP, for one event loop and any number of concurrent requests."""

    ends: ClassVar[Mapping[str, FailureKind | None]]
    """By stop reason: None for an answer that is complete, else the kind of failure. Case does not matter.

    Servers invent reasons of their own. An answer that stopped for one that is not listed is complete if it
    has text, unless the reason speaks of a limit.
    """
    calling: ClassVar[frozenset[str]] = frozenset()
    """Stop reasons of an answer that is complete if the request had tools: it calls them, or it paused."""
    optional: ClassVar[Mapping[str, OptionalField]]
    """Fields of a body that some servers reject, by their names; a dot is between a table and its field.

    The first that a message names is left out, so a table comes behind its fields.
    """

    def __init__(self, name: str, settings: EndpointSettings, service: Service) -> None:
        self.name = name
        self._settings = settings
        self._address = settings.base_url or ""
        self._traits = dict(settings.traits)
        self._usual_first_token_seconds = service.first_token_seconds
        self._sdk = service.client(
            settings, max_retries=0, timeout=self._http_timeout(), http_client=self._http_client()
        )
        self._address = str(self._sdk.base_url)

    @abstractmethod
    def build_body(self, request: CompletionRequest) -> dict[str, Any]:
        """Return the request body in the service's format."""

    @abstractmethod
    async def send(self, body: Mapping[str, Any]) -> Any:
        """Return the SDK's stream of events; each event is a JSON value, or can be read like one."""

    @abstractmethod
    def take_event(self, answer: PartialAnswer, event: Mapping[str, Any]) -> None:
        """Add an event to the answer; a field with a wrong type counts as absent."""

    def read_calls(self, answer: PartialAnswer) -> tuple[ToolCall, ...]:  # noqa: ARG002 - for subclasses
        """Return the calls in a complete answer."""
        return ()

    def native_answer(self, answer: PartialAnswer) -> NativeAnswer | None:  # noqa: ARG002 - for subclasses
        """Return what must be sent back unchanged when the dialogue goes on; None if the text is all."""
        return None

    def takes_tools(self, model: str) -> bool:
        """Return whether the model's server took tools so far; others are told of them in words."""
        return TOOLS_FIELD not in self.traits_of(model).refused

    def traits_of(self, model: str) -> ModelTraits:
        """Return what is known of a model."""
        return self._traits.get(model, _NO_TRAITS)

    def may_count_nothing(self) -> bool:
        """Return whether a whole answer without counts is one here: then its tokens are estimated."""
        return False

    def is_uncredited(self, error: Exception) -> bool:
        """Return whether an SDK found no credentials to send a request with."""
        packages = {kind.__module__.partition(".")[0] for kind in type(error).__mro__}
        return bool(packages & _CREDENTIAL_PACKAGES) or _UNCREDITED.search(str(error)) is not None

    async def aclose(self) -> None:
        """Close the connections."""
        await self._sdk.close()

    def _learn(self, model: str, **changes: Any) -> None:
        """Note a trait of a model, and tell whoever keeps it."""
        after = self.traits_of(model).model_copy(update=changes)
        if after != self.traits_of(model):
            self._traits[model] = after
            if self._settings.learnt is not None:
                self._settings.learnt(model, after)

    async def complete(
        self, request: CompletionRequest, *, deadline_seconds: float, observe: ObserveLimits
    ) -> Completion:
        """Send the request once, and wait for the whole answer.

        It may take `deadline_seconds` from its first token on; how long that may take is limited apart.

        Raises:
            CallError: no answer came.
            agent_core.providers.addresses.RealRequestForbidden: the address must not be called here.
        """
        require_allowed(self._address)
        answer, seen = PartialAnswer(), _ResponseHeaders(observe)
        pace = self._start_pace(request.model, deadline_seconds)
        fault: CallFault | None = None
        try:
            async with pace.keep():
                await self._stream_answer(request, answer, seen, pace)
        except TimeoutError:
            fault = CallFault(FailureKind.TRANSPORT, pace.describe_timeout(), began=True)
        except Exception as error:  # noqa: BLE001 - the edge: whatever an SDK raises is a failure of the call
            fault = self._exception_fault(error, answer, seen)
        self._learn_pace(request.model, pace)
        streams_nothing = fault is None and not answer.events
        if answer.tokens is None and (answer.stop_reason is not None or streams_nothing):
            self._take_uncounted(request, answer)  # what was cut off before its counts says nothing
        if fault is None or answer.is_whole:
            fault = self._answer_fault(answer, has_tools=bool(request.tools))
        if fault is not None:
            raise CallError(self._make_failure(fault, request, answer, seen)) from None
        return self._make_completion(request, answer, seen)

    def _start_pace(self, model: str, deadline_seconds: float) -> AnswerPace:
        learnt = self.traits_of(model).first_token_seconds
        usual = max(learnt or 0.0, self._usual_first_token_seconds)
        return AnswerPace(
            first_token_seconds=self._settings.first_token_seconds or usual,
            silence_seconds=self._settings.silence_seconds,
            deadline_seconds=deadline_seconds,
        )

    def _learn_pace(self, model: str, pace: AnswerPace) -> None:
        """Give a model more time to begin, if it needed most of what it had; a configured limit stays."""
        wanted = pace.wanted_first_token_seconds()
        if self._settings.first_token_seconds is None and wanted is not None:
            self._learn(model, first_token_seconds=wanted)

    def _take_uncounted(self, request: CompletionRequest, answer: PartialAnswer) -> None:
        """Note that an answer came without counts; where that happens, estimate those of a whole one."""
        if not self.may_count_nothing():
            return
        self._learn(request.model, uncounted=True)
        if answer.stop_reason is not None:
            answer.is_whole = True
            said = ["".join(answer.text), *(json.dumps(item) for item in answer.items.values())]
            output = sum(map(windows.estimate_tokens, said))
            answer.tokens = Tokens(
                input=windows.estimate_request_tokens(request),
                output=min(output, request.max_output_tokens),
                estimated=True,
            )

    async def _stream_answer(
        self,
        request: CompletionRequest,
        answer: PartialAnswer,
        seen: _ResponseHeaders,
        pace: AnswerPace,
    ) -> None:
        """Send the request without the fields that the model's server is known to reject.

        A body that is refused because of such a field is sent again at once without the field: the server did
        no work, and there is no other way to find out.
        """
        while True:
            without = self.traits_of(request.model).refused
            words = request if self.takes_tools(request.model) else text_tools.put_in_words(request)
            body = self.build_body(words)
            if body.get("stream") is not True:
                pace.expect_whole()
            for name in [name for name in self.optional if name in without and _has_field(body, name)]:
                value = _pop_field(body, name)
                if (instead := self.optional[name].instead) is not None:
                    body[instead] = value
            try:
                stream = await self.send(body)
            except Exception as error:
                refused = self._refused_field(error, body)
                if refused is None or self.optional[refused].instead in without:
                    raise
                self._learn(request.model, refused=(*without, refused))
            else:
                break
        seen.read_response(stream.response)
        clock = asyncio.get_running_loop()
        with suppress(TimeoutError):  # only of a whole answer; the deadline's is raised outside
            async with asyncio.timeout(None) as tail, stream:
                async for event in stream:
                    self._count_event(answer, event)
                    pace.note_event(has_begun=answer.has_begun)
                    if answer.is_whole and tail.when() is None:
                        tail.reschedule(clock.time() + TAIL_SECONDS)

    def _count_event(self, answer: PartialAnswer, event: object) -> None:
        answer.events += 1
        if isinstance(event, Mapping):
            before = answer.tokens
            self.take_event(answer, event)
            answer.has_begun = answer.has_begun or bool(answer.items or answer.refusal or any(answer.text))
            counted = answer.tokens is not None and answer.tokens is not before
            answer.is_whole = answer.is_whole or (answer.stop_reason is not None and counted)

    def _refused_field(self, error: Exception, body: Mapping[str, Any]) -> str | None:
        """Return the optional field because of which the server refused the body, or None."""
        response = _error_response(error)
        if response is None or response.status_code not in _NOT_TAKEN_STATUSES:
            return None
        refusal = error_bodies.parse_error_body(getattr(error, "body", None))
        if not (refusal.codes & _NOT_TAKEN_CODES or _NOT_TAKEN.search(refusal.message)):
            return None
        said = refusal.message if refusal.parameter is None else refusal.parameter
        return next(
            (
                name
                for name, field in self.optional.items()
                if _has_field(body, name) and re.search(field.word, said, re.IGNORECASE)
            ),
            None,
        )

    def _answer_fault(self, answer: PartialAnswer, *, has_tools: bool) -> CallFault | None:
        """Return why the received data is no answer; None if it is one."""
        reason = answer.stop_reason
        if not answer.events:
            return CallFault(FailureKind.SERVER, "what came is no stream of events", began=True)
        if answer.error is not None:
            refusal = error_bodies.parse_error_body(answer.error)
            text = refusal.message or "it failed, unexplained"
            return CallFault(error_bodies.classify_error(200, refusal), text, began=True)
        if reason is None:
            return CallFault(FailureKind.TRANSPORT, "cut off: it ended without a stop reason", began=True)
        kind = None if has_tools and reason.lower() in self.calling else self._classify_stop(reason, answer)
        if answer.refusal is not None or kind is FailureKind.REFUSED:
            return CallFault(
                FailureKind.REFUSED, f"the model refused: {answer.refusal or reason}", began=True
            )
        if kind is not None:
            return CallFault(kind, f"the answer stopped for {reason}", began=True)
        if answer.tokens is None:
            return CallFault(FailureKind.TRANSPORT, "cut off: no count of tokens came", began=True)
        return None

    def _classify_stop(self, reason: str, answer: PartialAnswer) -> FailureKind | None:
        """Return the kind of failure that a stop reason stands for; None for a complete answer."""
        known = reason.lower()
        if known in self.ends:
            return self.ends[known]
        if _CUT_SHORT.search(known):
            return FailureKind.TRUNCATED
        return None if any(text.strip() for text in answer.text) else FailureKind.INVALID

    def _exception_fault(self, error: Exception, answer: PartialAnswer, seen: _ResponseHeaders) -> CallFault:
        """Return the fault that an exception of an SDK or of its HTTP library stands for."""
        began = answer.events > 0
        response, body = _error_response(error), getattr(error, "body", None)
        if response is not None:
            seen.read_response(response)
        if response is not None or body is not None:  # the service itself reports the error
            status = seen.status or 0
            refusal = error_bodies.parse_error_body(body)
            text = refusal.message or f"status {status}, unexplained"
            return CallFault(
                error_bodies.classify_error(status, refusal), text, began or status in _GATEWAY_STATUSES
            )
        if seen.status is None and self.is_uncredited(error):
            return CallFault(FailureKind.AUTH, f"no credentials: {error}", began)
        cause = error if isinstance(error, httpx2.HTTPError) else error.__cause__ or error
        if isinstance(cause, httpx2.ConnectTimeout | httpx2.PoolTimeout):
            text = f"no connection to {public_address(self._address)} in {self._settings.connect_seconds:g} s"
            return CallFault(FailureKind.TRANSPORT, text, began)
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
        # Without a stop reason, the counts so far may not be the final ones.
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
        assert answer.stop_reason is not None
        assert answer.tokens is not None
        model = answer.model or request.model
        text = _repair_surrogates("".join(answer.text))
        calls: tuple[ToolCall, ...] = ()
        native: NativeAnswer | None = None
        if request.tools and self.takes_tools(request.model):
            calls, native = self.read_calls(answer), self.native_answer(answer)
        if request.tools and not calls:
            calls = text_tools.parse_calls(text)
        return Completion(
            text=text,
            calls=calls,
            native=native,
            model=model if model == request.model else self._loggable_text(model, request),
            stop_reason=self._loggable_text(answer.stop_reason, request),
            tokens=answer.tokens,
            request_id=self._loggable_request_id(request, seen),
        )

    def _loggable_request_id(self, request: CompletionRequest, seen: _ResponseHeaders) -> str | None:
        return None if seen.request_id is None else self._loggable_text(seen.request_id, request)

    def _loggable_text(self, text: str, request: CompletionRequest) -> str:
        """Return a server's text in a form that may be logged."""
        return error_bodies.redact_message(_repair_surrogates(text), (self._settings.key,), request)

    def _http_client(self) -> httpx2.AsyncClient:
        """Return the HTTP client for an SDK: with deadlines, no redirects, and bounded answers."""
        return httpx2.AsyncClient(
            timeout=self._http_timeout(),
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=32),
            follow_redirects=False,
            trust_env=not is_loopback(self._address),
            verify=not self._address.startswith("http:"),  # plain http: do not load certificates
            headers={"accept-encoding": "identity"},  # so that the byte limit counts what is read
            event_hooks={"response": [_bound_response]},
        )

    def _http_timeout(self) -> httpx2.Timeout:
        """Return the timeouts of the HTTP client: to connect. `AnswerPace` has the others."""
        return httpx2.Timeout(None, connect=self._settings.connect_seconds)


class _ResponseHeaders:
    """What the headers of the answer said; after several answers, the last one's."""

    def __init__(self, observe: ObserveLimits) -> None:
        self._observe = observe
        self._taken: httpx2.Response | None = None
        self.status: int | None = None
        self.request_id: str | None = None
        self.retry_after_seconds: float | None = None

    def read_response(self, response: httpx2.Response) -> None:
        """Read an answer's status and headers, once."""
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
    """A body that raises an error once it is longer than any real answer."""

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


def _has_field(body: Mapping[str, Any], name: str) -> bool:
    """Return whether a body has a field; a dot is between a table and its field."""
    table, _, rest = name.partition(".")
    return table in body and (not rest or _has_field(body[table], rest))


def _pop_field(body: dict[str, Any], name: str) -> Any:
    """Take a field out of a body, with its table if nothing is left of that; return the field's value."""
    table, _, rest = name.partition(".")
    if not rest:
        return body.pop(table)
    value = _pop_field(body[table], rest)
    if not body[table]:
        del body[table]
    return value


def _error_response(error: Exception) -> httpx2.Response | None:
    """Return the HTTP response that an SDK's error carries, or None."""
    response = getattr(error, "response", None)
    return response if isinstance(response, httpx2.Response) else None


def _repair_surrogates(text: str) -> str:
    """Return a text with surrogate pairs joined and lone surrogates replaced, because UTF-8 allows neither.

    JSON may contain such halves, for example of an emoji that a server split between two pieces of its
    answer.
    """
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
