"""Looking for good points: what comes next depends on what was tried, and on nothing else."""

from __future__ import annotations

from random import Random

import pytest

from targets.nki.knobs import ops
from targets.nki.knobs.cost import cost_ns, estimate_cost
from targets.nki.knobs.ir import LOOP_ORDER, LTILES, SCOPES, KernelIR
from targets.nki.knobs.narrowing import default_ir
from targets.nki.knobs.neighbours import KNOBS, sweep_knob
from targets.nki.knobs.placement import compute_placement
from targets.nki.knobs.program import program_digest
from targets.nki.knobs.sampling import sample_any_point, sample_ir
from targets.nki.knobs.search import (
    EQUAL_RATIO,
    NS_PER_MS,
    ProfileFeedback,
    SearchMode,
    Trial,
    TriedBatch,
    best_trial,
    draw_near,
    follow_hints,
    next_batch,
)
from targets.nki.knobs.tracing import trace_workload
from targets.nki.knobs.validity import validity_report
from tests.support.problem_workloads import graph_of
from tests.support.workloads import WORKLOADS

MATMUL = WORKLOADS["matmul"]
NOTHING = ProfileFeedback()


def _cost(ir: KernelIR) -> float:
    """Something to lower that any point has, without a simulator: loads that are not held, small blocks."""
    held = sum(scope for name in ("sbuf_lhs_T", "sbuf_rhs") for scope in ir.scopes[name].values())
    return 20.0 - held - sum(ir.ltiles.values()) + ir.loop_position["d1.block"]


def _tried_batch(
    *points: KernelIR, mode: SearchMode = SearchMode.JOINT, knob: str = "", ms: float | None = None
) -> TriedBatch:
    trials = tuple(Trial(ir, _cost(ir) if ms is None else ms) for ir in points)
    return TriedBatch(mode, trials, knob)


def _scope_batch(order: int) -> TriedBatch:
    """The default and turns of its scopes: as fast as the estimate has them (1), or the other way (-1)."""
    points = (MATMUL.default, *sweep_knob(MATMUL.default, SCOPES)[:8])
    least = min(_estimate(ir) for ir in points)
    return TriedBatch(SearchMode.JOINT, tuple(Trial(ir, (_estimate(ir) / least) ** order) for ir in points))


def _estimate(ir: KernelIR) -> float:
    return cost_ns(ir, compute_placement(ir))


def _search_points(batches: int, first_seed: int = 0) -> list[TriedBatch]:
    history: list[TriedBatch] = []
    for number in range(batches):
        batch = next_batch(MATMUL.graph, Random(first_seed + number), history, NOTHING, 4)
        history.append(_tried_batch(*batch.points, mode=batch.mode, knob=batch.knob))
    return history


def test_the_first_batch_has_the_default_and_drawn_points() -> None:
    batch = next_batch(MATMUL.graph, Random(0), [], NOTHING, 5)
    assert batch.mode is SearchMode.JOINT
    assert batch.points[0] == MATMUL.default
    assert len(batch.points) == 5


def test_every_point_is_valid_and_a_program_of_its_own() -> None:
    history = _search_points(9)
    points = [trial.ir for tried in history for trial in tried.trials]
    assert len({program_digest(ir) for ir in points}) == len(points) >= 30
    assert [report for ir in points if (report := validity_report(ir))] == []


def test_the_same_past_leads_to_the_same_batch() -> None:
    history = _search_points(4)
    one, other = (next_batch(MATMUL.graph, Random(9), history, NOTHING, 3) for _ in range(2))
    assert one == other


@pytest.mark.slow
def test_searching_finds_better_points_than_drawing() -> None:
    """On the whole: by how much differs from seed to seed."""
    searched = drawn = 0.0
    for seed in (0, 100, 200):
        history = _search_points(12, seed)
        found = best_trial(history)
        assert found is not None
        assert found.ms is not None
        rng, count = Random(seed), sum(len(tried.trials) for tried in history)
        searched += found.ms
        drawn += min(_cost(sample_ir(MATMUL.default, rng)) for _ in range(count))
    assert searched < drawn


