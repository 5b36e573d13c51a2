"""Kernel pages: one kernel with its highlighted source and its profile, or two with their differences."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from difflib import SequenceMatcher

from agentctl.plots import NEW, OLD, PlotFigure, PlottedKernel, describe_bandwidth, plot_profiles
from agentctl.views.candidate import CandidateView, load_candidate
from agentctl.views.highlight import Piece, highlight_source
from agentctl.views.roofline import KernelRoofline, engine_shares, kernel_roofline, profile_target
from agentctl.views.timeline import BusyTimeline, busy_timeline
from state.reader import LogReader
from targets.registry import profile_vocabulary

MOST_LINES = 4000
"""Longer kernels are compared with a heuristic in which repeated lines count less."""

CONTEXT_LINES = 3
"""Unchanged lines shown around a change."""


@dataclass(frozen=True, slots=True)
class KernelPage:
    """A candidate, its source as coloured lines, and its profile; `figures` show it beside its parent."""

    candidate: CandidateView
    lines: tuple[tuple[Piece, ...], ...]
    roofline: KernelRoofline | None
    timeline: BusyTimeline | None
    figures: tuple[PlotFigure, ...]
    bandwidth: str | None


@dataclass(frozen=True, slots=True)
class DiffLine:
    """A line of a comparison: `kind` is ' ', '-', '+', or '~' for `skipped` lines that are the same in
    both.

    `a` and `b` are its line numbers in the two sources, from 1.
    """

    kind: str
    a: int | None
    b: int | None
    pieces: tuple[Piece, ...]
    skipped: int = 0


@dataclass(frozen=True, slots=True)
class SourceComparison:
    """What changed from one kernel to another; a kernel without a source has no lines."""

    run: str
    a: str
    b: str
    added: int
    removed: int
    lines: tuple[DiffLine, ...]


def kernel_page(reader: LogReader, run: str, name: str, *, at: int | None = None) -> KernelPage:
    """Return a candidate's page; with `at`, as it was after that event of the run.

    Raises:
        DaemonError: the run has no such candidate (yet), or no such event.
        StreamUnknown: there is no such run.
    """
    found = load_candidate(reader, run, name, at=at)
    own = _plotted_kernel("this kernel", NEW, found)
    has_parent = found.parent is not None and found.parent != found.id
    parent = load_candidate(reader, run, str(found.parent), at=at) if has_parent else None
    plotted = [own] if parent is None else [_plotted_kernel("its parent", OLD, parent), own]
    return KernelPage(
        candidate=found,
        lines=tuple(map(tuple, highlight_source(found.source or ""))),
        roofline=own.roofline,
        timeline=own.timeline,
        figures=plot_profiles(plotted),
        bandwidth=describe_bandwidth(plotted),
    )


def _plotted_kernel(title: str, kind: str, found: CandidateView) -> PlottedKernel:
    target = profile_target(found.profile)
    return PlottedKernel(
        title,
        kind,
        profile_vocabulary(target),
        engine_shares(found.counters, target, found.latency.ms if found.latency else None),
        busy_timeline(found.profile),
        kernel_roofline(found.counters, target),
    )


def compare_sources(
    reader: LogReader, run: str, a: str, b: str, *, at: int | None = None
) -> SourceComparison:
    """Return what changed from candidate `a` to `b`; `best` means the best after the run's event `at`.

    Raises:
        DaemonError: the run has no such candidate (yet), or no such event.
        StreamUnknown: there is no such run.
    """
    old, new = (load_candidate(reader, run, name, at=at) for name in (a, b))
    lines = tuple(_shorten_diff(list(_diff_lines(old.source or "", new.source or ""))))
    return SourceComparison(
        run=run,
        a=old.id,
        b=new.id,
        added=sum(one.kind == "+" for one in lines),
        removed=sum(one.kind == "-" for one in lines),
        lines=lines,
    )


def _diff_lines(old: str, new: str) -> Iterator[DiffLine]:
    before, after = old.split("\n"), new.split("\n")
    coloured = highlight_source(old), highlight_source(new)
    matcher = SequenceMatcher(None, before, after, autojunk=max(len(before), len(after)) > MOST_LINES)
    for kind, a_first, a_end, b_first, b_end in matcher.get_opcodes():
        if kind == "equal":
            for a, b in zip(range(a_first, a_end), range(b_first, b_end), strict=True):
                yield DiffLine(" ", a + 1, b + 1, tuple(coloured[1][b]))
            continue
        for a in range(a_first, a_end):
            yield DiffLine("-", a + 1, None, tuple(coloured[0][a]))
        for b in range(b_first, b_end):
            yield DiffLine("+", None, b + 1, tuple(coloured[1][b]))


def _shorten_diff(lines: list[DiffLine]) -> Iterator[DiffLine]:
    """Drop lines that are the same in both, except a few around each change."""
    near = [False] * len(lines)
    for number, one in enumerate(lines):
        if one.kind != " ":
            first, end = max(0, number - CONTEXT_LINES), min(len(lines), number + CONTEXT_LINES + 1)
            near[first:end] = [True] * (end - first)
    skipped = 0
    for one, shown in zip(lines, near, strict=True):
        if not shown:
            skipped += 1
            continue
        if skipped:
            yield DiffLine("~", None, None, (), skipped)
            skipped = 0
        yield one
    if skipped:
        yield DiffLine("~", None, None, (), skipped)
