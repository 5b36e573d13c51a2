"""How reports and errors look: one JSON object, or lines for people with the kernel's source beside them."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

Report = dict[str, Any]


def as_json(report: Report) -> str:
    """One line of valid JSON; numbers that JSON cannot hold (NaN, infinity) become null."""
    return json.dumps(_finite(report), allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(name): _finite(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def lines(report: Report, source: Path | None = None, indent: str = "") -> list[str]:
    """`name: value`, nested by indentation; findings as sentences with their source line."""
    made: list[str] = []
    for name, value in report.items():
        if isinstance(value, dict) and value:
            made += [f"{indent}{name}:", *lines(value, source, indent + "  ")]
        elif isinstance(value, list) and value and isinstance(value[0], dict | list | tuple):
            made.append(f"{indent}{name}:")
            made += [f"{indent}  {text}" for item in value for text in _item(item, source)]
        else:
            made.append(f"{indent}{name}: {value}")
    return made


def _item(item: Any, source: Path | None) -> list[str]:
    if not isinstance(item, dict):
        return [str(item)]
    if "code" in item:
        return finding(item, source)
    return [_tile(item) if "inputs" in item else ", ".join(f"{name} {value}" for name, value in item.items())]


def _tile(item: Report) -> str:
    read = ", ".join(f"{_box(box)} ({item['precision'].get(box['tensor'], '?')})" for box in item["inputs"])
    return f"line {item['line']}: {_box(item['output'])} <- {read or 'no input'}"


def _box(box: Report) -> str:
    rows, columns = (f"{first}:{end}" for first, end in (box["rows"], box["columns"]))
    return f"{box['tensor']}[{rows}, {columns}]"


def finding(fields: Report, source: Path | None) -> list[str]:
    """An error or a broken rule: place, code, message; the line it is about; what usually fixes it."""
    line = fields.get("line") or 0
    place = f"line {line}: " if line else ""
    made = [f"{place}{fields['code']}: {fields['message']}"]
    text = source_line(source, line)
    if text:
        made.append(f"    {line} | {text}")
    if fields.get("hint"):
        made.append(f"    hint: {fields['hint']}")
    return made


def source_line(path: Path | None, line: int) -> str:
    """One line of the kernel's file without its indentation, empty when there is none."""
    try:
        found = path.read_text().splitlines() if path is not None else []
    except (OSError, UnicodeDecodeError):
        return ""
    return found[line - 1].strip() if 0 < line <= len(found) else ""
