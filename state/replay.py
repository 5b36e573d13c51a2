"""Replay: folds a run from its rows alone, ancestors included, without snapshots, and compares every hash."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass

from state import queries, snapshots, stream_fold
from state.chain import GENESIS, check_link
from state.errors import LogDamaged, StreamUnknown
from state.fold import FOLD_VERSION, RunState
from state.model import SYSTEM_STREAM
from state.records import EventRow, ProgressCallback
from state.stream_fold import StreamState


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """A run as its rows give it up to `run_seq`, whose hash is `hash`.

    `state_hashes` counts the recorded state hashes that were compared; `other_folds` counts those that were
    not, because another fold version made them. `line` maps each stream that was read to its last run_seq.
    """

    state: RunState
    run_seq: int
    hash: str
    events: int
    state_hashes: int
    other_folds: int
    line: tuple[tuple[str, int], ...]


def replay_run(
    connection: sqlite3.Connection, run: str, to: int | None = None, progress: ProgressCallback | None = None
) -> ReplayResult:
    """Fold a run's rows from the first to run_seq `to` (None: the last).

    Raises:
        StreamUnknown: there is no such run, or it has no such event.
        LogDamaged: names the first row that does not continue the one before, was edited, cannot follow, or
            whose recorded state hash does not match.
    """
    state: StreamState | None = None
    link = (0, GENESIS)
    compared = {True: 0, False: 0}
    line: dict[str, int] = {}
    last = queries.last_row(connection, run) if to is None else None
    total = to if last is None else last.run_seq
    for row in queries.stream_rows(connection, run, after=0, upto=to):
        check_link(row, link)
        link = (row.run_seq, row.hash)
        state = snapshots.fold_row(state, row)
        line[row.stream] = row.run_seq
        if progress is not None and row.run_seq % queries.PAGE == 0:
            progress(row.run_seq, total or row.run_seq)
        if row.state_hash is not None:
            compared[_compare_state_hash(row, state)] += 1
    if not isinstance(state, RunState) or run == SYSTEM_STREAM or to not in (None, link[0]):
        raise StreamUnknown(f"no run {run}" if to is None else f"no event {run}@{to}")
    return ReplayResult(
        state, link[0], link[1].hex(), link[0], compared[True], compared[False], tuple(line.items())
    )


def _compare_state_hash(row: EventRow, state: StreamState) -> bool:
    """Compare a row's state hash; return False if another fold version made it, so it was not compared."""
    if row.fold != FOLD_VERSION:
        return False
    if stream_fold.state_hash(state) != row.state_hash:
        what = "the state after it is not the one that was recorded"
        raise LogDamaged(what, seq=row.seq, stream=row.stream, run_seq=row.run_seq)
    return True
