"""The end of a run in words and as JSON: what was found, by which changes, and where it was written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from daemon.ctl.tracker import Tracker, lineage, percent, summary
from daemon.ctl.words import duration, latency, ms, percentage, times
from state.fold import RunState
from state.model import Candidate
from state.reader import LogReader


def write_best(reader: LogReader, home: Path, run: str, state: RunState, out: Path | None) -> Path | None:
    """Write the run's best kernel to `out`, or into the home's results; return where, if there is one."""
    if state.best is None:
        return None
    path = out or home / "results" / run / "best.py"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(reader.blob(state.best.source))
    return path


def as_json(tracker: Tracker, kernel_file: Path | None) -> dict[str, Any]:
    """Return the run's summary with the way to its best kernel."""
    assert tracker.state is not None
    line = lineage(tracker.kept, tracker.state.best)
    steps = [
        {"candidate": one.id, "technique": one.technique, "title": one.title, "latency_ms": one.latency_ms}
        for one in line
    ]
    return {
        **summary(tracker.run, tracker.state),
        "elapsed_seconds": tracker.elapsed_seconds,
        "lineage": steps,
        "kernel_file": None if kernel_file is None else str(kernel_file),
    }


def as_text(tracker: Tracker, kernel_file: Path | None, home: str) -> str:
    """Return the report that ends `agentctl run`."""
    state = tracker.state
    assert state is not None
    if state.best is None or state.initial is None:
        return f"\nRun {tracker.run} found no correct kernel: {state.status_reason or state.status.value}"
    elapsed = duration(tracker.elapsed_seconds)
    lines = [
        "",
        f"Run {tracker.run}: {_ending(state)} after {state.round} rounds, {elapsed}",
        f"  initial  {latency(state.initial.benchmark)}",
        f"  best     {latency(state.best.benchmark)}, {_gain(state, state.initial, state.best)}",
        f"  gap to the tight bound of {ms(state.bounds.tight_ms)} closed: {percentage(closed(state))}",
        *_changes(tracker, state),
        f"The best kernel is in {kernel_file}",
        f"Look further: agentctl status{home}",
        f"              agentctl tail{home} --run {tracker.run}",
    ]
    return "\n".join(lines)


def _ending(state: RunState) -> str:
    return f"{state.status.value} ({state.stop.value})" if state.stop else state.status.value


def _gain(state: RunState, initial: Candidate, best: Candidate) -> str:
    peak = percentage(percent(state.bounds.plain_ms, best.latency_ms))
    tight = percentage(percent(state.bounds.tight_ms, best.latency_ms))
    return f"{times(initial.latency_ms / best.latency_ms)}, {peak} of peak, {tight} of the tight bound"


def closed(state: RunState) -> float | None:
    """Return how much of the gap between the initial kernel and the tight bound was closed, in percent."""
    if state.initial is None or state.best is None:
        return None
    gap = state.initial.latency_ms - state.bounds.tight_ms
    return 100 * (state.initial.latency_ms - state.best.latency_ms) / gap if gap > 0 else None


def _changes(tracker: Tracker, state: RunState) -> list[str]:
    steps = lineage(tracker.kept, state.best)[1:]
    if not steps:
        return ["No change made it faster."]
    return ["Changes that led there:"] + [
        f"  {number}. {one.title} [{one.technique or 'by hand'}]: {latency(one.benchmark)}"
        for number, one in enumerate(steps, 1)
    ]
