"""Text that somebody else wrote, as it may stand in a prompt: cleaned, bounded, and unable to end its fence.

Kernels, errors and what models answered before are data. They cannot break out: a fence is longer than any
run of backticks within it, what stands in a line stays in that line, and what no reader sees is taken out.
"""

from __future__ import annotations

import re
import unicodedata

_RUN = re.compile(r"`+")
_BREAKS = re.compile(r"\r\n?|[\u2028\u2029\x0b\x0c\x85]")
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co"})
"""Categories of characters that are not seen: controls, marks of direction, surrogates, private ones."""


def clean_text(text: str) -> str:
    """Return the text with ends of lines as newlines, and without characters that nobody sees."""
    lines = _BREAKS.sub("\n", text)
    if lines.isascii() and lines.replace("\n", "").replace("\t", "").isprintable():
        return lines
    return "".join(mark for mark in lines if mark in "\n\t" or unicodedata.category(mark) not in _HIDDEN)


def shorten_text(text: str, limit: int) -> str:
    """Return at most about `limit` characters of a text: its beginning and its end, saying what is gone."""
    if len(text) <= limit:
        return text
    head, tail = limit * 2 // 3, limit // 3
    return f"{text[:head]}\n[{len(text) - head - tail} characters left out]\n{text[len(text) - tail :]}"


def single_line(text: str, limit: int = 400) -> str:
    """Return a text in one line of at most `limit` characters."""
    flat = " ".join(clean_text(text).split())
    return flat if len(flat) <= limit else flat[: limit - 3] + "..."


def fence_text(text: str, info: str = "", *, limit: int | None = None) -> str:
    """Return a text between fences that nothing in it can end; `info` says what it is."""
    body = clean_text(text)
    body = body if limit is None else shorten_text(body, limit)
    longest = max((len(run) for run in _RUN.findall(body)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{info}\n{body.rstrip()}\n{fence}"
