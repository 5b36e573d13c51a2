"""Quotes untrusted text for a prompt: cleaned, bounded, and unable to end its fence.

Kernels, errors and earlier answers of models are data. They cannot break out: a fence is longer than any run
of backticks inside it, text in a line stays in that line, and invisible characters are removed.
"""

from __future__ import annotations

import re
import unicodedata

_RUN = re.compile(r"`+")
_BREAKS = re.compile(r"\r\n?|[\u2028\u2029\x0b\x0c\x85]")
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co"})
"""Categories of invisible characters: controls, direction marks, surrogates, private use."""


def clean_text(text: str) -> str:
    """Return the text with newlines as line ends, and without invisible characters."""
    lines = _BREAKS.sub("\n", text)
    if lines.isascii() and lines.replace("\n", "").replace("\t", "").isprintable():
        return lines
    return "".join(mark for mark in lines if mark in "\n\t" or unicodedata.category(mark) not in _HIDDEN)


def shorten_text(text: str, limit: int) -> str:
    """Return at most about `limit` characters of a text: its beginning, a note on the gap, its end."""
    if len(text) <= limit:
        return text
    head, tail = limit * 2 // 3, limit // 3
    return f"{text[:head]}\n[{len(text) - head - tail} characters left out]\n{text[len(text) - tail :]}"


def single_line(text: str, limit: int = 400) -> str:
    """Return a text in one line of at most `limit` characters."""
    flat = " ".join(clean_text(text).split())
    return flat if len(flat) <= limit else flat[: limit - 3] + "..."


def fence_text(text: str, info: str = "", *, limit: int | None = None) -> str:
    """Return a text between fences that nothing in it can end; `info` names its kind."""
    body = clean_text(text)
    body = body if limit is None else shorten_text(body, limit)
    longest = max((len(run) for run in _RUN.findall(body)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{info}\n{body.rstrip()}\n{fence}"
