"""The kernels of a run as a tree: which was made from which, how fast each is, and how it ended."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from state.events import KernelReverted
from state.fold import RunState
from state.model import INITIAL_KEY, EffectKey, Role, Verdict
from state.reader import LogReader


class CandidateMark(StrEnum):
    """How a kernel ended; the value is its mark in a drawing."""

    BEST = "*"
    KEPT = "+"
    REVERTED = "<"
    DISCARDED = "-"
    DUPLICATE = "="
    REFUTED = "!"
    WRONG = "x"
    WAITS = "?"


MARK_MEANINGS: Mapping[CandidateMark, str] = {
    CandidateMark.BEST: "best",
    CandidateMark.KEPT: "kept",
    CandidateMark.REVERTED: "kept, then reverted",
    CandidateMark.DISCARDED: "discarded",
    CandidateMark.DUPLICATE: "duplicate",
    CandidateMark.REFUTED: "refuted",
    CandidateMark.WRONG: "not correct",
    CandidateMark.WAITS: "undecided",
}


@dataclass(frozen=True, slots=True)
class CandidateNode:
    """A kernel in the tree. `depth` is its distance from the initial kernel, which has 0.

    `speedup` is over its parent. `in_beam` is true if the next round improves it. `reason` is why it was
    discarded; `verdict` and `error` are the judge's.
    """

    id: str
    parent: str | None
    depth: int
    mark: CandidateMark
    in_beam: bool
    title: str | None
    technique: str | None
    author: str | None
    verdict: str | None
    error: str | None
    reason: str | None
    duplicate_of: str | None
    latency_ms: float | None
    predicted: bool | None
    speedup: float | None


@dataclass(frozen=True, slots=True)
class CandidateTree:
    """`nodes` are in drawing order: each kernel before its children, children by their place in the
    search.
    """

    run: str
    nodes: tuple[CandidateNode, ...]


def candidate_tree(reader: LogReader, run: str) -> CandidateTree:
    """Return the kernels of a run, including those of its ancestors.

    Raises:
        state.errors.StreamUnknown: there is no such run.
    """
    state, rows = reader.run_state(run), reader.attempt_rows(run)
    reverted = {event.dropped for event in _revert_events(reader, run)}
    below: dict[str | None, list[dict[str, Any]]] = {}
    known = {row["candidate"] for row in rows}
    for row in sorted(rows, key=_search_place):
        below.setdefault(row["parent"] if row["parent"] in known else None, []).append(row)
    beam = {entry.candidate.id for entry in state.beam}
    return CandidateTree(
        run,
        tuple(
            _candidate_node(row, depth, state, beam=beam, reverted=reverted)
            for row, depth in _walk_rows(below)
        ),
    )


def _search_place(row: Mapping[str, Any]) -> EffectKey:
    """Return a kernel's place in the search, because results arrive in a different order each time."""
    return EffectKey.parse(f"{row['candidate']}.{Role.EXECUTOR}")


def _walk_rows(below: Mapping[str | None, list[dict[str, Any]]]) -> Iterator[tuple[dict[str, Any], int]]:
    """Yield the rows depth first, without recursion: a lineage may be as long as a run."""
    waiting = [(row, 0) for row in reversed(below.get(None, []))]
    while waiting:
        row, depth = waiting.pop()
        yield row, depth
        waiting += [(child, depth + 1) for child in reversed(below.get(row["candidate"], []))]


def _candidate_node(
    row: dict[str, Any], depth: int, state: RunState, *, beam: Iterable[str], reverted: Iterable[str]
) -> CandidateNode:
    name = str(row["candidate"])
    first = name == INITIAL_KEY.candidate_id
    predicted = row["predicted"]
    return CandidateNode(
        id=name,
        parent=row["parent"],
        depth=depth,
        mark=_candidate_mark(
            row, best=state.best is not None and state.best.id == name, reverted=name in reverted
        ),
        in_beam=name in beam,
        title="initial kernel" if first else row["title"] or row["note"],
        technique=row["technique"],
        author=row["author"],
        verdict=row["verdict"],
        error=row["error_message"],
        reason=row["reason"],
        duplicate_of=row["duplicate_of"],
        latency_ms=row["latency_ms"],
        predicted=None if predicted is None else bool(predicted),
        speedup=row["speedup"],
    )


def _candidate_mark(row: dict[str, Any], *, best: bool, reverted: bool) -> CandidateMark:
    refuted = row["reason"] == "refuted"
    for holds, mark in (
        (best, CandidateMark.BEST),
        (refuted, CandidateMark.REFUTED),
        (reverted, CandidateMark.REVERTED),
        (row["decision"] == "kept", CandidateMark.KEPT),
        (row["reason"] == "duplicate", CandidateMark.DUPLICATE),
        (row["verdict"] not in (None, Verdict.CORRECT) or row["error_code"] is not None, CandidateMark.WRONG),
        (row["decision"] == "discarded", CandidateMark.DISCARDED),
    ):
        if holds:
            return mark
    return CandidateMark.WAITS


def _revert_events(reader: LogReader, run: str) -> Iterator[KernelReverted]:
    for item in reader.iterate_events(run, ("KernelReverted",)):
        if isinstance(item.event, KernelReverted):
            yield item.event
