"""The summary at the end of a run, as text and as JSON: what was found, by which changes, and where it is."""

from __future__ import annotations

from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from shutil import get_terminal_size
from typing import Any

from agentctl.formatting import (
    LEVELS,
    ROUNDING,
    explain_latency_below_bound,
    format_brief_latency,
    format_command,
    format_count,
    format_discard_reason,
    format_duration,
    format_latency,
    format_ms,
    format_percent,
    format_prefilter,
    format_speedup,
    format_start,
    format_stop_reason,
    format_wins,
)
from agentctl.run_tracker import RunTracker, trace_lineage
from agentctl.text_layout import wrap_line
from agentctl.views import as_json as as_view
from agentctl.views.host_usage import HostUsage
from agentctl.views.run import bound_percent, run_view
from state.fold import RunState
from state.model import TRANSLATION_KEY, Candidate, ErrorInfo
from state.output_files import write_output
from state.reader import LogReader
from targets.registry import kernel_suffix, roofline_name

_CONFIDENCE = "  confidence: share of measured pairs with predictions this far apart that were in this order"

SLIGHT_GAIN = 1.005
"""A step that gains less than this is called slight."""

STEP_SEPARATOR = "; "
"""Separates the rewrites in the title of a sequence."""


def write_best_kernel(
    reader: LogReader, home: Path, run: str, state: RunState, out: Path | None
) -> Path | None:
    """Write the run's best kernel to `out`, or into the home's results; return the path, None without a
    kernel.
    """
    if state.best is None:
        return None
    path = out or home / "results" / run / f"best{kernel_suffix(state.config.target)}"
    if out is None:
        path.parent.mkdir(parents=True, exist_ok=True)
    write_output(home, path, reader.get_blob(state.best.source))
    return path


def summary_json(tracker: RunTracker, kernel_file: Path | None) -> dict[str, Any]:
    """Return the run's summary, with the lineage of its best kernel and the path of its file."""
    assert tracker.state is not None
    line = trace_lineage(tracker.kept, tracker.state.best)
    parents = (None, *line)
    steps = [_step_json(one, parent) for parent, one in zip(parents, line, strict=False)]
    filtered = tracker.elsewhere.prefilter_result
    return {
        **as_view(run_view(tracker.run, tracker.state)),
        "detail": tracker.state.status_reason or None,
        "discarded": dict(tracker.discarded),
        "elapsed_seconds": tracker.elapsed_seconds,
        "hosts": dict(tracker.elsewhere.hosts),
        "devices": dict(tracker.elsewhere.devices),
        "prefilter": asdict(filtered) if filtered else None,
        "lineage": steps,
        "kernel_file": None if kernel_file is None else str(kernel_file),
    }


def _step_json(one: Candidate, parent: Candidate | None) -> dict[str, Any]:
    return {
        "candidate": one.id,
        "technique": one.technique,
        "title": one.title,
        "latency_ms": one.latency_ms,
        "lo_ms": one.benchmark.lo_ms,
        "hi_ms": one.benchmark.hi_ms,
        "speedup": parent.latency_ms / one.latency_ms if parent else None,
        "wins_percent": one.benchmark.wins_percent(parent.benchmark) if parent else None,
    }


def summary_text(tracker: RunTracker, kernel_file: Path | None, *, width: int | None = None) -> str:
    """Return the report at the end of `agentctl run`; `width` defaults to the terminal's.

    Lines break between words only. The kernel's path and suggested commands are never broken.
    """
    state = tracker.state
    assert state is not None
    if state.best is None or state.initial is None:
        told = f"\nRun {tracker.run} found no correct kernel: {state.status_reason or state.status.value}"
        return "\n".join([told, *_rejection_lines(tracker.initial_error)])
    target = state.config.target
    columns = width or get_terminal_size().columns
    lines = [*_result_lines(tracker, state, state.initial, best=state.best), *_changes_lines(tracker, state)]
    return "\n".join([
        "",
        *(wrap_line(line, columns) for line in lines),
        f"The best kernel is in {kernel_file}",
        f"Your own kernel: {format_command('run', '--kernel', 'FOLDER/kernel' + kernel_suffix(target))}",
        f"Look further: {format_command('status')}",
        f"              {format_command('tail', '--run', tracker.run)}",
    ])  # fmt: skip


def _start_lines(tracker: RunTracker, best: Candidate) -> list[str]:
    """Return which start the best kernel came from, unless it is the initial kernel; and why that is not."""
    first = trace_lineage(tracker.kept, best)[0]
    if first.id != TRANSLATION_KEY.candidate_id:
        return []
    error = tracker.initial_error
    refused = [] if error is None else [f"  the initial kernel was refused: {error.message}"]
    return [f"  it came from {format_start(first.id)}", *refused, *_rejection_lines(error)]


def _rejection_lines(error: ErrorInfo | None) -> list[str]:
    """Return where the initial kernel is wrong, and what to do, as far as its verdict says so."""
    if error is None:
        return []
    where = [f"  in line {error.line} of the kernel"] if error.line else []
    return [*where, *([f"  hint: {error.hint}"] if error.hint else [])]


