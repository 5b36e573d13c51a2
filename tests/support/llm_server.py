"""A server on this machine that answers like a model's service, as a script says: real sockets, both formats.

`LlmServer(script)` speaks Anthropic's messages (`/v1/messages`) and OpenAI's chat completions
(`/v1/chat/completions`), both streamed. The script is asked with every request and how often the same
question came, so that faults come by delivery and by question and never by time. It runs in a thread of its
own, so the code under test may be in this process or in another: `with LlmServer(script) as server`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Self

from agent_core.providers.completion import CompletionRequest
from state.model import digest_of

Vendor = Literal["anthropic", "openai"]
Ending = Literal["whole", "cut", "eof", "no_usage", "no_stop", "error", "garbage", "open", "reset"]


@dataclass(frozen=True)
class Asked:
    """One request as it came, `guide` the system prompt, `case` the one message.

    `count` is how often the same question came, this time included; `number` how many requests.
    """

    vendor: Vendor
    body: Mapping[str, Any]
    headers: Mapping[str, str]
    count: int
    number: int

    @property
    def model(self) -> str:
        return self.body["model"]

    @property
    def guide(self) -> str:
        if self.vendor == "anthropic":
            return _join_texts(block["text"] for block in self.body.get("system", ()))
        return _join_texts(m["content"] for m in self.body["messages"] if m["role"] == "system")

    @property
    def case(self) -> str:
        content = next(m["content"] for m in self.body["messages"] if m["role"] == "user")
        return content if isinstance(content, str) else _join_texts(block["text"] for block in content)

    @property
    def later(self) -> Sequence[Mapping[str, Any]]:
        """The messages of the dialogue that followed the question."""
        begin = (
            1 if self.vendor == "anthropic" else sum(m["role"] == "system" for m in self.body["messages"]) + 1
        )
        return self.body["messages"][begin:]

    @property
    def turn(self) -> int:
        """How many answers of a dialogue came before."""
        return sum(message["role"] == "assistant" for message in self.later)

    @property
    def results(self) -> list[str]:
        """The results of all calls of a dialogue so far, in order."""
        if self.vendor == "openai":
            return [message["content"] for message in self.later if message["role"] == "tool"]
        users = [message["content"] for message in self.later if message["role"] == "user"]
        blocks = [block for content in users for block in content]
        return [block["content"] for block in blocks if block["type"] == "tool_result"]

    @property
    def digest(self) -> str:
        """Says which question this is, whatever its format, its bound and its breakpoints."""
        later = [json.dumps(message, sort_keys=True) for message in self.later]
        return _digest(self.model, self.guide, self.case, *later)

    @property
    def most_tokens(self) -> int:
        return next(self.body[n] for n in ("max_tokens", "max_completion_tokens") if n in self.body)


@dataclass(frozen=True)
class Reply:
    """An answer, or part of one.

    `ending`: "cut" drops the connection in the middle (reset), "eof" ends the body there without a word,
    "no_usage" leaves the counts out, "no_stop" the stop reason, "error" sends an error (of type `error`) for
    an event, "garbage" bytes that are no event. "open" leaves out the last event, which says that nothing
    follows, and keeps the connection open; "reset" drops it there. `stop` is the vendor's word; None is that
    of a whole answer. `pause_seconds` is before every event. `cached` and `written` are of the `input`
    tokens. Without `counted`, a stream of OpenAI's form has no counts; with `parts`, its content is a list.
    `calls` are (tool, arguments as JSON), streamed in two pieces each behind the text; `thinking` is a
    signed block before it.
    """

    text: str = "ok"
    input: int | None = None
    output: int | None = None
    cached: int = 0
    written: int = 0
    stop: str | None = None
    refusal: str | None = None
    ending: Ending = "whole"
    error: str = "overloaded_error"
    pause_seconds: float = 0.0
    headers: Mapping[str, str] = field(default_factory=dict)
    model: str | None = None
    parts: bool = False
    counted: bool = True
    calls: Sequence[tuple[str, str]] = ()
    thinking: str = ""


@dataclass(frozen=True)
class Refuse:
    """A status instead of an answer. `body` is the JSON of an error in the vendor's form, or raw bytes."""

    status: int
    type: str = "api_error"
    message: str = "as the script says"
    code: str | None = None
    param: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    raw: bytes | None = None


@dataclass(frozen=True)
class Hang:
    """No word at all: until the server stops, or at once with `drop` the connection is closed."""

    drop: bool = False


Said = Reply | Refuse | Hang
Script = Callable[[Asked], Said]
_JSON = {"content-type": "application/json"}


