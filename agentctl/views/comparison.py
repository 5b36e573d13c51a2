"""Two kernels of a run side by side: source, latency, counters, and when their engines are busy."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field

from agentctl.formatting import explain_share_of_bound
from agentctl.views import OMIT_EMPTY
from agentctl.views.candidate import CandidateView, load_candidate
from agentctl.views.run import LatencyInterval, bound_percent
from agentctl.views.timeline import BusyTimeline, busy_timeline
from state.reader import LogReader


@dataclass(frozen=True, slots=True)
class KernelComparison:
    """A comparison of `a` with `b`; `speedup` is that of `b` over `a`. Latencies in ms;
    `wins_percent` is how sure it is that `b` is faster.

    `a_below_bound` and `b_below_bound`: what to think of a latency below the model bound; None if it is
    above. `counters` are counters of both that differ, largest change first, as (a's, b's). `diff` is
    unified.
    """

    run: str
    a: str
    b: str
    a_ms: float | None
    a_lo_ms: float | None
    a_hi_ms: float | None
    b_ms: float | None
    b_lo_ms: float | None
    b_hi_ms: float | None
    speedup: float | None
    wins_percent: float | None
    predicted: bool | None
    counters: dict[str, tuple[float, float]]
    a_timeline: BusyTimeline | None
    b_timeline: BusyTimeline | None
    diff: str
    a_below_bound: str | None = field(default=None, metadata={OMIT_EMPTY: True})
    b_below_bound: str | None = field(default=None, metadata={OMIT_EMPTY: True})


def compare_kernels(reader: LogReader, run: str, a: str, b: str) -> KernelComparison:
    """Return what changed from one kernel of a run to another, by candidate ids, `initial` or `best`.

    Raises:
        DaemonError: the run has none of that name (yet).
        state.errors.StreamUnknown: there is no such run.
    """
    old, new = load_candidate(reader, run, a), load_candidate(reader, run, b)
    was, now = old.latency, new.latency
    tight_ms = reader.run_state(run).bounds.tight_ms
    compares = old.history == new.history
    return KernelComparison(
        run=run,
        a=old.id,
        b=new.id,
        a_ms=was.ms if was else None,
        a_lo_ms=was.lo_ms if was else None,
        a_hi_ms=was.hi_ms if was else None,
        b_ms=now.ms if now else None,
        b_lo_ms=now.lo_ms if now else None,
        b_hi_ms=now.hi_ms if now else None,
        speedup=was.ms / now.ms if was and now and compares else None,
        wins_percent=new.wins_percent_over(old) if compares else None,
        predicted=now.predicted if now else None,
        counters=changed_counters(old.counters, new.counters),
        a_timeline=busy_timeline(old.profile),
        b_timeline=busy_timeline(new.profile),
        diff=source_diff(old, new),
        a_below_bound=_explain_latency(was, tight_ms),
        b_below_bound=_explain_latency(now, tight_ms),
    )


def _explain_latency(latency: LatencyInterval | None, tight_ms: float) -> str | None:
    """Return an explanation for a latency below the model bound; None if it is above."""
    if latency is None:
        return None
    return explain_share_of_bound(bound_percent(tight_ms, latency.ms), predicted=latency.predicted)


def source_diff(old: CandidateView, new: CandidateView) -> str:
    """Return the unified diff of two sources; a source that is no longer in the log counts as empty."""
    before, after = (one.source or "" for one in (old, new))
    lines = difflib.unified_diff(
        before.splitlines(keepends=True), after.splitlines(keepends=True), old.id, new.id
    )
    return "".join(lines)


def changed_counters(old: dict[str, float], new: dict[str, float]) -> dict[str, tuple[float, float]]:
    """Return the counters of both profiles that differ, largest change first."""
    moved = {name: (old[name], new[name]) for name in old if name in new and old[name] != new[name]}

    def size(name: str) -> float:
        was, now = moved[name]
        return abs(now - was) / max(abs(was), abs(now))

    return {name: moved[name] for name in sorted(moved, key=size, reverse=True)}
