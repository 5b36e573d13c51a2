"""Views of any moment of a run, and of kernels' profiles: what they show is what was so then."""

from __future__ import annotations

import json

import pytest

from agentctl.views import as_json
from agentctl.views.roofline import kernel_roofline, profile_target
from agentctl.views.run_at_event import run_at_event
from agentctl.views.series import COLUMNS, candidate_series
from agentctl.views.timeline import busy_timeline
from daemon.errors import UnknownEvent
from state.events import BeamSelected
from state.fold import RunState, apply_event
from state.reader import LogReader
from tests.support import simulated_logs as recorded

RUN = "toy-1"


@pytest.fixture(scope="module")
def world():
    return recorded.world_of().finish()


@pytest.fixture(scope="module")
def reader(world, tmp_path_factory):
    home = tmp_path_factory.mktemp("moments") / "home"
    recorded.record(home, {RUN: world})
    with LogReader.open(home) as found:
        yield found


@pytest.fixture(scope="module")
def states(world) -> list[RunState]:
    """The run's state after each of its events."""
    found, state = [], None
    for event in recorded.events_of(world):
        state = apply_event(state, event)
        found.append(state)
    return found


def test_a_moment_is_the_state_after_its_event(reader, states):
    for at in (1, 2, len(states) // 3, len(states) // 2, len(states)):
        state, seen = states[at - 1], run_at_event(reader, RUN, at=at)
        assert (seen.at, seen.of) == (at, len(states))
        assert seen.run.round == state.round
        assert seen.run.best == (state.best.id if state.best else None)
        assert [one.candidate for one in seen.beam] == [entry.candidate.id for entry in state.beam]
        assert {f"{one.candidate}.{one.role}" for one in seen.in_flight} == set(state.open)
        assert len(seen.experiences) == min(20, len(state.memory))
        json.dumps(as_json(seen), allow_nan=False)
    assert run_at_event(reader, RUN) == run_at_event(reader, RUN, at=len(states))


def test_there_is_no_moment_beyond_the_last_event(reader, states):
    with pytest.raises(UnknownEvent, match=f"no event {len(states) + 1}") as raised:
        run_at_event(reader, RUN, at=len(states) + 1)
    assert raised.value.hint == f"its last is {RUN}@{len(states)}"


def test_a_series_has_every_candidate_and_beam_up_to_the_moment(reader, world, states):
    events = recorded.events_of(world)
    whole = candidate_series(reader, RUN)
    assert whole.at == len(events)
    assert len(whole.rows) == len(reader.attempt_rows(RUN))
    assert all(len(row) == len(COLUMNS) for row in whole.rows)
    assert [beam.round for beam in whole.beams] == [one.round for one in world.of(BeamSelected)]
    half = candidate_series(reader, RUN, at=len(events) // 2)
    assert 0 < len(half.rows) < len(whole.rows)
    assert all(beam.run_seq <= len(events) // 2 for beam in half.beams)
    assert half.beams == whole.beams[: len(half.beams)]


def test_what_came_since_completes_a_series(reader, world):
    events = recorded.events_of(world)
    half, rest = (
        candidate_series(reader, RUN, at=len(events) // 2),
        candidate_series(reader, RUN, since=len(events) // 2),
    )
    merged = {row[0]: row for row in half.rows} | {row[0]: row for row in rest.rows}
    assert merged == {row[0]: row for row in candidate_series(reader, RUN).rows}
    assert half.beams + rest.beams == candidate_series(reader, RUN).beams
    assert len(rest.rows) < len(candidate_series(reader, RUN).rows)


def test_a_kernel_s_place_under_the_roofline_follows_from_its_counters():
    counters = json.loads(recorded.profile_of(recorded.KERNEL, 2.0))["counters"]
    found = kernel_roofline(counters, "trn2")
    assert found.bandwidth_bytes == pytest.approx(716e9)
    assert found.peak_flops == pytest.approx(128 * 716e9)
    assert found.intensity == pytest.approx(0.9 * 5.4e9 / 8.4e6)
    assert found.attained_flops == pytest.approx(0.9 * 5.4e9 / 2e-3)
    assert found.side == "compute"
    assert found.attained_percent == pytest.approx(100 * found.attained_flops / found.peak_flops)


@pytest.mark.parametrize("missing", ["total_time", "peak_flops_bandwidth_ratio", "mbu_estimated_percent"])
def test_counters_that_say_too_little_give_no_roofline(missing):
    counters = json.loads(recorded.profile_of(recorded.KERNEL, 2.0))["counters"]
    assert kernel_roofline({**counters, missing: 0.0}, "trn2") is None
    others = {name: value for name, value in counters.items() if name != missing}
    assert kernel_roofline(others, "trn2") is None


def test_a_kernel_without_products_has_a_share_of_the_bandwidth_only():
    counters = json.loads(recorded.profile_of(recorded.KERNEL, 2.0))["counters"]
    idle = {"hardware_flops": 0, "transpose_flops": 0, "vector_engine_active_time_percent": 0}
    found = kernel_roofline({**counters, **idle}, "trn2")
    assert (found.intensity, found.attained_flops, found.side) == (None, None, "memory")
    assert found.bandwidth_percent == pytest.approx(counters["mbu_estimated_percent"])


def test_engines_that_work_by_elements_have_roofs_of_their_own():
    """By the target's table: 128 lanes, a vector engine of 0.96 GHz, a scalar one of 1.2 GHz."""
    counters = {
        "total_time": 1e-3, "hbm_read_bytes": 71.6e6, "hbm_write_bytes": 71.6e6,
        "mbu_estimated_percent": 20.0, "peak_flops_bandwidth_ratio": 110.0,
        "vector_engine_active_time_percent": 60.0,
        "scalar_engine_active_time_percent": 5.0, "gpsimd_engine_active_time_percent": 0.0,
    }  # fmt: skip
    found = kernel_roofline(counters, "trn2")
    vector, scalar = found.engines
    assert (vector.engine, scalar.engine) == ("vector", "scalar")
    assert vector.peak == pytest.approx(128 * 0.96e9)
    assert scalar.peak == pytest.approx(128 * 1.2e9)
    assert vector.intensity == pytest.approx(0.6 * 1e-3 * vector.peak / 143.2e6)
    assert vector.intensity / vector.ridge == pytest.approx(60 / 20)
    assert (vector.side, vector.ceiling_percent, found.side) == ("compute", 100.0, "compute")
    assert (scalar.side, scalar.ceiling_percent) == ("memory", pytest.approx(25.0))
    assert kernel_roofline(counters, "unheard of") is None
    assert profile_target({"target": "trn2"}) == "trn2"
    assert profile_target(None) == ""


def test_timelines_are_read_and_those_that_are_none_are_not():
    found = busy_timeline(json.loads(recorded.profile_of(recorded.KERNEL, 2.0)))
    assert found.span_ms == 2.0
    assert found.predicted
    assert set(found.busy_percent) == {"dma_load", "tensor", "vector", "dma_store"}
    assert all(len(parts) == recorded.PARTS for parts in found.busy_percent.values())
    for odd in (None, {}, {"timeline": 3}, {"timeline": {"span_ms": 1, "busy_percent": {"x": ["<b>"]}}}):
        assert busy_timeline(odd) is None


def test_a_best_latency_below_the_model_bound_is_explained(reader, tmp_path):
    assert run_at_event(reader, RUN).below_bound is None
    recorded.record(tmp_path / "home", {RUN: recorded.world_of(tight_ms=50.0).finish()})
    with LogReader.open(tmp_path / "home") as low:
        seen = run_at_event(low, RUN)
    share = f"impossible: {50 / seen.run.best_ms * 100:.1f} % of the model bound"
    assert seen.below_bound == f"{share}; the model, the bound or the log is at fault"
    assert as_json(seen)["below_bound"] == seen.below_bound
