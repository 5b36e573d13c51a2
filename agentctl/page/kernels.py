"""Kernels as the page shows them: one with its source in colours and its profile, two with what changed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from difflib import SequenceMatcher

from agentctl.views.candidate import CandidateView, candidate
from agentctl.views.highlight import Piece, highlighted
from agentctl.views.roofline import Roofline, roofline, target_of
from agentctl.views.timeline import Timeline, timeline
from state.reader import LogReader

MOST_LINES = 4000
"""Lines of a kernel that are compared one by one; of longer ones repeated lines count less."""

AROUND = 3
"""Unchanged lines around a change."""


@dataclass(frozen=True, slots=True)
class KernelPage:
    """A candidate, its source as coloured lines, and what its profile comes to."""

    candidate: CandidateView
    lines: tuple[tuple[Piece, ...], ...]
    roofline: Roofline | None
    timeline: Timeline | None


@dataclass(frozen=True, slots=True)
class Changed:
    """A line of a comparison: `kind` is ' ', '-', '+', or '~' for `skipped` lines that are the same in both.

    `a` and `b` are its numbers in the two sources, from 1.
    """

    kind: str
    a: int | None
    b: int | None
    pieces: tuple[Piece, ...]
    skipped: int = 0


@dataclass(frozen=True, slots=True)
class Comparison:
    """What changed from one kernel to another; a kernel without a source has no lines."""

    run: str
    a: str
    b: str
    added: int
    removed: int
    lines: tuple[Changed, ...]


def kernel(reader: LogReader, run: str, name: str, *, at: int | None = None) -> KernelPage:
    """Return a candidate's page; with `at`, as it was after that event of the run.

    Raises:
        DaemonError: the run has no such candidate (yet), or no such event.
        StreamUnknown: there is no such run.
    """
    found = candidate(reader, run, name, at=at)
    return KernelPage(
        candidate=found,
        lines=tuple(map(tuple, highlighted(found.source or ""))),
        roofline=roofline(found.counters, target_of(found.profile)),
        timeline=timeline(found.profile),
    )


def comparison(reader: LogReader, run: str, a: str, b: str, *, at: int | None = None) -> Comparison:
    """Return what changed from candidate `a` to `b`; `best` is that of after the run's event `at`.

    Raises:
        DaemonError: the run has no such candidate (yet), or no such event.
        StreamUnknown: there is no such run.
    """
    old, new = (candidate(reader, run, name, at=at) for name in (a, b))
    lines = tuple(_shortened(list(_changes(old.source or "", new.source or ""))))
    return Comparison(
        run=run,
        a=old.id,
        b=new.id,
        added=sum(one.kind == "+" for one in lines),
        removed=sum(one.kind == "-" for one in lines),
        lines=lines,
    )


def _changes(old: str, new: str) -> Iterator[Changed]:
    before, after = old.split("\n"), new.split("\n")
    coloured = highlighted(old), highlighted(new)
    matcher = SequenceMatcher(None, before, after, autojunk=max(len(before), len(after)) > MOST_LINES)
    for kind, a_first, a_end, b_first, b_end in matcher.get_opcodes():
        if kind == "equal":
            for a, b in zip(range(a_first, a_end), range(b_first, b_end), strict=True):
                yield Changed(" ", a + 1, b + 1, tuple(coloured[1][b]))
            continue
        for a in range(a_first, a_end):
            yield Changed("-", a + 1, None, tuple(coloured[0][a]))
        for b in range(b_first, b_end):
            yield Changed("+", None, b + 1, tuple(coloured[1][b]))


def _shortened(lines: list[Changed]) -> Iterator[Changed]:
    """Leave out what is the same in both, but for a few lines around each change."""
    near = [False] * len(lines)
    for number, one in enumerate(lines):
        if one.kind != " ":
            first, end = max(0, number - AROUND), min(len(lines), number + AROUND + 1)
            near[first:end] = [True] * (end - first)
    skipped = 0
    for one, shown in zip(lines, near, strict=True):
        if not shown:
            skipped += 1
            continue
        if skipped:
            yield Changed("~", None, None, (), skipped)
            skipped = 0
        yield one
    if skipped:
        yield Changed("~", None, None, (), skipped)
