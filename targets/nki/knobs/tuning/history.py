"""What a run has seen of its workload's space, read out of a request alone: points and their latencies.

Attempts say how much faster than its parent a kernel was. Latencies follow along the line of descent, from
the one kernel whose latency a request has: its parent. What an attempt was is in its site, as text.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from state.model import Attempt, Candidate

TECHNIQUE = "knob_"
"""How the techniques of points begin, in attempts and credits: `knob_` and the mode or the knob swept."""


@dataclass(frozen=True, slots=True)
class JudgedPoint:
    """A point that was judged, by its text: its latency, or what it was refused for."""

    text: str
    ms: float | None
    failure: str = ""


def judged_points(attempts: Sequence[Attempt], parent: Candidate) -> list[JudgedPoint]:
    """The points among attempts, the oldest first; those whose latency cannot be told have none."""
    known = _known_latencies(attempts, parent)
    return [
        JudgedPoint(item.site, known.get(item.candidate), item.error.code if item.error is not None else "")
        for item in attempts
        if item.technique.startswith(TECHNIQUE)
    ]


def origin_point(attempts: Sequence[Attempt], parent: Candidate) -> str | None:
    """The point that a kernel is, or was made from by other changes; None where no attempt tells."""
    made = {item.candidate: item for item in attempts}
    one: str | None = parent.id
    while one in made:
        if made[one].technique.startswith(TECHNIQUE):
            return made[one].site
        one = made[one].parent
    return None


def commonest_failure(attempts: Sequence[Attempt]) -> str:
    """The code of the error that most refused points had, with how many; empty where none was refused."""
    points = [item for item in attempts if item.technique.startswith(TECHNIQUE)]
    codes = Counter(item.error.code for item in points if item.error is not None)
    code, count = min(codes.items(), key=lambda one: (-one[1], one[0]), default=("", 0))
    return f"{code} ({count} of {len(points)} attempts)" if count else ""


def _known_latencies(attempts: Sequence[Attempt], parent: Candidate) -> dict[str, float]:
    """Latencies in ms of the kernels that descend from one another, up and down from the parent."""
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
