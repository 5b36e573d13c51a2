"""Prints a profile for people: one screen of at most 80 columns, every figure with its unit."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from nki_sim.cli import report_text
from nki_sim.cli.report_text import KernelText, Report
from nki_sim.timing.units import format_size, format_time
from nki_sim.timing.what_if import format_evidence

WIDTH = 80

_REUSED = {
    True: ("keeps one place for all iterations", ""),
    False: ("is given a place that other contents still need", ""),
}
_CLASSES = {"underutilised": "underutilised", "overhead": "mostly fixed overhead"}

QUOTE = "\0"
"""Separates a line's text from the source that it quotes."""

_BAR = 12
_PATH_ROWS, _WHAT_IF_ROWS, _HOLDERS = 8, 5, 3
_NAME, _HINTS = 9, 2
_SMALL, _LEAST = 0.005, 0.5
_BOUNDS = {"plain": "target's roofline", "tight": "model bound"}
_MOVED = ("hbm_read_bytes", "hbm_write_bytes", "spill_save_bytes", "spill_reload_bytes")
_SPILLS = {"save_bytes": "saved", "reload_bytes": "reloaded", "load_again_bytes": "loaded again"}


def format_profile(report: Report, source: Path | None) -> Iterator[str]:
    """The lines of a profile, or the broken rules if the kernel breaks any."""
    if not report["explanation"]:
        yield from report_text.format_report(report, source)
        return
    for topic in PROFILE_TOPICS:
        yield from format_topic(topic, report, source)


def format_topic(topic: str, report: Report, source: KernelText) -> Iterator[str]:
    """The lines of one of `PROFILE_TOPICS`, for a kernel that breaks no rule."""
    for line in PROFILE_TOPICS[topic](report, source):
        yield from fit_line(line)


def fit_line(line: str) -> Iterator[str]:
    """Fit a line to the screen: cut source text, wrap sentences."""
    text, bar, quoted = line.partition(QUOTE)
    if bar:
        rest = WIDTH - len(text) - 2
        yield f"{text}  {quoted if len(quoted) <= rest else quoted[: rest - 3] + '...'}".rstrip()
    else:
        yield from textwrap.wrap(line, WIDTH, subsequent_indent=" " * 6, drop_whitespace=True) or [""]


def _format_head(report: Report, source: KernelText) -> Iterable[str]:
    predicted, why = report["predicted"], report["explanation"]
    roof, latency = why["roofline"], why["latency_ms"]
    yield (
        f"{report['kernel']} on {report['target']}: {format_time(latency)} predicted "
        f"({format_time(predicted['lo_ms'], latency)} to {format_time(predicted['hi_ms'], latency)}), "
        f"{describe_bottleneck(why['bottleneck'])}"
    )
    overhead = format_time(why["overhead_ms"], latency)
    if predicted["unlike"]:
        yield f"  unlike anything measured: {predicted['unlike']}"
    yield f"  {report['instructions']} instructions predicted to run, {overhead} of fixed overhead"
    bounds = (
        f"{text} {format_time(roof[f'{name}_ms'], latency)} ({roof[f'{name}_percent']:.0f} % of the latency)"
        for name, text in _BOUNDS.items()
    )
    yield f"  for the {roof['work_of']}'s work: {', '.join(bounds)}"
    if predicted["dynamic_loops"]:
        yield f"  loops whose rounds data decide, timed as one round each: {predicted['dynamic_loops']}"
    yield from _format_transfers(why["transfers"])
    for tile in [tile for tile in why["reused"] if tile["waits"] > 1][:_HINTS]:
        why, hint = _REUSED[tile["declared"]]
        yield (
            f"  hint: {tile['name'] or 'the tile'} of line {tile['line']} {why}: iterations wait for each "
            f"other at line {tile['written_at']}, {tile['waits']} times on the critical path{hint}"
        )


def _format_transfers(found: Report) -> Iterable[str]:
    if found["count"]:
        small = f"{found['small']} at the fixed cost of a small one ({found['fixed_us']:.4g} us)"
        most = f"most time goes to {'bytes' if found['limited_by'] == 'bytes' else 'that fixed cost'}"
        average = format_size(found["average_bytes"])
        yield f"  {found['count']} transfers, {small}, {average} on average: {most}"


def describe_bottleneck(bottleneck: str) -> str:
    """Describe a bottleneck class in words."""
    return _CLASSES.get(bottleneck, f"{bottleneck}-bound")


def _format_engines(report: Report, source: KernelText) -> Iterable[str]:
    why = report["explanation"]
    latency, several = why["latency_ms"], len({track["core"] for track in why["tracks"]}) > 1
    yield ""
    yield f"{'engine':{_NAME}} {'busy':{_BAR + 16}} waits for, each line 100 % of the latency"
    for track in sorted(why["tracks"], key=lambda track: (track["core"], -track["busy_ms"])):
        name = f"{track['engine']} {track['core']}" if several else track["engine"]
        (_, busy), *waits = latency_shares(track, why["overhead_ms"], latency)
        bar = "#" * round(busy / 100 * _BAR)
        head = f"{name:{_NAME}} {bar:{_BAR}} {format_time(track['busy_ms'], latency):>10} {busy:>3}%"
        first, *others = _wrap_items([f"{text} {share}%" for text, share in waits], WIDTH - len(head) - 2)
        yield f"{head}  {first}".rstrip()
        yield from (f"{'':{len(head)}}  {text}" for text in others)


