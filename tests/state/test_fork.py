"""Runs that continue another: the chain goes on, nothing is copied, reading walks the ancestors."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from state.errors import DuplicateOutcome, EventRefused, LogDamaged
from state.events import RunForked, RunPaused, RunResumed
from state.fold import apply_event
from state.log import EventLog
from state.reader import LogReader
from state.records import NewEvent, RecordedEvent
from state.verify import verify_log
from tests.support.scripted_runs import ScriptedRun, append_run

CUT = 20


def fork(log: EventLog, child: str, parent: RecordedEvent) -> RecordedEvent:
    event = RunForked(parent=parent.stream, parent_seq=parent.run_seq, parent_hash=parent.hash)
    return log.append_now([NewEvent(child, event)])[0]


@pytest.fixture
def family(log: EventLog) -> list[list[RecordedEvent]]:
    """A run, a fork of it in mid-round, and a fork of the fork; each with events after the cut."""
    parent = append_run(log, "parent", seed=3)
    child = [fork(log, "child", parent[CUT - 1])]
    child += log.append_now([NewEvent("child", RunPaused(reason="look")), NewEvent("child", RunResumed())])
    grandchild = [fork(log, "grandchild", child[1])]
    grandchild += log.append_now([NewEvent("grandchild", RunResumed(reason="on"))])
    return [parent, child, grandchild]


def test_a_fork_goes_on_counting_where_its_parent_was(family: list[list[RecordedEvent]]) -> None:
    _, child, grandchild = family
    assert [item.run_seq for item in child] == [CUT + 1, CUT + 2, CUT + 3]
    assert [item.run_seq for item in grandchild] == [CUT + 3, CUT + 4]


def test_reading_a_fork_walks_its_ancestors(log: EventLog, family: list[list[RecordedEvent]]) -> None:
    parent, child, grandchild = family
    line = parent[:CUT] + child[:2] + grandchild
    assert log.read(stream="grandchild", limit=10_000) == line
    with LogReader.open(log.home) as reader:
        assert reader.read(stream="grandchild", newest=True, limit=5) == line[-5:]
        assert reader.read(stream="grandchild", after=parent[CUT - 2].seq, limit=3) == line[CUT - 1 : CUT + 2]
        assert reader.read(stream="grandchild", types=["RunForked"]) == [child[0], grandchild[0]]


def test_a_fork_s_state_is_the_fold_of_its_line(log: EventLog, family: list[list[RecordedEvent]]) -> None:
    parent, child, grandchild = family
    state = None
    for item in parent[:CUT] + child[:2] + grandchild:
        state = apply_event(state, item.event)
    assert log.run_state("grandchild") == state
    with LogReader.open(log.home) as reader:
        assert reader.run_state("grandchild") == state
        assert reader.run_state("grandchild", to=CUT - 3) == reader.run_state("parent", to=CUT - 3)


def test_forks_survive_a_restart_and_verify(home: Path) -> None:
    with EventLog.open(home) as log:
        parent = append_run(log, "parent", seed=3)
        fork(log, "child", parent[CUT - 1])
        state = log.run_state("child")
    assert verify_log(home).is_ok
    with EventLog.open(home, full_check=True) as log:
        assert log.run_state("child") == state
        (item,) = log.append_now([NewEvent("child", RunPaused(reason="x"))])
        assert item.run_seq == CUT + 2


def test_a_fork_of_another_event_than_it_says_is_refused(log: EventLog) -> None:
    parent = append_run(log, "parent", rounds=1)
    wrong = RunForked(parent="parent", parent_seq=5, parent_hash=parent[5].hash)
    nowhere = RunForked(parent="parent", parent_seq=10_000, parent_hash=parent[5].hash)
    for event in (wrong, nowhere):
        with pytest.raises(EventRefused, match="is not the event to fork from"):
            log.append_now([NewEvent("child", event)])
    assert log.run_seq("child") == 0


def test_a_run_cannot_become_a_fork_later(log: EventLog) -> None:
    parent = append_run(log, "parent", rounds=1)
    log.append_now([NewEvent("other", next(ScriptedRun().steps()).event)])
    with pytest.raises(DuplicateOutcome, match="created is recorded already"):
        fork(log, "other", parent[0])
    assert log.run_seq("other") == 1


def test_an_edited_parent_breaks_its_fork_too(home: Path, damage: Callable[..., None]) -> None:
    with EventLog.open(home) as log:
        fork(log, "child", append_run(log, "parent", rounds=1)[CUT - 1])
    damage("UPDATE stream SET parent_seq = 3 WHERE id = 'child'")
    with pytest.raises(LogDamaged, match=r"child@21"):
        EventLog.open(home, full_check=True)
