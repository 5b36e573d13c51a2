"""The kernels of a run as a tree: what was made from what, how fast it is, and what became of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from state.events import KernelReverted
from state.fold import RunState
from state.model import INITIAL_KEY, EffectKey, Role, Verdict
from state.reader import LogReader


class Mark(StrEnum):
    """What became of a kernel; the value stands before it in a drawing."""

    BEST = "*"
    KEPT = "+"
    REVERTED = "<"
    DISCARDED = "-"
    DUPLICATE = "="
    REFUTED = "!"
    WRONG = "x"
    WAITS = "?"


MEANING: Mapping[Mark, str] = {
    Mark.BEST: "best",
    Mark.KEPT: "kept",
    Mark.REVERTED: "kept, then reverted",
    Mark.DISCARDED: "discarded",
    Mark.DUPLICATE: "duplicate",
    Mark.REFUTED: "refuted",
    Mark.WRONG: "not correct",
    Mark.WAITS: "undecided",
}


@dataclass(frozen=True, slots=True)
class Node:
    """A kernel in the tree. `depth` counts the kernels between it and the initial one, which has 0.

    `speedup` is over its parent. `in_beam`: the next round improves it. `reason` is why it was discarded,
    `verdict` and `error` what the judge said.
    """

    id: str
    parent: str | None
    depth: int
    mark: Mark
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
class Tree:
    """`nodes` are in the order of a drawing: each kernel before those made from it, these by their places."""

    run: str
    nodes: tuple[Node, ...]


def tree(reader: LogReader, run: str) -> Tree:
    """Return the kernels of a run, those of its ancestors included.

    Raises:
        state.errors.StreamUnknown: there is no such run.
    """
    state, rows = reader.state(run), reader.attempts(run)
    reverted = {event.dropped for event in _reverts(reader, run)}
    below: dict[str | None, list[dict[str, Any]]] = {}
    known = {row["candidate"] for row in rows}
    for row in sorted(rows, key=_place):
        below.setdefault(row["parent"] if row["parent"] in known else None, []).append(row)
    beam = {entry.candidate.id for entry in state.beam}
    return Tree(run, tuple(_node(row, depth, state, beam, reverted) for row, depth in _walk(below)))


def _place(row: Mapping[str, Any]) -> EffectKey:
    """Return where in the search a kernel is from: results arrive in another order each time."""
    return EffectKey.parse(f"{row['candidate']}.{Role.EXECUTOR}")


def _walk(below: Mapping[str | None, list[dict[str, Any]]]) -> Iterator[tuple[dict[str, Any], int]]:
    """Yield the rows depth first, without recursion: a line of kernels may be as long as a run."""
    waiting = [(row, 0) for row in reversed(below.get(None, []))]
    while waiting:
        row, depth = waiting.pop()
        yield row, depth
        waiting += [(child, depth + 1) for child in reversed(below.get(row["candidate"], []))]


def _node(
    row: dict[str, Any], depth: int, state: RunState, beam: Iterable[str], reverted: Iterable[str]
) -> Node:
    name = str(row["candidate"])
    first = name == INITIAL_KEY.candidate
    predicted = row["predicted"]
    return Node(
        id=name,
        parent=row["parent"],
        depth=depth,
        mark=_mark(row, best=state.best is not None and state.best.id == name, reverted=name in reverted),
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


def _mark(row: dict[str, Any], *, best: bool, reverted: bool) -> Mark:
    refuted = row["reason"] == "refuted"
    for holds, mark in (
        (best, Mark.BEST),
        (refuted, Mark.REFUTED),
        (reverted, Mark.REVERTED),
        (row["decision"] == "kept", Mark.KEPT),
        (row["reason"] == "duplicate", Mark.DUPLICATE),
        (row["verdict"] not in (None, Verdict.CORRECT) or row["error_code"] is not None, Mark.WRONG),
        (row["decision"] == "discarded", Mark.DISCARDED),
    ):
        if holds:
            return mark
    return Mark.WAITS


def _reverts(reader: LogReader, run: str) -> Iterator[KernelReverted]:
    for item in reader.history(run, ("KernelReverted",)):
        if isinstance(item.event, KernelReverted):
            yield item.event
