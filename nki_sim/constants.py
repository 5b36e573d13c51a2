"""Lists every constant of the target tables for people: value, source and possible error."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nki_sim import targets
from nki_sim.timing.uncertainty import ConstantRange, constant_ranges

BEGIN, END = "<!-- constants: nki-sim constants --into THIS FILE -->", "<!-- end of constants -->"


@dataclass(frozen=True, slots=True)
class TargetConstant:
    """One constant of one target; `low` and `high` are None if the value is treated as exact."""

    name: str
    target: str
    value: float | bool
    source: str
    note: str
    low: float | None
    high: float | None


def load_constants() -> list[TargetConstant]:
    """Return all constants of all targets, sorted by name and target."""
    found = []
    for target in targets.names():
        known = constant_ranges(targets.load(target))
        table: Mapping[str, Any] = json.loads(
            (Path(targets.__file__).parent / f"{target}.json").read_text(encoding="utf-8")
        )
        for name, entry in table.items():
            found.append(_make_constant(name, target, entry, reach=known.get(name)))
    return sorted(found, key=lambda one: (one.name, one.target))


def _make_constant(
    name: str, target: str, entry: Mapping[str, Any], *, reach: ConstantRange | None
) -> TargetConstant:
    low, high = (reach.low, reach.high) if reach else (None, None)
    if reach and isinstance(entry["value"], int):  # integers stay integers when scaled
        low, high = round(reach.low), round(reach.high)
    return TargetConstant(name, target, entry["value"], entry["source"], entry["note"], low, high)


def format_constants(found: list[TargetConstant]) -> Iterator[str]:
    """Format a Markdown table: one row per constant, or one per target where targets differ."""
    yield "| constant | target | value | source | range | note |\n|---|---|---|---|---|---|"
    rows: dict[tuple[Any, ...], list[str]] = {}
    for one in found:
        value = _format_value(one.value)
        reach = (
            ""
            if one.low is None or one.high is None
            else f"{_format_value(one.low)} to {_format_value(one.high)}"
        )
        note = one.note.replace("|", "\\|")
        rows.setdefault((one.name, value, one.source, reach, note), []).append(one.target)
    for (name, value, source, reach, note), on in rows.items():
        yield f"| `{name}` | {' '.join(on)} | {value} | {source} | {reach} | {note} |"


def _format_value(value: float | bool) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value}" if isinstance(value, int) else f"{value:.6g}"


def update_page(page: str) -> str:
    """Return the page with the table between its marks replaced by the current one.

    Raises:
        ValueError: the page has no marks.
    """
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"no {BEGIN!r} and {END!r}")
    return "\n".join([before + begin, *format_constants(load_constants()), end + after])
