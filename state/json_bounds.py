"""Bounds for JSON that others wrote, compressed or not, checked before it is parsed.

Parsed, a byte of JSON that opens a list or an object takes up some fifty in memory, while a byte of a text
takes up one. So what is bounded is everything but the content of texts.
"""

from __future__ import annotations

import json
import re
import zlib
from typing import Any

_TEXT = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)
"""A text, which may lack its end. If that did not match, each quote in it would be tried in turn."""


def has_too_much_structure(data: bytes, most: int) -> bool:
    """Return whether there are more than `most` bytes of JSON beside its texts; each text counts as two."""
    inside = 0
    for texts, found in enumerate(_TEXT.finditer(data), start=1):
        inside += found.end() - found.start() - 2
        if 2 * texts > most:
            return True
    return len(data) - inside > most


def parse_utf8_json(data: bytes) -> Any:
    """Parse JSON in UTF-8, as `has_too_much_structure` reads it: in UTF-16 it would see texts elsewhere.

    Raises:
        ValueError: it is not JSON, or in another encoding.
        RecursionError: it is too deep.
    """
    return json.loads(data.decode())


def inflate_json(data: bytes, most: int, structure: int) -> bytes:
    """Unpack JSON of at most `most` bytes that zlib compressed, with `structure` of them beside its texts.

    Raises:
        ValueError: it is longer, has more structure, or is damaged.
    """
    engine = zlib.decompressobj()
    try:
        found = engine.decompress(data, most + 1)
    except zlib.error as error:
        raise ValueError(f"cannot be unpacked: {error}") from error
    if len(found) > most:
        raise ValueError(f"unpacked, it has more than {most} bytes")
    if not engine.eof:
        raise ValueError("it was cut short")
    if has_too_much_structure(found, structure):
        raise ValueError(f"it has more than {structure} bytes beside its texts")
    return found


def cut_text(text: str, most: int) -> str:
    """Return a text of at most `most` characters; a longer one says how long it was."""
    if len(text) <= most:
        return text
    end = f"... ({len(text)} characters)"
    return text[: max(0, most - len(end))] + end