class LlmServer:
    """The server: `asked` lists the requests as they came, `counts` how often each question did, by digest.

    `anthropic` and `openai` are the base URLs of the two formats.
    """

    def __init__(self, script: Script) -> None:
        self.script = script
        self.asked: list[Asked] = []
        self._counts: Counter[str] = Counter()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._stopping = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._came = threading.Condition()
        self.port = 0

    @property
    def anthropic(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def openai(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def counts(self) -> Counter[str]:
        return Counter(self._counts)

    def wait_for(self, count: int) -> None:
        """Return when so many requests have come; raise TimeoutError when they do not."""
        with self._came:
            if not self._came.wait_for(lambda: len(self.asked) >= count, timeout=60):
                raise TimeoutError(f"{len(self.asked)} requests came, not {count}")

    def __enter__(self) -> Self:
        self._thread.start()
        self._run(self._start())
        return self

    def __exit__(self, *_: object) -> None:
        self._run(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self, coroutine: Any) -> None:
        asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(timeout=30)

    async def _start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _stop(self) -> None:
        self._stopping.set()
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            while await self._serve_request(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # who asked has gone, or the server stops
        finally:
            self._tasks.discard(task)
            writer.close()
            with contextlib.suppress(ConnectionError, asyncio.CancelledError):
                await writer.wait_closed()

    async def _serve_request(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Serve one request of a connection; return whether another may follow."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        path = head[0].split(" ")[1]
        headers = {
            name.strip().lower(): value.strip()
            for name, _, value in (line.partition(":") for line in head[1:])
        }
        body = json.loads(await reader.readexactly(int(headers.get("content-length", "0"))) or b"null")
        vendor = {"/v1/messages": "anthropic", "/v1/chat/completions": "openai"}.get(path)
        if vendor is None:
            return await _refuse(writer, "openai", Refuse(404, "not_found_error", f"no such path: {path}"))
        asked = self._record_question(vendor, body, headers)
        said = self.script(asked)
        if isinstance(said, Hang):
            if not said.drop:
                await self._stopping.wait()
            return False
        if isinstance(said, Refuse):
            return await _refuse(writer, asked.vendor, said)
        return await _stream(writer, asked, said)

    def _record_question(self, vendor: Any, body: Mapping[str, Any], headers: Mapping[str, str]) -> Asked:
        asked = Asked(vendor=vendor, body=body, headers=headers, count=0, number=len(self.asked) + 1)
        self._counts[asked.digest] += 1
        asked = Asked(vendor, body, headers, self._counts[asked.digest], asked.number)
        with self._came:
            self.asked.append(asked)
            self._came.notify_all()
        return asked


def digest_of_request(request: CompletionRequest) -> str:
    """Return the digest under which the server will know the question."""
    guide, case = (_join_texts(p.text for p in parts) for parts in (request.guide, request.case))
    return _digest(request.model, guide, case)


def by_digest(replies: Mapping[str, Said], otherwise: Said | None = None) -> Script:
    """Return a script that answers questions by their digests; others are refused, or told `otherwise`."""
    unknown = otherwise or Refuse(400, "invalid_request_error", "no such question in the script")
    return lambda asked: replies.get(asked.digest, unknown)


def fail_first_deliveries(script: Script, *faults: Said) -> Script:
    """Return a script whose first deliveries of every question are the faults, in order."""
    return lambda asked: faults[asked.count - 1] if asked.count <= len(faults) else script(asked)


def _join_texts(texts: Iterable[str]) -> str:
    return "\n\n".join(text.rstrip("\n") for text in texts if text.rstrip("\n"))


def _digest(*texts: str) -> str:
    return digest_of(json.dumps(texts).encode())


async def _refuse(writer: asyncio.StreamWriter, vendor: Vendor, said: Refuse) -> bool:
    if said.raw is not None:
        payload, kind = said.raw, {"content-type": "text/html"}
    elif vendor == "anthropic":
        error: dict[str, Any] = {"type": said.type, "message": said.message}
        if said.code is not None:
            error["details"] = {"error_code": said.code}
        payload, kind = json.dumps({"type": "error", "error": error}).encode(), _JSON
    else:
        error = {"message": said.message, "type": said.type, "param": said.param, "code": said.code}
        payload, kind = json.dumps({"error": error}).encode(), _JSON
    return await _send(writer, vendor, said.status, payload, {**kind, **said.headers})


async def _stream(writer: asyncio.StreamWriter, asked: Asked, said: Reply) -> bool:
    """Send an answer's events, chunked; return whether the connection may be used again."""
    if asked.vendor == "openai" and not asked.body.get("stream"):
        return await _send_whole_answer(writer, asked, said)
    headers = {"content-type": "text/event-stream", "transfer-encoding": "chunked", **_id(asked.vendor)}
    writer.write(_head(200, {**headers, **said.headers}))
    async for event in _pause_between(_events(asked, said), said.pause_seconds):
        writer.write(b"%x\r\n%s\r\n" % (len(event), event))
        await writer.drain()
    if said.ending == "open":
        await asyncio.Event().wait()
    if said.ending in {"cut", "reset"}:
        writer.transport.abort()
        return False
    writer.write(b"0\r\n\r\n")
    await writer.drain()
    return True


async def _send_whole_answer(writer: asyncio.StreamWriter, asked: Asked, said: Reply) -> bool:
    """Send an answer in one piece, as whoever does not stream is answered; it ends as it should."""
    message: dict[str, Any] = {
        "role": "assistant",
        "content": _content(said, said.text),
        "refusal": said.refusal,
    }
    if said.calls:
        message["tool_calls"] = [
            {"id": f"call_{at}", "type": "function", "function": {"name": name, "arguments": arguments}}
            for at, (name, arguments) in enumerate(said.calls)
        ]
    stop = said.stop or ("tool_calls" if said.calls else "stop")
    whole = {
        "id": f"chatcmpl-{asked.number}",
        "model": said.model or asked.model,
        "choices": [{"index": 0, "message": message, "finish_reason": stop}],
        "usage": _usage(asked, said),
    }
    return await _send(writer, "openai", 200, json.dumps(whole).encode(), {**_JSON, **said.headers})


async def _send(
    writer: asyncio.StreamWriter, vendor: Vendor, status: int, body: bytes, more: Mapping[str, str]
) -> bool:
    headers = {"content-length": str(len(body)), **_id(vendor), **more}
    writer.write(_head(status, headers) + body)
    await writer.drain()
    return True


async def _pause_between(events: Iterator[bytes], seconds: float) -> AsyncIterator[bytes]:
    for event in events:
        await asyncio.sleep(seconds)
        yield event


def _events(asked: Asked, said: Reply) -> Iterator[bytes]:
    """Yield the events of an answer up to where it ends."""
    before, after = (_anthropic if asked.vendor == "anthropic" else _openai)(asked, said)
    yield from before
    if said.ending in {"cut", "eof"}:
        return
    if said.ending == "garbage":
        yield b"event: message_delta\ndata: {\xff not json\n\n"
        return
    if said.ending == "error":
        error = {"type": said.error, "message": "as the script says", "code": said.error}
        yield _event({"type": "error", "error": error}, named=asked.vendor == "anthropic")
        return
    yield from after[:-1] if said.ending in {"open", "reset"} else after  # [DONE] or message_stop


def _anthropic(asked: Asked, said: Reply) -> tuple[list[bytes], list[bytes]]:
    whole, output = _count_tokens(asked, said)
    usage = {
        "input_tokens": whole - said.cached - said.written,
        "cache_read_input_tokens": said.cached,
        "cache_creation_input_tokens": said.written,
    }
    message = {"model": said.model or asked.model, "usage": {**usage, "output_tokens": 1}}
    usual = "tool_use" if said.calls else "end_turn"
    stop = said.stop or ("refusal" if said.refusal is not None else usual)
    delta: dict[str, Any] = {"stop_reason": None if said.ending == "no_stop" else stop}
    if said.refusal is not None:
        delta["stop_details"] = {"type": "refusal", "category": None, "explanation": said.refusal}
    ending: dict[str, Any] = {"type": "message_delta", "delta": delta, "usage": {"output_tokens": output}}
    if said.ending == "no_usage":
        message.pop("usage")
        ending.pop("usage")
    half = len(said.text) // 2
    at = int(bool(said.thinking))
    block = {"type": "content_block_start", "index": at, "content_block": {"type": "text", "text": ""}}
    stopped = {"type": "content_block_stop", "index": at}
    before = [
        {"type": "message_start", "message": message},
        *(_thinking_events(said.thinking) if said.thinking else ()),
        block,
        {"type": "ping"},
        _text_delta(said.text[:half], at),
    ]
    called = [
        event for number, call in enumerate(said.calls, at + 1) for event in _call_events(number, *call)
    ]
    after = [_text_delta(said.text[half:], at), stopped, *called, ending, {"type": "message_stop"}]
    return [_event(e, named=True) for e in before], [_event(e, named=True) for e in after]


def _openai(asked: Asked, said: Reply) -> tuple[list[bytes], list[bytes]]:
    def chunk(delta: Mapping[str, Any], reason: str | None = None, **more: Any) -> dict[str, Any]:
        return {
            "id": f"chatcmpl-{asked.number}",
            "model": said.model or asked.model,
            "choices": [{"index": 0, "delta": delta, "finish_reason": reason}],
            **more,
        }

    half = len(said.text) // 2
    before = [
        chunk({"role": "assistant", "content": ""}),
        chunk({"content": _content(said, said.text[:half])}),
    ]
    after = [chunk({"content": _content(said, said.text[half:])})]
    if said.refusal is not None:
        after.append(chunk({"refusal": said.refusal}))
    after += map(chunk, _call_deltas(said))
    stop = said.stop or ("tool_calls" if said.calls else "stop")
    after.append(chunk({}, None if said.ending == "no_stop" else stop))
    if (
        said.ending != "no_usage"
        and said.counted
        and asked.body.get("stream_options", {}).get("include_usage")
    ):
        after.append(chunk({}, choices=[], usage=_usage(asked, said)))
    events = [_event(e, named=False) for e in after]
    return [_event(e, named=False) for e in before], [*events, b"data: [DONE]\n\n"]


def _content(said: Reply, text: str) -> str | list[dict[str, Any]]:
    """Return the content of a message of OpenAI's form; servers of models that think send lists of parts."""
    thought = {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}
    return [thought, {"type": "text", "text": text}] if said.parts else text


def _usage(asked: Asked, said: Reply) -> dict[str, Any]:
    """Return the counts as OpenAI has them."""
    whole, output = _count_tokens(asked, said)
    details = {"cached_tokens": said.cached, "cache_write_tokens": said.written}
    return {"prompt_tokens": whole, "completion_tokens": output, "prompt_tokens_details": details}


def _count_tokens(asked: Asked, said: Reply) -> tuple[int, int]:
    """Return the tokens of question and answer: as the script says, else a fourth of their letters."""
    whole = (len(asked.guide) + len(asked.case)) // 4 + 1 if said.input is None else said.input
    return whole, len(said.text) // 4 + 1 if said.output is None else said.output


def _text_delta(text: str, at: int) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": at, "delta": {"type": "text_delta", "text": text}}


def _thinking_events(text: str) -> list[dict[str, Any]]:
    deltas = [
        {"type": "thinking_delta", "thinking": text},
        {"type": "signature_delta", "signature": "signed"},
    ]
    begun = {"type": "thinking", "thinking": "", "signature": ""}
    return [
        {"type": "content_block_start", "index": 0, "content_block": begun},
        *({"type": "content_block_delta", "index": 0, "delta": delta} for delta in deltas),
        {"type": "content_block_stop", "index": 0},
    ]


def _call_events(at: int, name: str, arguments: str) -> list[dict[str, Any]]:
    half = len(arguments) // 2
    begun = {"type": "tool_use", "id": f"toolu_{at}", "name": name, "input": {}}
    pieces = [{"type": "input_json_delta", "partial_json": p} for p in (arguments[:half], arguments[half:])]
    return [
        {"type": "content_block_start", "index": at, "content_block": begun},
        *({"type": "content_block_delta", "index": at, "delta": piece} for piece in pieces),
        {"type": "content_block_stop", "index": at},
    ]


def _call_deltas(said: Reply) -> Iterator[dict[str, Any]]:
    """Yield the calls as deltas of OpenAI's form, in two pieces each."""
    for number, (name, arguments) in enumerate(said.calls):
        half = len(arguments) // 2
        first = {"name": name, "arguments": arguments[:half]}
        yield {
            "tool_calls": [{"index": number, "id": f"call_{number}", "type": "function", "function": first}]
        }
        yield {"tool_calls": [{"index": number, "function": {"arguments": arguments[half:]}}]}


def _event(value: Mapping[str, Any], *, named: bool) -> bytes:
    name = f"event: {value['type']}\n" if named else ""
    return f"{name}data: {json.dumps(value)}\n\n".encode()


def _id(vendor: Vendor) -> dict[str, str]:
    return {"request-id" if vendor == "anthropic" else "x-request-id": "req_scripted"}


def _head(status: int, headers: Mapping[str, str]) -> bytes:
    lines = [f"HTTP/1.1 {status} Scripted", *(f"{name}: {value}" for name, value in headers.items())]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