def _wrap_items(items: list[str], width: int) -> list[str]:
    """Join items into lines of at most `width` characters; always at least one line."""
    kept = ", ".join(item.replace(" ", QUOTE) for item in items)
    return [text.replace(QUOTE, " ") for text in textwrap.wrap(kept, width)] or [""]


def latency_shares(track: Report, overhead_ms: float, latency_ms: float) -> list[tuple[str, int]]:
    """How an engine spends the latency: (activity, percent), adding up to 100; busy first, then by size.

    Shares below half a percent are merged into `other`.
    """
    waits = [(f"{wait['on']} {wait['cause']}".strip(), wait["ms"]) for wait in track["waits"]]
    parts = [("busy", track["busy_ms"]), *waits, ("done", track["done_ms"]), ("overhead", overhead_ms)]
    shares = [(name, 100.0 * ms / latency_ms) for name, ms in parts]
    kept = [item for item in shares if item[0] == "busy" or item[1] >= _LEAST]
    kept.append(("other", sum(share for _, share in shares) - sum(share for _, share in kept)))
    whole = [int(share) for _, share in kept]
    up = sorted(range(len(kept)), key=lambda place: whole[place] - kept[place][1])
    for place in up[: 100 - sum(whole)]:
        whole[place] += 1
    busy, *others = [(name, share) for (name, _), share in zip(kept, whole, strict=True)]
    return [busy, *sorted((item for item in others if item[1]), key=lambda item: -item[1])]


def _format_path(report: Report, source: KernelText) -> Iterable[str]:
    why = report["explanation"]
    parts, latency = why["critical_path"], why["latency_ms"]
    yield ""
    yield f"critical path (adds up to the {format_time(latency)})"
    for part in parts[:_PATH_ROWS]:
        where = f"line {part['line']}" if part["line"] else ""
        text = report_text.read_source_line(source, part["line"])
        op = part["op"].replace("_", " ") if not part["line"] else part["op"]
        time, share = format_time(part["ms"], latency), part["ms"] / latency
        yield f"{time:>11} {share:>4.0%}  {where:9} {op:16}{QUOTE}{text}"
    rest, others = sum(part["ms"] for part in parts[_PATH_ROWS:]), len(parts) - _PATH_ROWS
    if rest:
        places = "place" if others == 1 else "places"
        yield f"{format_time(rest, latency):>11} {rest / latency:>4.0%}  in {others} other {places}"
    waited = sum(part["wait_ms"] for part in parts)
    yield f"  Of all this {format_time(waited, latency)} is latency of semaphores and DMA."


def _format_memory(report: Report, source: KernelText) -> Iterable[str]:
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


def _format_traffic(report: Report, source: KernelText) -> Iterable[str]:
    counters = report["counters"]
    read, written, saved, reloaded = (format_size(counters[name]) for name in _MOVED)
    spills = counters["spill_save_bytes"] or counters["spill_reload_bytes"]
    yield f"HBM  predicted: read {read}, written {written}; {'of it' if spills else 'nothing spilled'}"
    if spills:
        yield f"     spilled {saved}, reloaded {reloaded}"
    for item in report["explanation"]["spilled"][:_HOLDERS]:
        moved = ", ".join(f"{format_size(item[key])} {verb}" for key, verb in _SPILLS.items() if item[key])
        needed = f", for line {item['needed_at']}" if item["needed_at"] else ""
        yield f"     {item['name'] or 'a tile'} of line {item['line']}: {moved}{needed}"


def _format_what_ifs(report: Report, source: KernelText) -> Iterable[str]:
    if not report["what_ifs"]:
        return
    shown, latency = report["what_ifs"][:_WHAT_IF_ROWS], report["explanation"]["latency_ms"]
    yield ""
    yield "what if  " + "; ".join(
        f"{item['assumption']}: {format_time(item['latency_ms'], latency)} ({-item['saved_percent']:+.0f} %)"
        for item in shown
    )
    yield "         " + "; ".join(
        f"{item['assumption']}: {format_evidence(item['measured_pairs'], item['pairs_within'])}"
        for item in shown
    )


PROFILE_TOPICS: Mapping[str, Callable[[Report, KernelText], Iterable[str]]] = {
    "summary": _format_head,
    "engines": _format_engines,
    "critical_path": _format_path,
    "memory": _format_memory,
    "traffic": _format_traffic,
    "what_if": _format_what_ifs,
}
"""The parts of a profile, in the order in which people see them."""
