"""A server on this machine that answers like a model's service, as a script says: real sockets, all formats.

`LlmServer(script)` speaks Anthropic's messages (`/v1/messages`), also as Amazon Bedrock (`/model/...`) and
Vertex AI (`/projects/...`) have them, OpenAI's chat completions (`/v1/chat/completions`) and its responses
(`/v1/responses`), also under Azure's paths, all streamed. The script is asked with every request and how
often the same question came, so that faults come by delivery and by question and never by time. It runs in a
thread of its own, so the code under test may be in this process or in another: `with LlmServer(script) as
server`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self
from urllib.parse import unquote

from agent_core.providers.completion import CompletionRequest
from state.model import digest_of
from tests.support.llm_wires import frame_event, make_content, make_events, make_usage

Vendor = Literal["anthropic", "openai", "responses"]
Ending = Literal["whole", "cut", "eof", "no_usage", "no_stop", "error", "garbage", "open", "reset", "hang"]


@dataclass(frozen=True)
class Asked:
    """One request as it came, `guide` the system prompt, `case` the one message.

    `path` is where it came. `count` is how often the same question came, this time included; `number` how
    many requests.
    """

    vendor: Vendor
    body: Mapping[str, Any]
    headers: Mapping[str, str]
    count: int
    number: int
    path: str = ""

    @property
    def model(self) -> str:
        return self.body["model"]

    @property
    def guide(self) -> str:
        if self.vendor == "anthropic":
            return _join_texts(block["text"] for block in self.body.get("system", ()))
        if self.vendor == "responses":
            return self.body.get("instructions", "")
        return _join_texts(m["content"] for m in self.body["messages"] if m["role"] == "system")

    @property
    def case(self) -> str:
        messages = self.body["input" if self.vendor == "responses" else "messages"]
        content = next(m["content"] for m in messages if m.get("role") == "user")
        return content if isinstance(content, str) else _join_texts(block["text"] for block in content)

    @property
    def later(self) -> Sequence[Mapping[str, Any]]:
        """The messages of the dialogue that followed the question."""
        if self.vendor == "responses":
            return self.body["input"][1:]
        begin = (
            1 if self.vendor == "anthropic" else sum(m["role"] == "system" for m in self.body["messages"]) + 1
        )
        return self.body["messages"][begin:]

    @property
    def turn(self) -> int:
        """How many answers of a dialogue came before."""
        if self.vendor == "responses":  # an answer's items stand together
            own = [
                ("call_id" in item and "output" not in item)
                or item.get("type") in {"reasoning", "message"}
                or item.get("role") == "assistant"
                for item in self.later
            ]
            return sum(one and not before for before, one in zip([False, *own], own, strict=False))
        return sum(message["role"] == "assistant" for message in self.later)

    @property
    def results(self) -> list[str]:
        """The results of all calls of a dialogue so far, in order."""
        if self.vendor == "openai":
            return [message["content"] for message in self.later if message["role"] == "tool"]
        if self.vendor == "responses":
            return [i["output"] for i in self.later if i.get("type") == "function_call_output"]
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
        return next(
            self.body[n]
            for n in ("max_tokens", "max_completion_tokens", "max_output_tokens")
            if n in self.body
        )


@dataclass(frozen=True)
class Reply:
    """An answer, or part of one.

    `ending`: "cut" drops the connection in the middle (reset), "eof" ends the body there without a word,
    "no_usage" leaves the counts out, "no_stop" the stop reason, "error" sends an error (of type `error`) for
    an event, "garbage" bytes that are no event. "open" leaves out the last event, which says that nothing
    follows, and keeps the connection open; "reset" drops it there. "hang" says no more
    once it has begun. `stop` is the vendor's word; None is that
    of a whole answer. `pause_seconds` is before every event. `cached` and `written` are of the `input`
    tokens. Without `counted`, a stream of OpenAI's form has no counts; with `parts`, its content is a list.
    `reasoning` tokens of the output were thoughts. `calls` are (tool, arguments as JSON), streamed in two
    pieces each behind the text; `thinking` is a signed block before it.
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
    reasoning: int = 0


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
        vendor, body = _read_request(path, body)
        if vendor is None:
            return await _refuse(writer, "openai", Refuse(404, "not_found_error", f"no such path: {path}"))
        asked = self._record_question(vendor, body, headers, path)
        said = self.script(asked)
        if isinstance(said, Hang):
            if not said.drop:
                await self._stopping.wait()
            return False
        if isinstance(said, Refuse):
            return await _refuse(writer, asked.vendor, said)
        return await _stream(writer, asked, said)

    def _record_question(
        self, vendor: Any, body: Mapping[str, Any], headers: Mapping[str, str], path: str
    ) -> Asked:
        asked = Asked(vendor, body, headers, count=0, number=len(self.asked) + 1, path=path)
        self._counts[asked.digest] += 1
        asked = replace(asked, count=self._counts[asked.digest])
        with self._came:
            self.asked.append(asked)
            self._came.notify_all()
        return asked


