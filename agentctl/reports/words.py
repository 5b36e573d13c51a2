"""What HTML and Markdown say in the same words."""

from __future__ import annotations

from collections.abc import Mapping

from agentctl.reports.document import Document
from agentctl.views.run import Timed
from agentctl.words import REASONS, percentage, times

SOURCES: dict[bool | None, str] = {
    True: "All latencies are predicted: a model of the target gave them, and no device has confirmed them.",
    False: "Latencies were measured on a device.",
    None: "",
}


def title(found: Document) -> str:
    """Return the report in a line."""
    run = found.run
    if run.speedup is None:
        return f"{run.problem}: no correct kernel"
    said = "" if run.predicted is None else " (predicted)" if run.predicted else " (measured)"
    return f"{run.problem} on {run.target}: {times(run.speedup)} as fast{said}"


def ending(found: Document) -> str:
    """Return how the run stands, and why if it ended."""
    run = found.run
    reasons = {reason.value: text for reason, text in REASONS.items()}
    return f"{run.state}, {reasons[run.reason]}" if run.reason else run.state


def how(one: Timed) -> str:
    """Return where a latency is from."""
    return "predicted" if one.predicted else "measured"


def interval(one: Timed) -> str:
    """Return where a latency is from, with its interval where that says something."""
    low, high = f"{one.lo_ms:.4g}", f"{one.hi_ms:.4g}"
    return how(one) + (f", {low} to {high}" if low != high else "")


def sure(wins_percent: float | None) -> str:
    """Return in how many of the model's draws the best is faster; nothing where that cannot be said."""
    return "" if wins_percent is None else f"faster in {percentage(wins_percent)} of draws that differ"


def moved(old: Mapping[str, float], new: Mapping[str, float]) -> list[tuple[str, tuple[float, float]]]:
    """Return the counters that both have and that moved, those that moved most first."""
    pairs = [(name, (was, new[name])) for name, was in old.items() if name in new and was != new[name]]
    return sorted(pairs, key=lambda pair: -abs(pair[1][1] - pair[1][0]) / max(map(abs, pair[1])))