@pytest.mark.parametrize(
    ("bottleneck", "knob"),
    [("dma", SCOPES), ("tensor", LOOP_ORDER), ("vector", LTILES), ("dependency", SCOPES), ("", SCOPES)],
)
def test_the_bottleneck_says_which_knob_is_swept_first(bottleneck: str, knob: str) -> None:
    batch = next_batch(
        MATMUL.graph, Random(0), [_tried_batch(MATMUL.default)], ProfileFeedback(bottleneck), 4
    )
    assert (batch.mode, batch.knob) == (SearchMode.SWEEP, knob)
    others = [name for name in (LOOP_ORDER, LTILES, SCOPES) if name != knob]
    assert len(batch.points) > 2
    for ir in batch.points[:-2]:  # the last are drawn anywhere
        assert all(getattr(ir, name) == getattr(MATMUL.default, name) for name in others)


def test_traffic_near_the_peak_implicates_what_is_held_whatever_is_busy() -> None:
    feedback = ProfileFeedback("vector", mbu_estimated_percent=85.0)
    assert next_batch(MATMUL.graph, Random(0), [_tried_batch(MATMUL.default)], feedback, 4).knob == SCOPES


def test_points_that_mostly_fail_for_room_implicate_the_blocks() -> None:
    failed = tuple(Trial(sample_ir(MATMUL.default, Random(seed)), None, "sbuf_capacity") for seed in range(3))
    history = [TriedBatch(SearchMode.JOINT, (Trial(MATMUL.default, 1.0), *failed))]
    assert next_batch(MATMUL.graph, Random(0), history, ProfileFeedback("dma"), 4).knob == LTILES


def test_each_knob_is_swept_before_a_plateau_flips_the_mode() -> None:
    history = [_tried_batch(MATMUL.default, ms=1.0)]
    found = []
    for number in range(4):
        batch = next_batch(MATMUL.graph, Random(number), history, ProfileFeedback("dma"), 4)
        history.append(_tried_batch(*batch.points, mode=batch.mode, knob=batch.knob, ms=2.0))
        found.append((batch.mode, batch.knob))
    assert {knob for mode, knob in found[:3] if mode is SearchMode.SWEEP} == set(KNOBS)
    assert found[3][0] is SearchMode.JOINT


def test_a_mode_goes_on_while_it_pays() -> None:
    history = [_tried_batch(MATMUL.default, ms=4.0)]
    drawn = [sample_ir(MATMUL.default, Random(seed)) for seed in range(3)]
    for mode, ms in ((SearchMode.SWEEP, 3.0), (SearchMode.JOINT, 2.0)):
        history.append(
            _tried_batch(drawn.pop(), mode=mode, knob=SCOPES if mode is SearchMode.SWEEP else "", ms=ms)
        )
        assert next_batch(MATMUL.graph, Random(0), history, NOTHING, 4).mode is mode
    history.append(_tried_batch(drawn.pop(), mode=SearchMode.JOINT, ms=2.0))
    assert next_batch(MATMUL.graph, Random(0), history, NOTHING, 4).mode is SearchMode.SWEEP


def test_a_small_space_ends() -> None:
    graph = trace_workload(
        lambda x: ops.NKIActivation(op="exp")(data=x), {"x": ((8, 12), "float32")}, name="exp"
    )
    history: list[TriedBatch] = []
    for number in range(40):
        batch = next_batch(graph, Random(number), history, NOTHING, 3)
        if not batch.points:
            return
        history.append(TriedBatch(batch.mode, tuple(Trial(ir, 1.0) for ir in batch.points), batch.knob))
    pytest.fail("there was always another kernel")


@pytest.mark.parametrize("name", ["matmul", "softmax", "attention"])
def test_invalid_points_are_mended_by_their_hints(name: str) -> None:
    rng, graph = Random(3), WORKLOADS[name].graph
    found = [follow_hints(sample_any_point(graph, rng)) for _ in range(8)]
    assert sum(ir is not None for ir in found) >= 6
    assert all(validity_report(ir) == [] for ir in found if ir is not None)


