"""Phrases that the HTML and the Markdown report share."""

from __future__ import annotations

from collections.abc import Mapping

from agentctl.formatting import (
    STOP_REASONS,
    UNLIKE,
    explain_share_of_bound,
    format_confidence,
    format_speedup,
    format_start,
)
from agentctl.reports.document import ReportDocument
from agentctl.views.run import INTERRUPTED, LatencyInterval, RunView
from state.model import TRANSLATION_KEY

SOURCE_NOTES: dict[bool | None, str] = {
    True: "All latencies are predicted: a model of the target gave them, and no device has confirmed them.",
    False: "Latencies were measured on a device.",
    None: "",
}


def report_title(found: ReportDocument) -> str:
    """Return the report's title: the result in one line."""
    run = found.run
    if run.speedup is None:
        return f"{run.problem}: no correct kernel"
    said = "" if run.predicted is None else " (predicted)" if run.predicted else " (measured)"
    return f"{run.problem} on {run.target}: {format_speedup(run.speedup)} as fast{said}"


def run_ending(found: ReportDocument) -> str:
    """Return the run's state, and why it ended, or how to continue it if nobody advances it."""
    run = found.run
    if run.state == INTERRUPTED:
        return f"{run.state} (agentctl resume {run.id} carries on)"
    reasons = {reason.value: text for reason, text in STOP_REASONS.items()}
    return f"{run.state}, {reasons[run.reason]}" if run.reason else run.state


def start_rows(found: ReportDocument) -> list[tuple[str, str]]:
    """Return which start the best kernel came from, unless it is the initial kernel."""
    line = found.path.line
    is_translation = bool(line) and line[0].candidate == TRANSLATION_KEY.candidate_id
    return [("began from", format_start(line[0].candidate))] if is_translation else []


def below_bound_note(run: RunView, *, before: str = "") -> str:
    """Return a note, after `before`, for a best latency below the model bound; empty if it is above."""
    note = explain_share_of_bound(run.percent_of_model_bound, predicted=run.predicted is not False)
    return f"{before}{note}" if note else ""


def latency_source(one: LatencyInterval) -> str:
    """Return whether a latency is predicted or measured."""
    return "predicted" if one.predicted else "measured"


def latency_with_interval(one: LatencyInterval) -> str:
    """Return whether a latency is predicted or measured, with its interval unless that has zero width."""
    low, high = f"{one.lo_ms:.4g}", f"{one.hi_ms:.4g}"
    between = f", {low} to {high}" if low != high else ""
    return latency_source(one) + between + (f", {UNLIKE}" if one.unlike else "")


def confidence_note(wins_percent: float | None) -> str:
    """Return how sure it is that the best kernel is faster; empty if it is unknown."""
    return "" if wins_percent is None else format_confidence(wins_percent)


def estimates_note(found: ReportDocument) -> str:
    """Return how many of the tokens are estimates; empty if all were counted."""
    guessed = found.figures["calls"].get("estimated_tokens", 0)
    return f"{guessed:,} of the tokens are estimates, as their endpoint counted none" if guessed else ""


def moved_counters(
    old: Mapping[str, float], new: Mapping[str, float]
) -> list[tuple[str, tuple[float, float]]]:
    """Return the counters of both kernels that differ, largest change first."""
    pairs = [(name, (was, new[name])) for name, was in old.items() if name in new and was != new[name]]
    return sorted(pairs, key=lambda pair: -abs(pair[1][1] - pair[1][0]) / max(map(abs, pair[1])))
