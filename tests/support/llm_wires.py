"""What a scripted server sends: the events of an answer, in the wire format in which it was asked."""

from __future__ import annotations

import json
import struct
import zlib
from base64 import b64encode
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.support.llm_server import Asked, Reply


def make_events(asked: Asked, said: Reply) -> Iterator[bytes]:
    """Yield the events of an answer up to where it ends."""
    before, after = _FORMATS[asked.vendor](asked, said)
    yield from before
    if said.ending in {"cut", "eof", "hang"}:
        return
    if said.ending == "garbage":
        yield b"event: message_delta\ndata: {\xff not json\n\n"
        return
    if said.ending == "error":
        error = {"type": said.error, "message": "as the script says", "code": said.error}
        if asked.vendor == "responses":
            yield _event({**error, "type": "error"}, named=True)
        else:
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
    message: dict[str, Any] = {
        "id": f"msg_{asked.number}",
        "type": "message",
        "role": "assistant",
        "content": [],
        "model": said.model or asked.model,
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {**usage, "output_tokens": 1},
    }
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
        event
        for number, call in enumerate(said.calls, at + 1)
        for event in _call_events(number, f"toolu_{asked.turn}_{number}", *call)
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
        chunk({"content": make_content(said, said.text[:half])}),
    ]
    after = [chunk({"content": make_content(said, said.text[half:])})]
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
        after.append(chunk({}, choices=[], usage=make_usage(asked, said)))
    events = [_event(e, named=False) for e in after]
    return [_event(e, named=False) for e in before], [*events, b"data: [DONE]\n\n"]


def _responses(asked: Asked, said: Reply) -> tuple[list[bytes], list[bytes]]:
    """Return the events of OpenAI's responses: its reasoning first, then a message, then calls."""
    response = {"id": f"resp_{asked.number}", "model": said.model or asked.model, "error": None}
    items: list[dict[str, Any]] = []
    if said.thinking:
        items.append({"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": said.thinking})
    part = (
        {"type": "output_text", "text": said.text, "annotations": []}
        if said.refusal is None
        else {"type": "refusal", "refusal": said.refusal}
    )
    items.append(
        {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [part]}
    )
    for at, (named, arguments) in enumerate(said.calls):
        namespace, _, name = named.rpartition("/")
        items.append(
            {
                **({"namespace": namespace} if namespace else {}),
                "type": "function_call",
                "id": f"fc_{asked.turn}_{at}",
                "call_id": f"call_{asked.turn}_{at}",
                "name": name,
                "arguments": arguments,
                "status": "completed",
            }
        )
    half = len(said.text) // 2
    place = int(bool(said.thinking))
    before: list[dict[str, Any]] = [{"type": "response.created", "response": response}]
    after: list[dict[str, Any]] = []
    for at, item in enumerate(items):
        begun = (
            {**item, "encrypted_content": "half"} if item["type"] == "reasoning" else {**item, "content": []}
        )
        added = {"type": "response.output_item.added", "output_index": at, "item": begun}
        done = {"type": "response.output_item.done", "output_index": at, "item": item}
        if at < place:
            before += [added, done]
        elif at == place and said.refusal is not None:
            before.append(added)
            after += [{"type": "response.refusal.delta", "output_index": at, "delta": said.refusal}, done]
        elif at == place:
            pieces = [
                {"type": "response.output_text.delta", "output_index": at, "delta": p}
                for p in (said.text[:half], said.text[half:])
            ]
            before += [added, pieces[0]]
            after += [pieces[1], done]
        else:
            after += [added, done]
    after.append(_response_end(asked, said, {**response, "output": items}))
    if said.ending == "no_stop":
        after.pop()
    events = [_event(e, named=True) for e in after]
    return [_event(e, named=True) for e in before], [*events, b": the end\n\n"]


def _response_end(asked: Asked, said: Reply, response: dict[str, Any]) -> dict[str, Any]:
    """Return the last event of a response: `stop` is why it is incomplete, or "failed"."""
    whole, output = _count_tokens(asked, said)
    usage = {
        "input_tokens": whole,
        "input_tokens_details": {"cached_tokens": said.cached, "cache_write_tokens": said.written},
        "output_tokens": output,
        "output_tokens_details": {"reasoning_tokens": min(said.reasoning, output)},
        "total_tokens": whole + output,
    }
    if said.ending != "no_usage":
        response["usage"] = usage
    if said.stop == "failed":
        response["error"] = {"code": said.error, "message": f"as the script says: {said.error}"}
        return {"type": "response.failed", "response": {**response, "status": "failed"}}
    if said.stop is not None:
        why = {"status": "incomplete", "incomplete_details": {"reason": said.stop}}
        return {"type": "response.incomplete", "response": {**response, **why}}
    return {"type": "response.completed", "response": {**response, "status": "completed"}}


_FORMATS = {"anthropic": _anthropic, "openai": _openai, "responses": _responses}


_EXCEPTIONS = {
    "overloaded_error": "serviceUnavailableException",
    "api_error": "internalServerException",
    "rate_limit_error": "throttlingException",
}
"""Amazon's names of errors in the middle of a stream."""


def frame_event(event: bytes) -> bytes:
    """Return an event of Anthropic's as a message of Amazon's event streams, with its checksums.

    An error is a message of another kind; bytes that are no event stay as they are.
    """
    data = event.partition(b"data: ")[2].strip()
    try:
        value = json.loads(data)
    except ValueError:
        return event
    if value["type"] == "error":
        kind = {":message-type": "exception", ":exception-type": _EXCEPTIONS[value["error"]["type"]]}
        payload = json.dumps({"message": value["error"]["message"]}).encode()
    else:
        kind = {":message-type": "event", ":event-type": "chunk"}
        payload = json.dumps({"bytes": b64encode(data).decode()}).encode()
    named = {**kind, ":content-type": "application/json"}
    heads = b"".join(
        bytes([len(name)]) + name.encode() + b"\x07" + struct.pack(">H", len(text)) + text.encode()
        for name, text in named.items()
    )
    prelude = struct.pack(">II", 16 + len(heads) + len(payload), len(heads))
    message = prelude + struct.pack(">I", zlib.crc32(prelude)) + heads + payload
    return message + struct.pack(">I", zlib.crc32(message))


def make_content(said: Reply, text: str) -> str | list[dict[str, Any]]:
    """Return the content of a message of OpenAI's form; servers of models that think send lists of parts."""
    thought = {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}
    return [thought, {"type": "text", "text": text}] if said.parts else text


def make_usage(asked: Asked, said: Reply) -> dict[str, Any]:
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


def _call_events(at: int, id_: str, name: str, arguments: str) -> list[dict[str, Any]]:
    half = len(arguments) // 2
    begun = {"type": "tool_use", "id": id_, "name": name, "input": {}}
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
