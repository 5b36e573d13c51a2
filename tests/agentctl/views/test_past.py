"""Views of the past are those that a log which ended there gives: nothing of what came later shows."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agentctl.views.candidate import load_candidate
from agentctl.views.health import run_health
from agentctl.views.spending import load_spending
from daemon.errors import DaemonError
from state.log import EventLog
from state.reader import LogReader
from tests.support import simulated_logs as recorded
from tests.support.sweeps import parametrize_sweep

RUN, FORK = "toy-1", "toy-2"


@pytest.fixture(scope="module")
def world():
    return recorded.world_of().finish()


@pytest.fixture(scope="module")
def events(world):
    return recorded.asking(world)


@pytest.fixture(scope="module")
def reader(world, events, tmp_path_factory):
    home = tmp_path_factory.mktemp("past") / "home"
    with EventLog.open(home) as log:
        recorded.store(log, RUN, events, blobs=[*world.blobs.values()])
        ends = [place for place, event in enumerate(events, 1) if event.type == "RoundCompleted"]
        recorded.fork(log, FORK, RUN, ends[1])
    with LogReader.open(home) as found:
        yield found


@parametrize_sweep("share", [0.02, 0.1, 0.33, 0.5, 0.75, 0.9, 1.0], quick=[0.1, 0.5, 1.0])
def test_a_moment_is_told_as_when_it_was_the_latest(reader, world, events, tmp_path, share):
    at = max(1, round(share * len(events)))
    home = tmp_path / "home"
    with EventLog.open(home) as log:
        recorded.store(log, RUN, events[:at], blobs=[*world.blobs.values()])
    with LogReader.open(home) as then:
        assert load_spending(reader, RUN, at=at) == load_spending(then, RUN)
        assert run_health(reader, RUN, at=at) == run_health(then, RUN)
        rows = then.attempt_rows(RUN)
        assert len(rows) == len(reader.attempt_rows(RUN, upto=at))
        for row in rows:
            name = str(row["candidate"])
            assert load_candidate(reader, RUN, name, at=at) == load_candidate(then, RUN, name)


def test_a_fork_s_past_is_its_parent_s(reader, events):
    at = len(events) // 4
    mine, theirs = (load_spending(reader, run, at=at) for run in (FORK, RUN))
    assert mine.spent == theirs.spent != ()
    assert replace(run_health(reader, FORK, at=at), troubles=()) == replace(
        run_health(reader, RUN, at=at), troubles=()
    )
    name = str(reader.attempt_rows(RUN, upto=at)[-1]["candidate"])
    assert load_candidate(reader, FORK, name, at=at) == replace(
        load_candidate(reader, RUN, name, at=at), run=FORK
    )


def test_what_came_later_is_unknown(reader, events):
    last = str(reader.attempt_rows(RUN)[-1]["candidate"])
    with pytest.raises(DaemonError, match="unknown candidate"):
        load_candidate(reader, RUN, last, at=10)
    with pytest.raises(DaemonError, match="no event"):
        load_candidate(reader, RUN, "initial", at=len(events) + 1)
    with pytest.raises(DaemonError, match="no event"):
        load_spending(reader, RUN, at=len(events) + 1)


def test_health_says_who_answered_where_kernels_ran_and_what_failed(reader, events):
    found = run_health(reader, RUN)
    (house,) = found.providers
    failed = sum(event.type == "CallFailed" for event in events)
    assert (house.name, house.state, house.failed) == ("house", "up", failed)
    assert {one.host for one in found.hosts} == {"trn-a", "trn-a-b"}
    assert sum(one.verdicts for one in found.hosts) == found.of_verdicts
    assert len(found.troubles) == min(10, failed)
    assert found.troubles[0].time >= found.troubles[-1].time
    assert run_health(reader, RUN, at=1).providers == ()
