"""Formats reports and errors: one JSON object, or lines for people with the kernel's source beside them.

For people, every figure has a unit, taken from the end of its name, and is marked if the model predicted it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

Report = dict[str, Any]

# The unit for each ending of a figure's name, or for the name of the group it is in. The first match counts.
_UNITS = {
    "dynamic_loops": "loops whose rounds data decide, timed as one round",
    "seconds": "s, taken here",
    "_ms": "ms predicted",
    "_time": "s predicted",
    "_cycles": "cycles predicted",
    "cycle_count": "cycles predicted",
    "_percent": "% predicted",
    "_bytes": "bytes",
    "_size": "bytes",
    "_flops": "flops",
    "bandwidth_ratio": "flops per byte",
    "intensity": "flops per byte",
}

_TITLES = {
    "rel_l2": "rel_l2 (relative L2 error by seed)",
    "counters": "counters (of the whole kernel, predicted)",
}


def report_to_json(report: Report) -> str:
    """Return one line of valid JSON; numbers that JSON cannot hold (NaN, infinity) become null."""
    return json.dumps(_replace_non_finite(report), allow_nan=False)


def _replace_non_finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(name): _replace_non_finite(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_replace_non_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def format_report(report: Report, source: Path | None = None) -> Iterator[str]:
    """Format the report of a verb that takes a kernel; unknown fields are left out."""
    for name, value in report.items():
        if name == "correct" and value is None and report["verb"] == "run":
            yield "correct: not judged, there is no --reference"
        elif name == "checks":
            yield from format_entry("checks", value or "no rule is broken", source)
        elif name != "verb" and value not in (None, {}, []):
            yield from format_entry(name, value, source)


def format_entry(
    name: str, value: Any, source: Path | None = None, within: str = "", indent: str = ""
) -> Iterator[str]:
    """Format `name: value unit`, nested by indentation; findings become sentences with their source line."""
    if isinstance(value, dict) and value:
        yield f"{indent}{_TITLES.get(name, name)}:"
        for inner, item in value.items():
            yield from format_entry(inner, item, source, name, indent + "  ")
    elif isinstance(value, list | tuple) and value and isinstance(value[0], dict | list | tuple):
        yield f"{indent}{_TITLES.get(name, name)}:"
        item_lines = _ITEMS.get(name, _format_item)
        yield from (f"{indent}  {text}" for item in value for text in item_lines(item, source))
    else:
        yield f"{indent}{name}: {format_figure(value)}{_unit_suffix(name, within)}"


def format_figure(value: Any) -> str:
    """Format a value; numbers get only as many digits as are useful."""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _unit_suffix(name: str, within: str) -> str:
    found = (unit for end, unit in _UNITS.items() if name.endswith(end) or within.endswith(end))
    unit = next(found, "")
    return f" {unit}" if unit else ""


def _format_item(item: Any, source: Path | None) -> list[str]:
    if not isinstance(item, dict):
        return [str(item)]
    return [", ".join(f"{name} {format_figure(value)}" for name, value in item.items())]


def _format_tile(item: Report, source: Path | None) -> list[str]:
    del source
    read = ", ".join(
        f"{_format_box(box)} ({item['precision'].get(box['tensor'], '?')})" for box in item["inputs"]
    )
    return [f"line {item['line']}: {_format_box(item['output'])} <- {read or 'no input'}"]


def _format_box(box: Report) -> str:
    rows, columns = (f"{first}:{end}" for first, end in (box["rows"], box["columns"]))
    return f"{box['tensor']}[{rows}, {columns}]"


def format_finding(fields: Report, source: Path | None) -> list[str]:
    """Format an error or a broken rule: place, code, message, the source line, and the usual fix."""
    line = fields.get("line") or 0
    place = f"line {line}: " if line else ""
    made = [f"{place}{fields['code']}: {fields['message']}"]
    text = read_source_line(source, line)
    if text:
        made.append(f"    {line} | {text}")
    if fields.get("hint"):
        made.append(f"    hint: {fields['hint']}")
    return made


KernelText = Path | str | None
"""Where lines are quoted from: the kernel's file, or its text; None quotes nothing."""


def read_source_line(source: KernelText, line: int) -> str:
    """Return one line of the kernel without its indentation; empty if there is none."""
    try:
        text = source.read_text(encoding="utf-8") if isinstance(source, Path) else source or ""
    except (OSError, UnicodeDecodeError):
        return ""
    found = text.splitlines()
    return found[line - 1].strip() if 0 < line <= len(found) else ""


# Lists whose items have their own format.
_ITEMS: dict[str, Callable[[Any, Path | None], list[str]]] = {
    "checks": format_finding,
    "warnings": format_finding,
    "tiles": _format_tile,
}