def _read_request(path: str, body: Any) -> tuple[Vendor | None, Any]:
    """Return the wire format of a path, and the body as the format has it elsewhere: with the model."""
    plain = path.partition("?")[0]
    if plain.endswith("/chat/completions"):
        return "openai", body
    if plain.endswith("/responses"):
        return "responses", body
    if plain == "/v1/messages":
        return "anthropic", body
    named = re.search(r"/model/(.+)/invoke|/models/(.+):(?:stream)?rawPredict", plain, re.IGNORECASE)
    if named is None:
        return None, body
    return "anthropic", {**body, "model": unquote(named[1] or named[2])}


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
    is_framed = asked.path.endswith("/invoke-with-response-stream")
    kind = "application/vnd.amazon.eventstream" if is_framed else "text/event-stream"
    headers = {"content-type": kind, "transfer-encoding": "chunked", **_id(asked.vendor)}
    writer.write(_head(200, {**headers, **said.headers}))
    async for event in _pause_between(make_events(asked, said), said.pause_seconds):
        data = frame_event(event) if is_framed else event
        writer.write(b"%x\r\n%s\r\n" % (len(data), data))
        await writer.drain()
    if said.ending in {"open", "hang"}:
        await asyncio.Event().wait()
    if said.ending in {"cut", "reset"}:
        writer.transport.abort()
        return False
    writer.write(b"0\r\n\r\n")
    await writer.drain()
    return True


_WHOLE_ENDINGS = frozenset({"whole", "no_stop", "no_usage"})
"""Endings after which an answer in one piece is there; after all others half of it is."""


async def _send_whole_answer(writer: asyncio.StreamWriter, asked: Asked, said: Reply) -> bool:
    """Send an answer in one piece, as whoever does not stream is answered; its body may end early too."""
    message: dict[str, Any] = {
        "role": "assistant",
        "content": make_content(said, said.text),
        "refusal": said.refusal,
    }
    if said.calls:
        message["tool_calls"] = [
            {"id": f"call_{at}", "type": "function", "function": {"name": name, "arguments": arguments}}
            for at, (name, arguments) in enumerate(said.calls)
        ]
    stop = None if said.ending == "no_stop" else said.stop or ("tool_calls" if said.calls else "stop")
    whole = {
        "id": f"chatcmpl-{asked.number}",
        "model": said.model or asked.model,
        "choices": [{"index": 0, "message": message, "finish_reason": stop}],
        "usage": make_usage(asked, said),
    }
    body = json.dumps(whole).encode()
    headers = {**_JSON, **said.headers}
    if said.ending in _WHOLE_ENDINGS:
        return await _send(writer, "openai", 200, body, headers)
    writer.write(_head(200, {"content-length": str(len(body)), **_id("openai"), **headers}))
    writer.write(body[: len(body) // 2])
    await writer.drain()
    writer.transport.abort()
    return False


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


def _id(vendor: Vendor) -> dict[str, str]:
    return {"request-id" if vendor == "anthropic" else "x-request-id": "req_scripted"}


def _head(status: int, headers: Mapping[str, str]) -> bytes:
    lines = [f"HTTP/1.1 {status} Scripted", *(f"{name}: {value}" for name, value in headers.items())]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
