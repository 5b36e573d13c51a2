"""`replay`: a run as its rows alone give it, and the first of them that is not as it was written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from state.errors import LogDamaged, StreamUnknown
from state.events import RunForked, RunPaused, RunResumed
from state.fold import apply_event
from state.log import EventLog
from state.reader import LogReader
from state.records import NewEvent, RecordedEvent
from tests.support.scripted_runs import append_run


def test_a_replay_is_the_state_that_the_log_knows(home: Path, stored: list[RecordedEvent]) -> None:
    with LogReader.open(home) as reader:
        found = reader.replay_run("second")
        own = [item for item in stored if item.stream == "second"]
        assert found.state == reader.run_state("second")
        assert (found.run_seq, found.hash, found.events) == (len(own), own[-1].hash, len(own))
        assert found.state_hashes == sum(item.state_hash is not None for item in own) > 0
        assert (found.other_folds, found.line) == (0, (("second", len(own)),))


def test_any_prefix_of_a_legal_history_folds(home: Path, stored: list[RecordedEvent]) -> None:
    state = None
    with LogReader.open(home) as reader:
        for item in (item for item in stored if item.stream == "first"):
            state = apply_event(state, item.event)
            if item.run_seq % 7 == 1:
                assert reader.replay_run("first", item.run_seq).state == state


def test_a_fork_is_replayed_through_its_ancestors(log: EventLog) -> None:
    parent = append_run(log, "parent", seed=3)
    event = RunForked(parent="parent", parent_seq=20, parent_hash=parent[19].hash)
    log.append_now([NewEvent("child", event), NewEvent("child", RunPaused(reason="x"))])
    log.append_now([NewEvent("child", RunResumed())])
    with LogReader.open(log.home) as reader:
        assert reader.replay_run("child").state == log.run_state("child")
        assert reader.replay_run("child").line == (("parent", 20), ("child", 23))
        assert reader.replay_run("child", 12).state == reader.replay_run("parent", 12).state
        assert reader.event_hash("child", 12) == parent[11].hash


def test_what_is_not_there_is_named(home: Path, stored: list[RecordedEvent]) -> None:
    with LogReader.open(home) as reader:
        for run, to, words in (("none", None, "no run none"), ("first", 9999, "no event first@9999")):
            with pytest.raises(StreamUnknown, match=words):
                reader.replay_run(run, to)
        with pytest.raises(StreamUnknown):
            reader.replay_run("system")
        with pytest.raises(StreamUnknown, match="first@9999"):
            reader.event_hash("first", 9999)


def test_an_edited_row_is_named(home: Path, stored: list[RecordedEvent], damage: Callable[..., None]) -> None:
    damage("UPDATE event SET payload = payload || ' ' WHERE stream = 'first' AND run_seq = 9")
    with LogReader.open(home) as reader:
        assert reader.replay_run("first", 8).run_seq == 8
        with pytest.raises(LogDamaged, match=r"first@9\): its content"):
            reader.replay_run("first")


def test_a_state_that_is_not_the_recorded_one_is_named(
    home: Path, stored: list[RecordedEvent], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = next(item for item in stored if item.state_hash is not None)
    monkeypatch.setattr("state.stream_fold.state_hash", lambda state: b"another")
    with (
        LogReader.open(home) as reader,
        pytest.raises(LogDamaged, match="not the one that was recorded") as at,
    ):
        reader.replay_run(first.stream)
    assert at.value.seq == first.seq


def test_hashes_of_another_fold_are_counted_and_not_compared(
    home: Path, stored: list[RecordedEvent], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("state.replay.FOLD_VERSION", 99)
    with LogReader.open(home) as reader:
        found = reader.replay_run("first")
    assert (found.state_hashes, found.other_folds > 0) == (0, True)
