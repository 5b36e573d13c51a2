"""What is printed as wide as the terminal is: lines that break between words, and tables."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from shutil import get_terminal_size

from click import unstyle

_HEAD = re.compile(r"\s*(\S+\s{2,}|\d+\.\s|-\s)?")
"""What a line goes on below the end of: its indentation, with the label or the mark of a list."""
_UNIT = re.compile(r"(?<=\d) (?=(?:%|ms)(?!\w))")


def terminal_width() -> int | None:
    """Return how wide the terminal is, or what COLUMNS says; None where nobody knows, as of a pipe."""
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
    """Yield a line that ends with a command to type; where it has no place, the command follows, whole."""
    line = f"{text} {command}"
    if width is None or len(unstyle(line)) <= width:
        yield line
        return
    yield wrap_line(text, width)
    yield f"  {command}"


def format_table(heads: Sequence[str], rows: Sequence[Sequence[str]], *, names: int = 1) -> Iterator[str]:
    """Yield a table, its heads first; the first `names` columns are names, the others numbers."""
    widths = [max(len(unstyle(cell)) for cell in column) for column in zip(heads, *rows, strict=True)]
    for row in (heads, *rows):
        cells = []
        for place, (cell, width) in enumerate(zip(row, widths, strict=True)):
            space = " " * (width - len(unstyle(cell)))
            cells.append(cell + space if place < names else space + cell)
        yield "  ".join(cells).rstrip()
