"""A profile for people: one screen of at most 80 columns, every figure with its unit."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from nki_sim.cli import show
from nki_sim.cli.show import Report
from nki_sim.timing.units import size, time

WIDTH = 80

QUOTE = "\0"
"""Between what a line says and the source that it quotes."""

_BAR = 12
_PATH_ROWS, _WHAT_IF_ROWS, _HOLDERS = 8, 5, 3
_SMALL = 0.005
_BOUNDS = ("plain", "tight")
_SPILLS = {"save_bytes": "saved", "reload_bytes": "reloaded", "load_again_bytes": "loaded again"}

_WAITS: dict[str, str] = {
    "dependence": "{}",
    "latency": "{} latency",
    "memory": "room",
    "engine": "its queue",
    "port": "{}'s port",
    "dma": "DMA engines",
    "table": "function tables",
}
"""Causes of waits with the engine that is waited for; others are named as they are."""


def lines(report: Report, source: Path | None) -> Iterator[str]:
    """The lines of a profile; of a kernel that breaks rules, the rules."""
    if not report["explanation"]:
        yield from show.lines(report, source)
        return
    for part in (_head, _engines, _path, _memory, _traffic, _what_ifs):
        for line in part(report, source):
            yield from fitted(line)


def fitted(line: str) -> Iterator[str]:
    """A line that fits the screen: source text is cut, a sentence goes on in the next line."""
    text, bar, quoted = line.partition(QUOTE)
    if bar:
        rest = WIDTH - len(text) - 2
        yield f"{text}  {quoted if len(quoted) <= rest else quoted[: rest - 3] + '...'}".rstrip()
    else:
        yield from textwrap.wrap(line, WIDTH, subsequent_indent=" " * 6, drop_whitespace=True) or [""]


def _head(report: Report, source: Path | None) -> Iterable[str]:
    predicted, why = report["predicted"], report["explanation"]
    roof = why["roofline"]
    yield (
        f"{report['kernel']} on {report['target']}: {time(predicted['latency_ms'])} predicted "
        f"({time(predicted['lo_ms'])} to {time(predicted['hi_ms'])}), {bound_by(why['bottleneck'])}"
    )
    yield f"  {report['instructions']} instructions, {time(why['overhead_ms'])} of fixed overhead"
    bounds = (f"{name} {time(roof[f'{name}_ms'])} ({roof[f'{name}_percent']:.0f} %)" for name in _BOUNDS)
    yield f"  bounds of the {roof['work_of']}'s work: {', '.join(bounds)}"
    if predicted["dynamic_loops"]:
        yield f"  loops whose rounds data decide, timed as one round each: {predicted['dynamic_loops']}"


def bound_by(bottleneck: str) -> str:
    """A bottleneck class in words."""
    return bottleneck if bottleneck == "underutilised" else f"{bottleneck}-bound"


def _engines(report: Report, source: Path | None) -> Iterable[str]:
    why = report["explanation"]
    latency, several = why["latency_ms"], len({track["core"] for track in why["tracks"]}) > 1
    yield ""
    yield f"engine     {'busy':{_BAR + 16}} waits for"
    for track in sorted(why["tracks"], key=lambda track: (track["core"], -track["busy_ms"])):
        share = track["busy_ms"] / latency
        name = f"{track['engine']} {track['core']}" if several else track["engine"]
        waits = ((_wait(wait), wait["ms"] / latency) for wait in track["waits"])
        most = [f"{cause} {part:.0%}" for cause, part in waits if part >= _SMALL]
        bar = "#" * round(share * _BAR)
        yield f"{name:9}  {bar:{_BAR}} {time(track['busy_ms']):>9} {share:>4.0%}  {_as_fit(most)}"


def _as_fit(words: list[str]) -> str:
    """As many of the words as fit beside an engine's bar."""
    text = ", ".join(words)
    while words and len(text) > WIDTH - _BAR - 29:
        words = words[:-1]
        text = ", ".join([*words, "..."])
    return text


def _wait(wait: Report) -> str:
    """What a wait is for, in a word or two."""
    cause = str(wait["cause"])
    return _WAITS.get(cause, cause).format(wait["on"]).strip()


def _path(report: Report, source: Path | None) -> Iterable[str]:
    why = report["explanation"]
    parts, latency = why["critical_path"], why["latency_ms"]
    yield ""
    yield f"critical path (adds up to the {time(latency)})"
    for part in parts[:_PATH_ROWS]:
        where = f"line {part['line']}" if part["line"] else ""
        text = show.source_line(source, part["line"])
        op = part["op"].replace("_", " ") if not part["line"] else part["op"]
        yield f"{time(part['ms']):>11} {part['ms'] / latency:>4.0%}  {where:9} {op:16}{QUOTE}{text}"
    rest = sum(part["ms"] for part in parts[_PATH_ROWS:])
    if rest:
        yield f"{time(rest):>11} {rest / latency:>4.0%}  in {len(parts) - _PATH_ROWS} other places"
    waited = sum(part["wait_ms"] for part in parts)
    yield f"  Of all this {time(waited)} is latency of semaphores and DMA."


def _memory(report: Report, source: Path | None) -> Iterable[str]:
    uses: dict[str, Any] = {}
    for use in report["explanation"]["occupancy"]:
        uses[use["memory"]] = max(uses.get(use["memory"], use), use, key=lambda item: item["peak"])
    yield ""
    for memory, use in uses.items():
        full = use["peak"] / use["capacity"]
        shares = [(item["name"] or "unnamed", item["size"] / use["capacity"]) for item in use["holders"]]
        held = ", ".join(f"{name} {part:.0%}" for name, part in shares[:_HOLDERS] if part >= _SMALL)
        yield (
            f"{memory.upper():5}peak {use['peak']} of {use['capacity']} {use['unit']} ({full:.0%})"
            + (f": {held}" if held else "")
        )


def _traffic(report: Report, source: Path | None) -> Iterable[str]:
    counters = report["counters"]
    spill = counters["spill_save_bytes"], counters["spill_reload_bytes"]
    yield (
        f"HBM  read {size(counters['hbm_read_bytes'])}, written {size(counters['hbm_write_bytes'])}; "
        + (f"of it spilled {size(spill[0])}, reloaded {size(spill[1])}" if any(spill) else "nothing spilled")
    )
    for item in report["explanation"]["spilled"][:_HOLDERS]:
        moved = ", ".join(f"{size(item[key])} {verb}" for key, verb in _SPILLS.items() if item[key])
        needed = f", for line {item['needed_at']}" if item["needed_at"] else ""
        yield f"     {item['name'] or 'a tile'} of line {item['line']}: {moved}{needed}"


def _what_ifs(report: Report, source: Path | None) -> Iterable[str]:
    if not report["what_ifs"]:
        return
    shown = report["what_ifs"][:_WHAT_IF_ROWS]
    yield ""
    yield "what if  " + "; ".join(
        f"{item['assumption']}: {time(item['latency_ms'])} ({-item['saved_percent']:+.0f} %)"
        for item in shown
    )
