"""Reads from a request what a run has tried of its workload's space: points and their latencies.

Attempts say how much faster a kernel was than its parent. A request has one latency, that of the parent; the
others follow along the line of descent. An attempt's site names its point, as text.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from state.model import Attempt, Candidate

TECHNIQUE = "knob_"
"""Prefix of the techniques of points in attempts and credits: `knob_` and the mode or the knob swept."""


@dataclass(frozen=True, slots=True)
class JudgedPoint:
    """A point that was judged, by its text: its latency, or the reason for its rejection."""

    text: str
    ms: float | None
    failure: str = ""


def judged_points(attempts: Sequence[Attempt], parent: Candidate) -> list[JudgedPoint]:
    """Return the points among attempts, the oldest first; points whose latency is unknown have none."""
    known = _known_latencies(attempts, parent)
    return [
        JudgedPoint(item.site, known.get(item.candidate), item.error.code if item.error is not None else "")
        for item in attempts
        if item.technique.startswith(TECHNIQUE)
    ]


def origin_point(attempts: Sequence[Attempt], parent: Candidate) -> str | None:
    """Return the point that a kernel is, or was derived from by other changes; None if no attempt tells."""
    made = {item.candidate: item for item in attempts}
    one: str | None = parent.id
    while one in made:
        if made[one].technique.startswith(TECHNIQUE):
            return made[one].site
        one = made[one].parent
    return None


def commonest_failure(attempts: Sequence[Attempt]) -> str:
    """Return the most common error code of rejected points, with its count; empty if none was rejected."""
    points = [item for item in attempts if item.technique.startswith(TECHNIQUE)]
    codes = Counter(item.error.code for item in points if item.error is not None)
    code, count = min(codes.items(), key=lambda one: (-one[1], one[0]), default=("", 0))
    return f"{code} ({count} of {len(points)} attempts)" if count else ""


def _known_latencies(attempts: Sequence[Attempt], parent: Candidate) -> dict[str, float]:
    """Latencies in ms of the kernels related by descent, up and down from the parent."""
    known = {parent.id: parent.latency_ms}
    steps = [(item.parent, item.candidate, item.speedup) for item in attempts if item.speedup is not None]
    grown = True
    while grown:
        before = len(known)
        for above, below, speedup in steps:
            if above in known:
                known.setdefault(below, known[above] / speedup)
            elif below in known:
                known[above] = known[below] * speedup
        grown = len(known) > before
    return known
