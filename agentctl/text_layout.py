"""Fits text to the terminal's width: lines that break between words, and tables."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from shutil import get_terminal_size

from click import unstyle

_HEAD = re.compile(r"\s*(\S+\s{2,}|\d+\.\s|-\s)?")
"""The start of a line that continuation lines are indented below: indentation, and a label or list mark."""
_UNIT = re.compile(r"(?<=\d) (?=(?:%|ms)(?!\w))")


def terminal_width() -> int | None:
    """Return the terminal's width, or that of COLUMNS; None if it is unknown, as for a pipe."""
    return get_terminal_size((0, 0)).columns or None


def wrap_line(line: str, width: int | None) -> str:
    """Return a line broken at `width`, but not within a word, nor between a number and its unit."""
    plain = unstyle(line)
    if width is None or len(plain) <= width:
        return line
    head = _HEAD.match(plain)
    hang = " " * (head.end() + (0 if head[1] else 2) if head else 0)
    lines, now = [], ""
    for gap, word in re.findall(r"( *)([^ ]+)", _UNIT.sub("\xa0", line)):
        if now.strip() and len(unstyle(now + gap + word)) > width:
            lines.append(now)
            now = hang + word
        else:
            now += gap + word
    return "\n".join([*lines, now]).replace("\xa0", " ")


def append_command(text: str, command: str, width: int | None) -> Iterator[str]:
    """Yield a line that ends with a command; if that does not fit, put the whole command on a line of
    its own.
    """
    line = f"{text} {command}"
    if width is None or len(unstyle(line)) <= width:
        yield line
        return
    yield wrap_line(text, width)
    yield f"  {command}"


def format_table(heads: Sequence[str], rows: Sequence[Sequence[str]], *, names: int = 1) -> Iterator[str]:
    """Yield a table, header first; the first `names` columns are left-aligned, the number columns
    right-aligned.
    """
    widths = [max(len(unstyle(cell)) for cell in column) for column in zip(heads, *rows, strict=True)]
    for row in (heads, *rows):
        cells = []
        for place, (cell, width) in enumerate(zip(row, widths, strict=True)):
            space = " " * (width - len(unstyle(cell)))
            cells.append(cell + space if place < names else space + cell)
        yield "  ".join(cells).rstrip()
