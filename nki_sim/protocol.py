"""Wire protocol of the jailed tracer: one JSON request in, one framed reply out.

Request: {"source", "filename", "entry", "args": [argument], "kwargs": {name: argument}, "target", "lnc",
"repeat", "limits": {"max_instructions"}}; only the source is required. `repeat` asks for several traces that
must be equal. An argument is {"shape", "dtype"}, {"value": null, boolean, number or text}, {"list":
[argument]}, {"tuple": [argument]} or {"dict": {name: argument}}.
Reply: magic, kind (P program, E error), u64 length, payload; nothing may follow. The reader does not trust
any part of a reply. A batch sends one request per line and gets the replies one after another.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from nki_sim.dtypes import DTYPES
from nki_sim.errors import InputError, IRError, KernelError, LimitError, SimError, escape_surrogates
from nki_sim.forms import ArraySpec

if TYPE_CHECKING:
    from nki_sim.program.ir import Program

MAGIC = b"NKISIMRP"
_HEAD = struct.Struct("<8scQ")
_FIELDS = frozenset({"source", "filename", "entry", "args", "kwargs", "target", "lnc", "repeat", "limits"})
_LIMITS = frozenset({"max_instructions"})


def decode_request(text: str) -> dict[str, Any]:
    """Parse a request into the keyword arguments of `trace_bytes`, including `source`.

    Raises:
        InputError: the request has an unknown field or a field of the wrong type.
    """
    try:
        request = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"the request is not JSON: {error}") from error
    if not isinstance(request, dict) or not isinstance(request.get("source"), str):
        raise InputError("the request is not an object with a source")
    limits = request.get("limits") or {}
    unknown = sorted((request.keys() - _FIELDS) | (limits.keys() - _LIMITS))
    if unknown:
        raise InputError(f"unknown fields in the request: {', '.join(unknown)}")
    given = {name: request[name] for name in ("filename", "entry", "target") if request.get(name) is not None}
    if not all(isinstance(value, str) for value in given.values()):
        raise InputError("filename, entry and target are texts")
    for name, limit in limits.items():
        if type(limit) is not int or limit < 1:
            raise InputError(f"limit {name} is a positive integer, not {limit!r}")
    if request.get("lnc") is not None:
        if type(request["lnc"]) is not int:
            raise InputError(f"lnc is an integer, not {str(request['lnc'])[:80]}")
        given["lnc"] = request["lnc"]
    if request.get("repeat") is not None:
        if type(request["repeat"]) is not bool:
            raise InputError(f"repeat is true or false, not {str(request['repeat'])[:80]}")
        given["repeat"] = request["repeat"]
    try:
        args = decode_argument({"list": request.get("args", [])})
        kwargs = decode_argument({"dict": request.get("kwargs") or {}})
    except RecursionError as error:
        raise InputError("the arguments are nested too deeply") from error
    return {"source": request["source"], "args": args, "kwargs": kwargs, **given, **limits}


def decode_argument(item: Any) -> Any:
    """Decode an argument of a request to the value it stands for."""
    kind = next(iter(item)) if isinstance(item, dict) and len(item) == 1 else None
    value = item[kind] if kind else None
    if kind == "value" and isinstance(value, bool | int | float | str | None):
        return value
    if kind in {"list", "tuple"} and isinstance(value, list):
        items = [decode_argument(entry) for entry in value]
        return items if kind == "list" else tuple(items)
    if kind == "dict" and isinstance(value, dict):
        return {name: decode_argument(entry) for name, entry in value.items()}
    if isinstance(item, dict) and item.keys() == {"shape", "dtype"} and item["dtype"] in DTYPES:
        shape = item["shape"]
        if isinstance(shape, list) and shape and all(type(size) is int and size > 0 for size in shape):
            return ArraySpec(tuple(shape), item["dtype"])
    raise InputError(
        f"argument {str(item)[:200]} is neither a shape with a type, nor a value, nor a list of them"
    )


def program_reply(program: bytes) -> bytes:
    """Encode a traced program as a reply."""
    return _HEAD.pack(MAGIC, b"P", len(program)) + program


def error_reply(error: SimError) -> bytes:
    """Encode an error as a reply."""
    fields = {
        "type": type(error).__name__,
        "code": error.code,
        "message": getattr(error, "message", str(error)),
        "line": getattr(error, "line", 0),
        "hint": getattr(error, "hint", ""),
    }
    payload = json.dumps(fields).encode()
    return _HEAD.pack(MAGIC, b"E", len(payload)) + payload


def split_replies(data: bytes) -> list[bytes]:
    """Split the bytes into the complete replies at their start, in order."""
    found: list[bytes] = []
    start = 0
    while len(data) - start >= _HEAD.size:
        end = start + _HEAD.size + _HEAD.unpack_from(data, start)[2]
        if end > len(data):
            break
        found.append(data[start:end])
        start = end
    return found


def parse_reply(data: bytes) -> Program:
    """Decode the program in a reply.

    Raises:
        KernelError, LimitError: the reply carries that error.
        IRError: the bytes are not a reply, or its program is not valid.
    """
    from nki_sim.program.ir import Program

    if len(data) < _HEAD.size:
        raise IRError(f"the tracer's reply has {len(data)} bytes")
    magic, kind, length = _HEAD.unpack_from(data)
    payload = data[_HEAD.size :]
    if magic != MAGIC or kind not in {b"P", b"E"} or length != len(payload):
        raise IRError("the tracer's reply is malformed")
    if kind == b"P":
        return Program.from_bytes(payload)
    raise _decode_error(payload)


def _decode_error(payload: bytes) -> SimError:
    try:
        fields: Mapping[str, Any] = json.loads(payload)
        texts = [escape_surrogates(str(fields[name])[:4000]) for name in ("code", "message", "hint")]
        line = int(fields["line"])
        kind = str(fields["type"])
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        return IRError(f"the tracer's error cannot be read: {error}")
    if kind == "InputError":
        return InputError(texts[1])
    made = LimitError if kind == "LimitError" else KernelError
    return made(texts[0], texts[1], line, texts[2])
