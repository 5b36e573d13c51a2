"""What a coding agent wrote, within bounds, and what its JSON says that it cost."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Iterator
from typing import Any

from state.model import Usage

HALF_BYTES = 1 << 20
"""How much is kept of the beginning, and of the end."""
_CHUNK_BYTES = 1 << 16
_COSTS = ("total_cost_usd", "cost_usd")
_INPUT = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")


class Transcript:
    """The output of a process: its beginning and its end; the rest is read and dropped."""

    def __init__(self) -> None:
        self._head = bytearray()
        self._tail = bytearray()
        self._dropped = 0

    async def read(self, stream: asyncio.StreamReader | None) -> None:
        """Read to the end; the writer never has to wait."""
        assert stream is not None
        while chunk := await stream.read(_CHUNK_BYTES):
            room = HALF_BYTES - len(self._head)
            self._head += chunk[:room]
            self._tail += chunk[room:]
            if (over := len(self._tail) - HALF_BYTES) > 0:
                del self._tail[:over]
                self._dropped += over

    @property
    def is_cut(self) -> bool:
        """Whether something is left out in the middle."""
        return self._dropped > 0

    def content(self) -> bytes:
        """Return what is kept, with a line that says what is not."""
        left = f"\n[{self._dropped} bytes left out]\n".encode() if self.is_cut else b""
        return bytes(self._head) + left + bytes(self._tail)


def read_usage(data: bytes) -> Usage:
    """Return what an agent's output says about tokens and cost; a cost that it does not say is unknown.

    It understands one JSON object, or one in each line, with `total_cost_usd` and `usage` as coding agents
    write them. If several objects have usage, a final result counts alone; else they are added.
    """
    found = list(_objects(data.decode(errors="replace")))
    results = [one for one in found if any(_number(one.get(name)) is not None for name in _COSTS)]
    counted = results[-1:] or [one for one in found if isinstance(one.get("usage"), dict)]
    costs = [_number(one.get(name)) for one in counted for name in _COSTS]
    cost = next((value for value in costs if value is not None), None)
    usages = [one["usage"] for one in counted if isinstance(one.get("usage"), dict)]
    return Usage(
        cost_usd=cost,
        input_tokens=sum(_count(usage.get(name)) for usage in usages for name in _INPUT),
        output_tokens=sum(_count(usage.get("output_tokens")) for usage in usages),
    )


def _objects(text: str) -> Iterator[dict[str, Any]]:
    for part in (text, *text.split("\n")):
        try:
            found = json.loads(part)
        except (ValueError, RecursionError):
            continue
        if isinstance(found, dict):
            yield found
            if part is text:
                return


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) and value >= 0 else None


def _count(value: object) -> int:
    return int(_number(value) or 0)
