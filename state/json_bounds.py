"""Bounds for JSON that others wrote, checked before it is parsed.

Parsed, a byte of JSON that opens a list or an object takes up some fifty in memory, while a byte of a text
takes up one. So what is bounded is everything but the content of texts.
"""

from __future__ import annotations

import re

_TEXT = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)


def has_too_much_structure(data: bytes, most: int) -> bool:
    """Return whether there are more than `most` bytes of JSON beside its texts; each text counts as two."""
    inside = 0
    for texts, found in enumerate(_TEXT.finditer(data), start=1):
        inside += found.end() - found.start() - 2
        if 2 * texts > most:
            return True
    return len(data) - inside > most


def cut_text(text: str, most: int) -> str:
    """Return a text of at most `most` characters; a longer one says how long it was."""
    if len(text) <= most:
        return text
    end = f"... ({len(text)} characters)"
    return text[: max(0, most - len(end))] + end