def _result_lines(tracker: RunTracker, state: RunState, initial: Candidate, *, best: Candidate) -> list[str]:
    """Return how the run ended, and its results."""
    peak = format_percent(bound_percent(state.bounds.plain_ms, best.latency_ms))
    tight = format_percent(bound_percent(state.bounds.tight_ms, best.latency_ms))
    closed = format_percent(gap_closed_percent(state))
    doubt = explain_latency_below_bound(state)
    gained = format_speedup(initial.latency_ms / best.latency_ms) + format_wins(
        best.benchmark, initial.benchmark
    )
    rounds = format_count(state.round, "round") + _inherited_note(tracker, "rounds")
    return [
        f"Run {tracker.run}: {_format_ending(state)}",
        f"  {rounds}, {format_duration(tracker.elapsed_seconds)} since it began",
        f"  initial  {format_latency(initial.benchmark)}",
        f"  best     {format_latency(best.benchmark)}, {gained}",
        f"           {peak} of the {roofline_name(state.config.target)}, {tight} of the model bound",
        f"           found correct on {LEVELS[best.level]}",
        f"  gap to the model bound of {format_ms(state.bounds.tight_ms)} closed: {closed}",
        *_start_lines(tracker, best),
        *_discarded_lines(tracker),
        *_hosts_lines(tracker.elsewhere),
        *([_CONFIDENCE] if best.benchmark.wins_percent(initial.benchmark) is not None else []),
        *([f"  {doubt}"] if doubt else []),
    ]


def _discarded_lines(tracker: RunTracker) -> list[str]:
    counted = [
        f"{number} {format_discard_reason(reason)}" for reason, number in tracker.discarded.most_common()
    ]
    total = f"{tracker.discarded.total()}{_inherited_note(tracker, 'discarded')}"
    return [f"  discarded {total}: {', '.join(counted)}"] if counted else []


def _hosts_lines(found: HostUsage) -> list[str]:
    """Return which hosts judged kernels, and how useful the pre-filter was."""
    lines = []
    if found.hosts:
        hosts = ", ".join(f"{host} {number}" for host, number in found.hosts.most_common())
        lines.append(f"  judged on {format_count(len(found.hosts), 'host')}: {hosts}")
        lines.append(f"  device: {', '.join(found.devices)}")
    filtered = found.prefilter_result
    if filtered is not None:
        lines.append(f"  the pre-filter {format_prefilter(filtered)}")
    return lines


def _inherited_note(tracker: RunTracker, what: str) -> str:
    """Return how much of a count a fork inherited from its parent, as a suffix to the count."""
    number = getattr(tracker.inherited, what, 0)
    return f" ({number} before the fork)" if number else ""


def _format_ending(state: RunState) -> str:
    why = format_stop_reason(state.stop, state.status_reason) if state.stop else ""
    return f"{state.status.value}, {why}" if why else state.status.value


def gap_closed_percent(state: RunState) -> float | None:
    """Return how much of the gap between the initial kernel and the model bound was closed, in percent."""
    if state.initial is None or state.best is None:
        return None
    gap = state.initial.latency_ms - state.bounds.tight_ms
    return 100 * (state.initial.latency_ms - state.best.latency_ms) / gap if gap > 0 else None


def _changes_lines(tracker: RunTracker, state: RunState) -> list[str]:
    line = trace_lineage(tracker.kept, state.best)
    if len(line) == 1 and line[0].parent is not None:  # the run itself did not keep the parent
        return ["The best is a kernel of before the fork, judged anew."]
    if len(line) < 2:
        return ["No change made it faster."]
    changes = [
        told
        for number, (parent, one) in enumerate(pairwise(line), 1)
        for told in _change_lines(number, parent, one)
    ]
    return ["Changes that led there:", *changes]


def _change_lines(number: int, parent: Candidate, one: Candidate) -> list[str]:
    """Return the line of a change; several rewrites in one step get a line each below it."""
    steps = one.title.split(STEP_SEPARATOR)
    brought = format_gain(parent.latency_ms / one.latency_ms) + (
        format_wins(one.benchmark, parent.benchmark) if one.latency_ms < parent.latency_ms else ""
    )
    title = one.title if len(steps) == 1 else f"{format_count(len(steps), 'rewrite')} together"
    latency = format_brief_latency(one.benchmark)
    told = f"  {number}. {title} [{one.technique or 'by hand'}]: {latency}, {brought}"
    return [told, *(f"     - {step}" for step in steps if len(steps) > 1)]


def format_gain(speedup: float) -> str:
    """Return the speedup of one step over the previous one; a step without a speedup is not called a gain."""
    if abs(speedup - 1) < ROUNDING:
        return "no gain by itself"
    if speedup < 1:
        return "slower by itself"
    return format_speedup(speedup) if speedup >= SLIGHT_GAIN else f"slight ({100 * (speedup - 1):.2g} %)"
