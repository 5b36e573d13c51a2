"""Highlights Python source: lines of coloured pieces, found by the standard library's tokenizer.

Text that is not Python (a model may write anything) is returned unchanged, without colours. Time is
linear in the length of the text.
"""

from __future__ import annotations

import builtins
import io
import keyword
import token
import tokenize
from collections.abc import Iterator

Piece = tuple[str, str]
"""A class and its text. Classes: kw, str, num, com, name (a defined function or class), call, built (a
built-in name), op, or empty.
"""

_BUILTINS = frozenset(name for name in dir(builtins) if not name.startswith("_"))
_BY_KIND = {
    token.NUMBER: "num",
    token.STRING: "str",
    token.COMMENT: "com",
    token.OP: "op",
    **{
        getattr(token, name): "str"
        for name in ("FSTRING_START", "FSTRING_MIDDLE", "FSTRING_END")
        if hasattr(token, name)
    },
}


def highlight_source(source: str) -> list[list[Piece]]:
    """Return the lines of `source` as pieces; joined, they give each line again."""
    lines = source.split("\n")
    try:
        marks = list(_token_marks(source))
    except (tokenize.TokenError, SyntaxError, ValueError):
        return [[("", line)] if line else [] for line in lines]
    return _cut_lines(lines, marks)


TokenMark = tuple[str, tuple[int, int], tuple[int, int]]
"""A class, and where its text begins and ends: line from 0, column."""


def _token_marks(source: str) -> Iterator[TokenMark]:
    before = ""
    found = list(tokenize.generate_tokens(io.StringIO(source).readline))
    for one, after in zip(found, [*found[1:], found[-1]], strict=True):
        kind = (
            _classify_name(one.string, before, after.string)
            if one.type == token.NAME
            else _BY_KIND.get(one.type)
        )
        if kind:
            yield kind, (one.start[0] - 1, one.start[1]), (one.end[0] - 1, one.end[1])
        before = one.string if one.string.strip() else before


def _classify_name(text: str, before: str, after: str) -> str | None:
    if keyword.iskeyword(text):
        return "kw"
    if before in ("def", "class"):
        return "name"
    if after == "(":
        return "built" if text in _BUILTINS and before != "." else "call"
    return "built" if text in _BUILTINS and before != "." else None


def _cut_lines(lines: list[str], marks: list[TokenMark]) -> list[list[Piece]]:
    """Cut the lines at the marks; a mark over several lines is split into one per line."""
    made: list[list[Piece]] = [[] for _ in lines]
    at = [0] * len(lines)
    for kind, (first, begin), (last, end) in marks:
        for number in range(first, min(last, len(lines) - 1) + 1):
            line = lines[number]
            start = max(begin if number == first else 0, at[number])
            stop = min(end if number == last else len(line), len(line))
            if stop <= start:
                continue
            if start > at[number]:
                made[number].append(("", line[at[number] : start]))
            made[number].append((kind, line[start:stop]))
            at[number] = stop
    for number, line in enumerate(lines):
        if at[number] < len(line):
            made[number].append(("", line[at[number] :]))
    return made
