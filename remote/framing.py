"""Messages between evaluator and worker: a JSON header and a payload, each preceded by its length."""

from __future__ import annotations

import asyncio
import struct
from typing import BinaryIO

_LENGTHS = struct.Struct("<QQ")


def pack_message(header: bytes, payload: bytes = b"") -> bytes:
    """Return one message."""
    return _LENGTHS.pack(len(header), len(payload)) + header + payload


def read_message(stream: BinaryIO) -> tuple[bytes, bytes] | None:
    """Return the next message's header and payload, None at the end of the stream.

    Raises:
        EOFError: the stream ends inside a message.
    """
    lengths = stream.read(_LENGTHS.size)
    if not lengths:
        return None
    if len(lengths) < _LENGTHS.size:
        raise EOFError("the stream ends inside a message")
    sizes = _LENGTHS.unpack(lengths)
    header, payload = (stream.read(size) for size in sizes)
    if (len(header), len(payload)) != sizes:
        raise EOFError("the stream ends inside a message")
    return header, payload


async def receive_message(stream: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """Return the next message's header and payload.

    Raises:
        asyncio.IncompleteReadError: the stream ends before the message does.
    """
    sizes = _LENGTHS.unpack(await stream.readexactly(_LENGTHS.size))
    header = await stream.readexactly(sizes[0])
    return header, await stream.readexactly(sizes[1])
