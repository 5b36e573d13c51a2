"""Wraps long lines of rewritten source as a formatter would: a call's arguments on lines of their own."""

from __future__ import annotations

import ast

LINE_WIDTH = 110


def wrap_long_lines(code: str, before: str) -> str:
    """Return the source with long calls wrapped; lines that are also in `before` are unchanged."""
    old = set(before.splitlines())
    lines = code.splitlines(keepends=True)
    return "".join(
        _wrap_line(line) if len(line.rstrip()) > LINE_WIDTH and line.rstrip() not in old else line
        for line in lines
    )


def _wrap_line(line: str) -> str:
    """Wrap one line that is a call, or assigns one; return any other line unchanged."""
    text = line.strip()
    indent = line[: len(line) - len(line.lstrip())]
    call = _parse_call(text)
    if call is None:
        return line
    parts = [text[start:end].rstrip(" ,") for start, end in _argument_spans(call, text)]
    head, inner = text[: _open_bracket_index(call, text) + 1], indent + "    "
    together = f"{inner}{', '.join(parts)}\n"
    if len(together.rstrip()) > LINE_WIDTH:
        together = "".join(f"{inner}{part},\n" for part in parts)
    return f"{indent}{head}\n{together}{indent})\n"


def _parse_call(text: str) -> ast.Call | None:
    try:
        (parsed,) = ast.parse(text).body
    except (SyntaxError, ValueError):
        return None
    value = parsed.value if isinstance(parsed, ast.Expr | ast.Assign) else None
    whole = isinstance(value, ast.Call) and value.end_col_offset == len(text.encode())
    return value if isinstance(value, ast.Call) and whole and text.isascii() else None


def _open_bracket_index(call: ast.Call, text: str) -> int:
    """The position of the arguments' opening bracket."""
    return text.index("(", call.func.end_col_offset)


def _argument_spans(call: ast.Call, text: str) -> list[tuple[int, int]]:
    """The start and end of each argument, in the order written."""
    items: list[ast.expr | ast.keyword] = sorted(
        [*call.args, *call.keywords], key=lambda item: item.col_offset
    )
    starts = [_open_bracket_index(call, text) + 1, *(_comma_index(text, item) + 1 for item in items[:-1])]
    ends = [*(start - 1 for start in starts[1:]), len(text) - 1]
    spans = zip(starts, ends, strict=True)
    return [
        (start + _count_leading_blanks(text[start:end]), end)
        for start, end in spans
        if text[start:end].strip()
    ]


def _comma_index(text: str, item: ast.expr | ast.keyword) -> int:
    assert item.end_col_offset is not None
    return text.index(",", item.end_col_offset)


def _count_leading_blanks(text: str) -> int:
    return len(text) - len(text.lstrip())
