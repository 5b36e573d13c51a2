"""What was folded once is not folded again, and never taken for what came after it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from state import fold_cache, queries, snapshots
from state.errors import StreamUnknown
from state.events import RunCancelled, RunForked, RunPaused, RunResumed
from state.fold import RunState, apply_event, dump_semantic, state_hash
from state.log import EventLog
from state.model import RunStatus, canonical_json
from state.reader import LogReader
from state.records import NewEvent
from state.semantic_state import encode_semantic
from tests.support.scripted_runs import ScriptedRun, append_run

RUN = "run"


@pytest.fixture
def killed(home: Path) -> Path:
    """A home with a run under way, as SIGKILL leaves one: there are no snapshots."""
    with EventLog.open(home) as log:
        for step in ScriptedRun(seed=3).beginning():
            log.append_now([NewEvent(RUN, step.event)], blobs=step.blobs)
        after = home.with_name("killed")
        shutil.copytree(home, after)
    return after


@pytest.fixture
def folds(monkeypatch) -> list[str]:
    """The rows that are folded from here on, by the name of their event."""
    seen: list[str] = []
    replay = snapshots.fold_row

    def counted(state, row, event=None):
        seen.append(row.type)
        return replay(state, row, event)

    monkeypatch.setattr(snapshots, "fold_row", counted)
    return seen


def test_a_run_is_folded_once_for_all_who_look_and_for_the_writer(killed: Path, folds: list[str]) -> None:
    with EventLog.open(killed) as log:
        first = log.run_state(RUN)
        rows = log.run_seq(RUN)
        assert [log.run_state(RUN) for _ in range(3)] == [first] * 3
        log.append_now([NewEvent(RUN, RunPaused(reason="enough"))])
        assert len(folds) == rows
        assert log.run_state(RUN).status is RunStatus.PAUSED
        assert len(folds) == rows


def test_what_was_folded_is_given_up_for_the_tip_of_the_writer(killed: Path) -> None:
    with EventLog.open(killed) as log:
        log.run_state(RUN)
        assert log._appender.folded._tips.keys() == {RUN}
        log.append_now([NewEvent(RUN, RunPaused(reason="enough"))])
        assert log._appender.folded._tips == {}


def test_what_came_after_it_is_never_missed(killed: Path) -> None:
    """A tip that is kept too long: here since before the events that the log holds now."""
    with EventLog.open(killed) as log:
        log.run_state(RUN)
        stale = log._appender.folded._tips[RUN]
        log.append_now([NewEvent(RUN, RunPaused(reason="enough"))])
        log._appender.folded._tips[RUN] = stale
        log._appender._tips = snapshots.TipCache()
        assert log.run_state(RUN).status is RunStatus.PAUSED
        log._appender.folded._tips[RUN] = stale
        (resumed,) = log.append_now([NewEvent(RUN, RunResumed(reason="go on"))])
        assert resumed.run_seq == stale.run_seq + 2
        found = log.run_state(RUN)
    with LogReader.open(killed) as reader:
        assert state_hash(reader.replay_run(RUN).state) == state_hash(found)


def test_runs_that_ended_are_not_kept(killed: Path) -> None:
    with EventLog.open(killed) as log:
        log.append_now([NewEvent(RUN, RunCancelled(reason="no more"))])
        append_run(log, "other", seed=1)
    with EventLog.open(killed) as log:
        assert log.run_state(RUN).has_ended
        assert log.run_state("other").has_ended
        assert log._appender.folded._tips == {}


def test_only_so_many_are_kept(killed: Path, monkeypatch) -> None:
    monkeypatch.setattr(fold_cache, "MAX_STREAMS", 2)
    with EventLog.open(killed) as log:
        begun = next(iter(ScriptedRun(seed=3).beginning()))
        for run in "abcd":
            log.append_now([NewEvent(run, begun.event)], blobs=begun.blobs)
    with EventLog.open(killed) as log:
        assert [log.run_state(run).round for run in "abcd"] == [0] * 4
        assert log._appender.folded._tips.keys() == {"c", "d"}


def test_a_fork_is_folded_through_its_ancestors(killed: Path, folds: list[str]) -> None:
    with EventLog.open(killed) as log:
        at = log.run_seq(RUN)
        log.append_now(
            [NewEvent("child", RunForked(parent=RUN, parent_seq=at, parent_hash=log.event_hash(RUN, at)))]
        )
        after = killed.with_name("again")
        shutil.copytree(killed, after)
    folds.clear()
    with EventLog.open(after) as log:
        assert log.run_state("child") == log.run_state("child")
        assert len(folds) == at + 1
        assert queries.last_row(log._appender.connection, "child") is not None


def test_an_unknown_run_is_named(killed: Path) -> None:
    with EventLog.open(killed) as log, pytest.raises(StreamUnknown, match="no run nobody"):
        log.run_state("nobody")


def test_the_texts_that_are_remembered_are_those_of_the_state() -> None:
    state: RunState | None = None
    for step in ScriptedRun(rounds=3, slots=3, plans=2).steps():
        state = apply_event(state, step.event)
        assert encode_semantic(state) == canonical_json(dump_semantic(state))
