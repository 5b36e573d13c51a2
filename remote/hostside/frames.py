"""Messages between home and worker: a JSON header and a payload, each preceded by its length.

A login shell may print anything before the worker starts, so the worker's output begins with a preamble line.
"""

from __future__ import annotations

import json
import struct
from typing import Any

from remote.hostside.limits import HEADER_BYTES, PAYLOAD_BYTES, PROTOCOL

PREAMBLE = b"\n<<nki-kernel-agent worker %d>>\n" % PROTOCOL
_LENGTHS = struct.Struct("<II")


class FrameError(Exception):
    """The bytes received are not a message, or the message is too large."""


def pack_frame(header: dict[str, Any], payload: bytes = b"") -> bytes:
    """Return one message."""
    text = json.dumps(header, separators=(",", ":"), allow_nan=False).encode()
    if len(text) > HEADER_BYTES or len(payload) > PAYLOAD_BYTES:
        raise FrameError("the message is too large")
    return _LENGTHS.pack(len(text), len(payload)) + text + payload


def unpack_frame(buffer: bytearray) -> tuple[dict[str, Any], bytes] | None:
    """Take the first message out of `buffer`; None while it is incomplete.

    Raises:
        FrameError: the bytes are not a message.
    """
    if len(buffer) < _LENGTHS.size:
        return None
    sizes = _LENGTHS.unpack_from(buffer)
    if sizes[0] > HEADER_BYTES or sizes[1] > PAYLOAD_BYTES:
        raise FrameError("the message is too large")
    begin = _LENGTHS.size + sizes[0]
    if len(buffer) < begin + sizes[1]:
        return None
    text, payload = bytes(buffer[_LENGTHS.size : begin]), bytes(buffer[begin : begin + sizes[1]])
    del buffer[: begin + sizes[1]]
    try:
        header = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FrameError("the message's header is not JSON") from error
    if not isinstance(header, dict):
        raise FrameError("the message's header is not an object")
    return header, payload