def test_no_point_is_looked_at_that_cannot_be_faster() -> None:
    history = [_tried_batch(MATMUL.default, ms=1e-6)]
    assert next_batch(MATMUL.graph, Random(0), history, NOTHING, 4).points == ()


def test_where_engines_are_equally_busy_a_norm_over_them_rules_nothing_out() -> None:
    """It is above the busiest, and may be above what a good schedule takes."""
    start = sample_ir(default_ir(graph_of("rmsnorm_matmul", "full")), Random(3))
    estimate = estimate_cost(start, compute_placement(start))
    best_ns = (estimate.least_ns + estimate.cost_ns) / 2
    assert estimate.least_ns < 0.99 * best_ns
    history = [_tried_batch(start, ms=best_ns / NS_PER_MS)]
    points = next_batch(start.graph, Random(0), history, ProfileFeedback("tensor"), 2).points
    assert max(_estimate(ir) for ir in points) > best_ns


def test_of_what_is_found_the_cheapest_by_estimate_are_looked_at() -> None:
    history = [_tried_batch(MATMUL.default, ms=1.0)]
    chosen = next_batch(MATMUL.graph, Random(0), history, ProfileFeedback("dma"), 4).points[:2]
    every = [_estimate(ir) for ir in sweep_knob(MATMUL.default, SCOPES)]
    least = sorted(every)[len(every) // 2] * EQUAL_RATIO
    assert max(_estimate(ir) for ir in chosen) <= least


def test_where_the_estimate_was_wrong_it_ranks_nothing() -> None:
    """Of the same turns, found in the same order, the cheapest are looked at only where it was right."""

    def chosen(order: int, seed: int) -> list[float]:
        batch = next_batch(MATMUL.graph, Random(seed), [_scope_batch(order)], ProfileFeedback("dma"), 2)
        return [_estimate(ir) for ir in batch.points if ir.loop_order == MATMUL.default.loop_order]

    seeds = range(6)
    right, wrong = (sum(sum(chosen(order, seed)[:1]) for seed in seeds) for order in (1, -1))
    assert right < wrong


def test_points_near_a_good_one_are_valid_and_mostly_others() -> None:
    rng = Random(2)
    found = [draw_near(MATMUL.default, rng) for _ in range(12)]
    assert all(validity_report(ir) == [] for ir in found)
    assert len(set(found)) > 6


@pytest.mark.parametrize(
    ("history", "strangers"),
    [(_scope_batch(1), 2), (_scope_batch(-1), 4), (_tried_batch(MATMUL.default, ms=1.0), 4)],
    ids=["right", "wrong", "unknown"],
)
def test_how_many_are_drawn_anywhere_goes_by_what_the_estimate_got_right(
    history: TriedBatch, strangers: int
) -> None:
    known = {program_digest(trial.ir) for trial in history.trials}
    good = [trial.ir for trial in history.trials]
    near_good = {program_digest(ir) for start in good for knob in KNOBS for ir in sweep_knob(start, knob)}
    for number in range(3):
        points = next_batch(MATMUL.graph, Random(number), [history], ProfileFeedback("dma"), 8).points
        assert {program_digest(ir) for ir in points[:-strangers]} <= near_good - known
        assert not {program_digest(ir) for ir in points[-strangers:]} <= near_good
        assert all(validity_report(ir) == [] for ir in points)
        assert len(points) == 8


def test_of_fewer_than_four_points_none_is_drawn_anywhere_where_the_estimate_was_right() -> None:
    batch = next_batch(MATMUL.graph, Random(0), [_scope_batch(1)], ProfileFeedback("dma"), 3)
    assert {ir.ltiles_per_block for ir in batch.points} == {MATMUL.default.ltiles_per_block}
    assert {ir.loop_order for ir in batch.points} == {MATMUL.default.loop_order}
