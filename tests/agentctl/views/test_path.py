"""The path of improvements: bests in the order of time, the line that led to the last, what left again."""

from __future__ import annotations

from itertools import pairwise

import pytest

from agentctl.views import as_json
from agentctl.views.improvement_path import load_improvement_path
from state.errors import StreamUnknown
from state.reader import LogReader
from tests.support import fakes


@pytest.fixture
def walked(home, finished):
    with LogReader.open(home) as reader:
        yield load_improvement_path(reader, finished), reader.run_state(finished), reader


def test_bests_get_faster_and_end_with_the_best(walked):
    path, state, _ = walked
    assert path.predicted is True
    assert path.bests[0].candidate == state.initial.id
    assert path.bests[-1].candidate == state.best.id
    assert len(path.bests) > 1
    assert all(one.latency.ms > other.latency.ms for one, other in pairwise(path.bests))
    assert path.bests[-1].total == state.initial.latency_ms / state.best.latency_ms


def test_the_line_leads_from_the_initial_kernel_to_the_best(walked):
    path, state, reader = walked
    assert [path.line[0].candidate, path.line[-1].candidate] == [state.initial.id, state.best.id]
    for parent, child in pairwise(path.line):
        assert child.parent == parent.candidate
        assert child.speedup == pytest.approx(parent.latency.ms / child.latency.ms)
        assert child.expected is not None
        assert child.grade
        assert child.lesson
        assert reader.get_blob(child.source)


def test_every_verdict_is_a_point_and_the_best_never_rises(walked):
    path, state, _ = walked
    assert [point.evaluations for point in path.points] == list(range(1, len(path.points) + 1))
    assert path.points[-1].best_ms == state.best.latency_ms
    lows = [point.best_ms for point in path.points if point.best_ms is not None]
    assert lows == sorted(lows, reverse=True)
    wrong = [point for point in path.points if point.verdict != "correct"]
    assert wrong
    assert all(point.ms is None for point in wrong)


def test_a_view_is_json(walked):
    path, _, _ = walked
    told = as_json(path)
    assert told["bests"][0]["latency"]["ms"] == path.bests[0].latency.ms


def test_what_was_refuted_is_taken_back_and_is_no_best(home):
    run = fakes.submit_run(home, fakes.REFUTING)
    fakes.finish_runs(home, run, workers=fakes.refuting_workers())
    with LogReader.open(home) as reader:
        path, state = load_improvement_path(reader, run), reader.run_state(run)
    refuted = [one for one in path.taken_back if one.kind == "refuted"]
    assert refuted
    assert refuted[-1].restored == state.best.id
    assert {one.candidate for one in refuted}.isdisjoint(one.candidate for one in path.bests)
    assert path.bests[-1].candidate == state.best.id
    assert path.points[-1].best_ms == state.best.latency_ms


def test_of_no_run_there_is_no_path(home, finished):
    with LogReader.open(home) as reader, pytest.raises(StreamUnknown):
        load_improvement_path(reader, "none")
