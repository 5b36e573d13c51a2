"""`agentctl best` and `agentctl diff`: print a kernel of a run, or what changed between two."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from agentctl.app import Session, common_options
from agentctl.completers import complete_runs
from agentctl.formatting import (
    format_counter,
    format_latency,
    format_ms,
    format_speedup,
    format_wins,
    name_counter,
)
from agentctl.run_lookup import find_run
from agentctl.terminal_style import style
from agentctl.views import as_json
from agentctl.views.candidate import CandidateView, load_candidate
from agentctl.views.comparison import KernelComparison, compare_kernels
from agentctl.views.timeline import BusyTimeline
from daemon import exits
from state.output_files import write_output
from state.reader import LogReader

TIMELINE_WIDTH = 60
"""Width of a timeline in characters."""

SHADES = " \u2581\u2582\u2583\u2584\u2585\u2586\u2587\u2588"
"""Shares of time in which an engine is busy, from none to all."""


@click.command(epilog=exits.epilog())
@click.argument("run", shell_complete=complete_runs)
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), help="Write the kernel here instead of to stdout."
)
@common_options
def best(session: Session, run: str, output: Path | None) -> None:
    """Print a run's best kernel so far, or write it to a file."""
    with LogReader.open(session.home) as reader, session.progress_bar("reading the run"):
        run = str(find_run(reader, run)["run"])
        found, first = load_candidate(reader, run, "best"), load_candidate(reader, run, "initial")
    source = found.source or ""
    if output is not None:
        write_output(session.home, output, source.encode())
    about: dict[str, Any] = {
        "run": run, "candidate": found.id, "latency_ms": found.latency and found.latency.ms,
        "level": found.level, "predicted": found.latency and found.latency.predicted,
        "wins_percent": found.wins_percent_over(first), "output": None if output is None else str(output),
    }  # fmt: skip
    if output is None:
        session.emit({**about, "source": source}, source.rstrip("\n"), exact=True)
    else:
        said = f"{_format_latency(found)}{format_wins(found.benchmark, first.benchmark)}"
        session.emit(about, f"wrote {found.id} ({said}) to {output}")


@click.command(epilog=exits.epilog())
@click.argument("run", shell_complete=complete_runs)
@click.argument("a", default="initial")
@click.argument("b", default="best")
@common_options
def diff(session: Session, run: str, a: str, b: str) -> None:
    """Show what changed from kernel A to kernel B: source, counters, and when engines are busy.

    A and B are candidate ids, `initial` or `best`.
    """
    with LogReader.open(session.home) as reader, session.progress_bar("reading the run"):
        run = str(find_run(reader, run)["run"])
        found = compare_kernels(reader, run, a, b)
        old, new = load_candidate(reader, run, found.a), load_candidate(reader, run, found.b)
    gained = f"{format_speedup(found.speedup)}{format_wins(new.benchmark, old.benchmark)}"
    text = [
        f"{old.id}: {_format_latency(old)}",
        f"{new.id}: {_format_latency(new)}, {gained}",
        *_format_below_bound(found),
        *_format_counters(found),
        *_format_timelines(found),
        *map(_colour_diff_line, found.diff.splitlines()),
    ]
    session.emit(as_json(found), "\n".join(text))


def _format_below_bound(found: KernelComparison) -> Iterator[str]:
    """Yield what to think of latencies below the model bound."""
    for name, note in ((found.a, found.a_below_bound), (found.b, found.b_below_bound)):
        if note:
            yield style(f"{name}: {note}", "bad")


def _format_counters(found: KernelComparison) -> Iterator[str]:
    """Yield the counters whose printed values differ."""
    shown = {
        name: (format_counter(name, was), format_counter(name, now))
        for name, (was, now) in found.counters.items()
    }
    shown = {name: both for name, both in shown.items() if both[0] != both[1]}
    if not shown:
        return
    names = {name: name_counter(name) for name in shown}
    width = max(map(len, names.values()))
    yield f"{'predicted counters' if found.predicted else 'counters'} that changed, most changed first:"
    for name, (was, now) in shown.items():
        yield f"  {names[name]:{width}}  {was:>12} -> {now}"


def _format_timelines(found: KernelComparison) -> Iterator[str]:
    """Yield when each engine and queue is busy, in both kernels on one time scale."""
    old, new = found.a_timeline, found.b_timeline
    if old is None or new is None:
        return
    span = max(old.span_ms, new.span_ms)
    lanes = dict.fromkeys((*old.busy_percent, *new.busy_percent))
    width = max(map(len, lanes), default=0)
    kind = "predicted timeline" if old.predicted or new.predicted else "timeline"
    yield f"{kind}, how busy each engine and queue is, over {format_ms(span)}:"
    for lane in lanes:
        for name, line in ((found.a, old), (found.b, new)):
            drawn = _draw_lane(line, lane, span)
            yield f"  {lane if line is old else '':{width}}  |{drawn}|  {name}"


def _draw_lane(line: BusyTimeline, lane: str, span_ms: float) -> str:
    """Return one lane as characters; its length is the kernel's share of `span_ms`."""
    parts = line.busy_percent.get(lane, (0,))
    columns = max(1, round(TIMELINE_WIDTH * line.span_ms / span_ms)) if span_ms else TIMELINE_WIDTH
    drawn = ""
    for column in range(columns):
        low = column * len(parts) // columns
        some = parts[low : max(low + 1, (column + 1) * len(parts) // columns)]
        share = min(100.0, max(0.0, sum(some) / len(some)))
        drawn += SHADES[-(-round(share) * (len(SHADES) - 1) // 100)]
    return drawn.ljust(TIMELINE_WIDTH, "\u00b7")


def _colour_diff_line(line: str) -> str:
    """Return a line of a diff with its colour."""
    kinds = {"+": "good", "-": "bad", "@": "key"}
    return style(line, kinds.get(line[:1])) if not line.startswith(("+++", "---")) else style(line, "head")


def _format_latency(found: CandidateView) -> str:
    return format_latency(found.benchmark) if found.benchmark else "no latency"
