"""A winner is simplified by an effect like any other, and lists, paths and stories show it."""

from __future__ import annotations

import pytest

from agent_core.effects import STARTED, SimplifyRequest, request_type
from agentctl.views.candidate import load_candidate
from agentctl.views.improvement_path import load_improvement_path
from daemon import predicting_roles
from daemon.command_models import run_id
from daemon.config import DaemonConfig
from daemon.home_owner import create_workers
from daemon.inbox import put_command
from state.events import EffectProgressed, ExecutionFailed, ExecutionStarted, KernelKept, effect_key
from state.model import RunConfig, SearchConfig, is_simplification
from state.reader import LogReader
from state.verify import verify_log
from tests.support import fakes
from tests.support.cluttered import CLUTTERED
from tests.support.command_line import ctl  # noqa: F401


def finish(home, config=fakes.SIMPLIFYING):
    run = fakes.submit_run(home, config)
    with fakes.simplifying() as workers:
        fakes.finish_runs(home, run, workers=workers)
    return run


@pytest.fixture
def reader(home):
    finish(home)
    with LogReader.open(home) as opened:
        yield opened


def run_of(reader: LogReader) -> str:
    (row,) = reader.run_rows()
    return str(row["run"])


def test_its_request_is_in_the_log_and_is_read_as_such(reader):
    items = [item.event for item in reader.read(stream=run_of(reader), limit=10_000)]
    (started,) = [
        one for one in items if isinstance(one, ExecutionStarted) and is_simplification(effect_key(one))
    ]
    key = effect_key(started)
    assert STARTED[key.role] is ExecutionStarted
    request = request_type(key).model_validate_json(reader.get_blob(started.request))
    assert isinstance(request, SimplifyRequest)
    (kept,) = [one for one in items if isinstance(one, KernelKept) and one.replaces is not None]
    assert request.best.id == kept.replaces


def test_its_predictions_are_kept_in_the_log(reader):
    parts = [one.event for one in reader.read(stream="system", limit=10_000)]
    kept = [one for one in parts if isinstance(one, EffectProgressed) and ".b2000." in one.key]
    assert sum(one.count for one in kept) == 3  # a kernel without each of the three constants


def test_lists_and_paths_end_with_the_simpler_kernel(home, reader):
    run, (row,) = run_of(reader), reader.run_rows()
    state = reader.run_state(run)
    assert row["best"] == state.best.id
    assert row["best_ms"] == state.best.latency_ms
    assert row["round"] == state.round
    path = load_improvement_path(reader, run)
    assert path.line[-1].candidate == state.best.id
    assert path.line[-1].parent == path.line[-2].candidate
    assert path.bests[-1].candidate == state.best.id
    view = load_candidate(reader, run, "best")
    assert (view.parent, view.note) == (state.best.parent, "simplified: a line less")
    assert verify_log(home).is_ok


def test_why_tells_it_as_a_step(ctl, reader):  # noqa: F811
    run = run_of(reader)
    told = fakes.join_wrapped_lines(ctl("why", run).out)
    parent = reader.run_state(run).best.parent
    assert f"Before the run ended, {parent} was simplified" in told
    assert "a line less" in told
    assert f"It took the place of {parent}" in told


def test_the_summary_of_a_run_has_it_in_the_lineage(home, ctl):  # noqa: F811
    run = finish(home)
    steps = ctl("resume", run, "--json").json["lineage"]
    assert steps[-1]["technique"] == "simplify"


def test_one_that_takes_too_long_leaves_the_winner(home, monkeypatch):
    monkeypatch.setattr(predicting_roles, "SIMPLIFY_SECONDS", 0.0)
    run = finish(home)
    with LogReader.open(home) as reader:
        items = [item.event for item in reader.read(stream=run, limit=10_000)]
        state = reader.run_state(run)
    failed = [one for one in items if isinstance(one, ExecutionFailed) and is_simplification(effect_key(one))]
    assert [one.error.code for one in failed] == ["deadline"]
    assert state.best.technique != "simplify"


@pytest.mark.slow
def test_a_real_run_ends_with_a_kernel_without_clutter(home):
    """By the built-in proposer and the simulator: what the search left in the text is gone."""
    search = SearchConfig(beam=2, plans=2, rounds=1, lookahead_predictions=24)
    config = RunConfig(problem="silu", size="reduced", starts="kernel", seed=3, search=search)
    command = fakes.create_submission(config, CLUTTERED)
    run = run_id(put_command(home, command), config.problem)
    fakes.finish_runs(home, run, workers=create_workers(home, DaemonConfig(evaluations=1)))
    with LogReader.open(home) as reader:
        state = reader.run_state(run)
        best = reader.get_blob(state.best.source).decode()
        winner = str(load_candidate(reader, run, state.best.parent).source)
    assert state.best.technique == "simplify"
    assert state.best.latency_ms < state.initial.latency_ms
    assert "SPARE" in winner
    assert "SPARE" not in best
    assert "rows, columns" not in best
