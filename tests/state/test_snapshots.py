"""States: any cut of a history folds to the same state, with snapshots or without."""

from __future__ import annotations

import logging
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from state import snapshots, stream_fold
from state.events import CommandReceived, ConfigChanged, Event
from state.fold import FOLD_VERSION, RunState, apply_event, state_hash
from state.log import EventLog
from state.model import SYSTEM_STREAM
from state.reader import LogReader
from state.records import NewEvent, RecordedEvent
from state.verify import verify_log
from tests.support.scripted_runs import ScriptedRun, append_run

Damage = Callable[..., None]
HISTORY = [step.event for step in ScriptedRun(seed=9, rounds=3).steps()]


def fold(events: list[Event], state: RunState | None = None) -> RunState | None:
    for event in events:
        state = apply_event(state, event)
    return state


WHOLE = fold(HISTORY)


@given(st.integers(1, len(HISTORY) - 1))
def test_folding_in_two_parts_is_folding_at_once(cut: int) -> None:
    assert fold(HISTORY[cut:], fold(HISTORY[:cut])) == WHOLE


@given(st.integers(1, len(HISTORY) - 1))
def test_a_stored_state_and_the_rest_fold_to_the_whole(cut: int) -> None:
    before = fold(HISTORY[:cut])
    restored = RunState.model_validate_json(before.model_dump_json())
    assert restored == before
    assert state_hash(fold(HISTORY[cut:], restored)) == state_hash(WHOLE)


def count_snapshots(home: Path) -> int:
    with LogReader.open(home) as reader:
        (number,) = reader._handle.connection().execute("SELECT count(*) FROM snapshot").fetchone()
        return number


def states(home: Path) -> list[RunState]:
    with LogReader.open(home) as reader:
        return [reader.run_state("first", to=to) for to in (5, 50, 100)] + [reader.run_state("second")]


def test_deleting_all_snapshots_changes_nothing(
    home: Path, stored: list[RecordedEvent], damage: Damage
) -> None:
    with_snapshots = states(home)
    assert count_snapshots(home) > 0
    damage("DELETE FROM snapshot", "DELETE FROM meta WHERE key = 'verified'")
    assert states(home) == with_snapshots
    with EventLog.open(home) as log:
        assert log.run_state("second") == with_snapshots[-1]
    assert verify_log(home).is_ok


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE snapshot SET data = zeroblob(9)",
        "UPDATE snapshot SET digest = zeroblob(32)",
        "UPDATE snapshot SET head = zeroblob(32)",
        "UPDATE snapshot SET run_seq = run_seq - 1",
        f"UPDATE snapshot SET fold = {FOLD_VERSION + 1}",
    ],
)
def test_a_snapshot_that_does_not_fit_is_not_used(
    home: Path, stored: list[RecordedEvent], damage: Damage, statement: str
) -> None:
    before = states(home)
    damage(statement)
    assert states(home) == before


def test_an_ignored_snapshot_is_mentioned(
    home: Path, stored: list[RecordedEvent], damage: Damage, caplog
) -> None:
    damage("UPDATE snapshot SET digest = zeroblob(32)")
    with caplog.at_level(logging.WARNING, logger="state.snapshots"):
        states(home)
    assert "snapshot of second@" in caplog.text


def test_a_snapshot_of_an_older_fold_makes_way(home: Path, damage: Damage) -> None:
    with EventLog.open(home) as log:
        log.append_now([NewEvent("r", HISTORY[0])])
    damage(f"UPDATE snapshot SET fold = {FOLD_VERSION - 1}")
    with EventLog.open(home) as log:
        log.append_now([NewEvent("r", HISTORY[1])])
    with LogReader.open(home) as reader:
        rows = reader._handle.connection().execute("SELECT stream, run_seq, fold FROM snapshot").fetchall()
    assert rows == [("r", 2, FOLD_VERSION)]


def test_snapshots_are_taken_on_the_way(home: Path) -> None:
    steps = ScriptedRun(seed=9, rounds=60).steps()
    with EventLog.open(home) as log:
        for _ in range(5):
            batch = list(islice(steps, 300))
            log.append_now(
                [NewEvent("r", step.event) for step in batch], blobs=[b for s in batch for b in s.blobs]
            )
        log.append_now([NewEvent("s", HISTORY[0])])  # the writer kept house before it took this one
        with LogReader.open(home) as reader:
            rows = reader._handle.connection().execute("SELECT stream, run_seq FROM snapshot").fetchall()
    assert rows == [("r", 1200)]


def test_of_the_system_stream_little_is_left_to_fold(home: Path) -> None:
    with EventLog.open(home) as log:
        for number in range(snapshots.SYSTEM_SNAPSHOT_EVERY + 5):
            event = CommandReceived(id=str(number), verb="pause", payload="0" * 64)
            log.append_now([NewEvent(SYSTEM_STREAM, event)])
        log.append_now([NewEvent(SYSTEM_STREAM, ConfigChanged(config={}))])  # the turn before is over
        with LogReader.open(home) as reader:
            saved = {
                at
                for stream, at in snapshots.snapshot_keys(reader._handle.connection())
                if stream == SYSTEM_STREAM
            }
            assert saved == {snapshots.SYSTEM_SNAPSHOT_EVERY}


def test_opening_replays_only_what_follows_the_snapshot(home: Path, monkeypatch) -> None:
    with EventLog.open(home) as log:
        for step in HISTORY[:40]:
            log.append_now([NewEvent("r", step)])
    folded: list[Event] = []
    real = stream_fold.fold_event

    def counting(stream, state, event):
        folded.append(event)
        return real(stream, state, event)

    monkeypatch.setattr(stream_fold, "fold_event", counting)
    with EventLog.open(home) as log:
        log.append_now([NewEvent("r", HISTORY[40])])
        assert folded == [HISTORY[40]]


def test_state_hashes_are_recorded_at_rounds_ends_and_on_the_way(log: EventLog) -> None:
    stored = append_run(log, "r", rounds=8)
    marked = [item for item in stored if item.state_hash is not None]
    assert {item.type for item in marked if item.run_seq % 256} == {"RoundCompleted", "RunCompleted"}
    assert {item.run_seq for item in marked} >= {n for n in range(1, len(stored) + 1) if n % 256 == 0}
    for item in marked[:3]:
        state = fold([kept.event for kept in stored[: item.run_seq]])
        assert item.state_hash == state_hash(state)
