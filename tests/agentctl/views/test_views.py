"""Views of a finished run with known contents: what they say is what the log says, and all of it is JSON."""

from __future__ import annotations

import json

import pytest

from agentctl.views import as_json
from agentctl.views.candidate import load_candidate
from agentctl.views.overview import MAX_SHOWN, home_overview
from agentctl.views.owner_process import find_owner_process
from daemon.errors import DaemonError, UnknownRun
from state.log import EventLog
from state.model import INITIAL_KEY
from state.reader import LogReader
from tests.support import fakes

DAY_US = 86_400e6


@pytest.fixture
def reader(home, finished):
    with LogReader.open(home) as opened:
        yield opened


def test_the_overview_of_a_home_without_a_log_is_empty(home):
    home.mkdir()
    found = home_overview(None, find_owner_process(home), now_us=0)
    assert (found.runs, found.providers, found.hosts, found.day) == ((), (), (), None)
    assert found.daemon.state == "stopped"


def test_the_overview_says_what_the_state_says(home, finished, reader):
    (line,) = home_overview(reader, find_owner_process(home), now_us=DAY_US).runs
    state = reader.run_state(finished)
    assert (line.id, line.state, line.round) == (finished, "completed", state.round)
    assert (line.best, line.best_ms) == (state.best.id, state.best.latency_ms)
    assert line.speedup == pytest.approx(state.initial.latency_ms / state.best.latency_ms)
    assert line.caps.usd == state.config.cap_usd
    assert line.evaluations_per_hour is None  # it runs no more
    assert line.created <= line.updated
    assert json.loads(json.dumps(as_json(line)))["best"] == state.best.id


def test_a_run_that_is_driven_says_how_fast_it_judges_and_what_is_in_flight(home):
    run = fakes.submit_run(home)
    fakes.take_commands(home)
    with EventLog.open(home), LogReader.open(home) as reader:
        (line,) = home_overview(reader, find_owner_process(home), now_us=DAY_US).runs
        assert (line.id, line.state, line.in_flight_roles) == (run, "queued", {})
        assert line.evaluations_per_hour is None


def test_unknown_runs_are_refused_with_the_nearest_one(home, finished, reader):
    with pytest.raises(UnknownRun, match="unknown run") as raised:
        home_overview(reader, find_owner_process(home), now_us=0, run=finished[:-1])
    assert finished in raised.value.hint


def test_of_many_runs_the_newest_are_shown_and_all_that_have_not_ended(home):
    old = fakes.submit_run(home)
    ended = [
        fakes.submit_run(home, fakes.CONFIG.model_copy(update={"seed": seed}), id_=f"{seed:020d}-00000000")
        for seed in range(1, 4)
    ]
    fakes.finish_runs(home, *ended)
    with LogReader.open(home) as reader:
        few = home_overview(reader, find_owner_process(home), now_us=0)
        assert len(few.runs) == 4 <= MAX_SHOWN
        assert few.more == 0
        assert {line.id for line in few.runs} == {old, *ended}


def test_a_candidate_is_told_from_plan_to_lesson(finished, reader):
    state = reader.run_state(finished)
    best = load_candidate(reader, finished, "best")
    assert best.id == state.best.id == best.parents[-1] or best.parents[0] == INITIAL_KEY.candidate_id
    assert best.verdict == "correct"
    assert best.latency.ms == state.best.latency_ms
    assert best.gain == pytest.approx(state.initial.latency_ms / state.best.latency_ms)
    assert best.source == reader.get_blob(state.best.source).decode()
    assert best.counters == {"dma_active_time_percent": state.best.latency_ms}
    assert best.expected is not None
    assert best.lesson.predicted_speedup == best.expected.speedup
    assert best.decision == "kept"
    assert {"plan", "kernel", "evaluation", "decision", "reflection"} <= best.places.keys()
    parent = load_candidate(reader, finished, best.parent)
    assert best.id in parent.children
    assert best.speedup == pytest.approx(parent.latency.ms / best.latency.ms)


def test_the_places_of_a_candidate_name_events_about_it(finished, reader):
    for row in reader.attempt_rows(finished):
        found = load_candidate(reader, finished, row["candidate"])
        for place in found.places.values():
            run, _, number = place.rpartition("@")
            assert found.id.rpartition(".k")[0] in json.dumps(
                reader.run_event(run, int(number)).event.model_dump(mode="json")
            )
        assert json.dumps(as_json(found))


def test_the_initial_kernel_has_a_source_and_no_plan(finished, reader):
    first = load_candidate(reader, finished, "initial")
    assert (first.id, first.parent, first.parents, first.expected) == (
        INITIAL_KEY.candidate_id, None, (), None,
    )  # fmt: skip
    assert first.source == fakes.KERNEL
    assert first.author == "person"


def test_unknown_candidates_are_refused_with_the_nearest_one(finished, reader):
    with pytest.raises(DaemonError, match="unknown candidate 'bst'") as raised:
        load_candidate(reader, finished, "bst")
    assert raised.value.hint == "did you mean best?"
    assert raised.value.code == "unknown_candidate"
