"""Scores, reports and baselines of predictions beside measurements."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.measured import counter_scores, families, naive, report, scores
from benchmarks.measured.cases import Case
from benchmarks.measured.runs import Outcome
from nki_sim import ArraySpec, targets, trace
from tests.benchmarks.test_fidelity import HEADER, KERNEL

# -- scores ----------------------------------------------------------------------------------------

LATENCIES = st.floats(min_value=1e-3, max_value=1e3)
PAIRS = st.lists(st.tuples(LATENCIES, LATENCIES), min_size=2, max_size=9)


def test_scores_of_known_lists() -> None:
    pairs = [(1.0, 1.1), (2.0, 1.8), (4.0, 5.0), (8.0, 4.0)]
    found = scores.scores(pairs)
    assert found["median_ape_percent"] == pytest.approx(17.5)
    assert found["worst_ape_percent"] == pytest.approx(50.0)
    assert found["spearman"] == pytest.approx(0.8)
    assert found["kendall"] == pytest.approx(2 / 3)
    assert found["pairwise_order_percent"] == pytest.approx(500 / 6)


def test_a_predicted_tie_is_no_order_and_lowers_the_correlations() -> None:
    found = scores.scores([(1.0, 1.0), (2.0, 1.0), (3.0, 2.0)])
    assert found["pairwise_order_percent"] == pytest.approx(200 / 3)
    assert found["spearman"] == pytest.approx(3**0.5 / 2)
    assert found["kendall"] == pytest.approx(2 / (3 * 2) ** 0.5)


def test_too_few_kernels_have_no_order() -> None:
    assert scores.scores([]) == dict.fromkeys(scores.scores([]), None)
    assert scores.scores([(1.0, 2.0)])["spearman"] is None
    assert scores.scores([(1.0, 2.0)])["worst_ape_percent"] == 100.0


@given(pairs=PAIRS)
def test_a_perfect_model_has_perfect_scores_and_a_scale_keeps_the_order(pairs: list[scores.Pair]) -> None:
    measured = sorted({pair[0] for pair in pairs})
    same = scores.scores([(value, value) for value in measured])
    assert same["worst_ape_percent"] == 0.0
    if len(measured) > 1:
        scaled = scores.scores([(value, 3 * value) for value in measured])
        order = [scaled[name] for name in ("spearman", "kendall", "pairwise_order_percent")]
        assert order == pytest.approx([1.0, 1.0, 100.0])
        assert scaled["median_ape_percent"] == pytest.approx(200.0)


@given(pairs=PAIRS)
def test_correlations_stay_within_their_bounds_and_turn_with_the_order(pairs: list[scores.Pair]) -> None:
    found = scores.scores(pairs)
    turned = scores.scores([(measured, 1e4 - predicted) for measured, predicted in pairs])
    for name in ("spearman", "kendall"):
        value = found[name]
        if value is not None:
            assert -1 - 1e-9 <= value <= 1 + 1e-9
            if len({pair[1] for pair in pairs}) == len({1e4 - pair[1] for pair in pairs}):
                assert turned[name] == pytest.approx(-value, abs=1e-9)


def test_only_variants_that_differ_enough_are_pairs() -> None:
    pairs = [(1.0, 1.0), (1.15, 2.0), (1.16, 3.0)]
    assert list(scores.distinct(pairs)) == [((1.0, 1.0), (1.16, 3.0))]


# -- reports ---------------------------------------------------------------------------------------


def outcome(measured: dict[str, float], counters: dict[str, float], **case: Any) -> Outcome:
    found = {
        "predicted_ms": 2.0, "counters": counters, "baselines_ms": {"roofline": 1.0}, "instructions": 1,
        "seconds": {}, "peak_mib": 1,
    }  # fmt: skip
    return Outcome(Case("k", "p", "trn1", measured, **case), found)


def test_engine_busy_times_are_compared_apart_from_the_latency() -> None:
    measured = {"latency": 1.0, "vector_engine_active_time_percent": 0.8}
    one = report.row(outcome(measured, {"vector_engine_active_time_percent": 0.4, "total_time": 1.0}))
    assert one["counters"]["vector_engine_active_time_percent"]["relative_error"] == pytest.approx(-0.5)
    busy = one["counters"]["vector_engine_busy_ms"]
    assert (busy["measured"], busy["predicted"]) == pytest.approx((0.8, 0.8))
    percent = {name: 100 * value for name, value in measured.items() if name != "latency"}
    other = report.row(outcome({"latency": 1.0, **percent}, {"vector_engine_active_time_percent": 40.0}))
    assert other["counters"]["vector_engine_busy_ms"]["relative_error"] == pytest.approx(0.0)


def test_what_an_engine_hardly_does_is_left_out_of_the_errors() -> None:
    little, much = (
        {"latency": 1.0, "gpsimd_engine_active_time_percent": share} for share in (0.0009, 0.0011)
    )
    rows = [report.row(outcome(one, {"gpsimd_engine_active_time_percent": 0.0})) for one in (little, much)]
    counted = report.counter_summary(rows)["gpsimd_engine_busy_ms"]
    assert (counted["kernels"], counted["worst_percent"]) == (1, 100.0)
    shown = [list(report._counter_lines(one["counters"]))[1] for one in rows]
    assert shown[0].endswith("slight -0.0009")
    assert shown[1].endswith("-100.00 %")


def test_no_error_is_negative_nothing() -> None:
    one = report.row(outcome({"latency": 1.0, "hbm_read_bytes": 1e9}, {"hbm_read_bytes": 1e9 - 1}))
    assert list(report._counter_lines(one["counters"]))[1].endswith(" 0.00 %")


def test_a_counter_that_was_measured_as_zero_has_no_relative_error() -> None:
    one = report.row(outcome({"latency": 1.0, "spill_save_bytes": 0.0}, {"spill_save_bytes": 5.0}))
    assert one["counters"]["spill_save_bytes"]["relative_error"] is None
    (spread,) = report.counter_summary([one]).values()
    assert (spread["kernels"], spread["measured_zero_only"], spread["within_10_percent"]) == (1, 1, 0)


def test_profiles_and_variants_are_scored_apart() -> None:
    profile = outcome({"latency": 2.0}, {})
    near, far = outcome({"latency": 4.0}, {}, group="g"), outcome({"latency": 1.0}, {}, group="g")
    overall = report.report([profile, near, far])["overall"]
    assert overall["worst_ape_percent"] == 0.0
    assert overall["pairwise_order_percent"] == 0.0
    assert report.report([near, far])["overall"]["worst_ape_percent"] == 100.0


# -- baselines -------------------------------------------------------------------------------------


def test_baselines_are_what_they_say() -> None:
    target = targets.load("trn1")
    program = trace(HEADER + KERNEL.format(times=3), args=[ArraySpec((256, 512), "float32")], target="trn1")
    found = naive.baselines(program, target)
    assert found["bytes_over_bandwidth"] == pytest.approx(2 * 256 * 512 * 4 / target.hbm_bytes_per_ns / 1e6)
    assert found["flops_over_peak"] == 0.0
    assert found["roofline"] == found["bytes_over_bandwidth"]
    assert found["bytes_over_bandwidth"] < found["busiest_engine"] < found["sum_of_costs"]


def test_families_are_scored_left_out_in_sample_and_by_the_busiest_engine() -> None:
    found = {"predicted_ms": 2.0, "baselines_ms": {"busiest_engine": 1.0}}
    items = [
        Outcome(Case(name="same", problem="a", target="trn2", measured={"latency": latency}), found)
        for latency in (2.0, 4.0)
    ]
    (row,) = families.report_families(
        items, {0: families.LeftOutPrediction(2.2, {}), 1: families.LeftOutPrediction(4.0, {})}
    )
    assert (row["target"], row["family"], row["kernels"]) == ("trn2", "a", 2)
    assert row["left_out"]["median_ape_percent"] == pytest.approx(5.0)
    assert row["left_out"]["pairwise_order_percent"] == 100.0
    assert row["in_sample"]["worst_ape_percent"] == pytest.approx(50.0)
    assert row["naive"]["worst_ape_percent"] == pytest.approx(75.0)
    assert row["worse_than_naive"] == []
    (alone,) = families.report_families(items, {})
    assert alone["left_out"]["median_ape_percent"] is None
    assert alone["worse_than_naive"] == []


def predicted_family(
    target: str, family: str, *rows: tuple[float, float, float]
) -> list[tuple[Outcome, float]]:
    """Kernels with what was measured, what the busiest engine predicts, and what is predicted left out."""
    return [
        (
            Outcome(
                Case(name=family, problem=family, target=target, measured={"latency": measured}),
                {"predicted_ms": left_out, "baselines_ms": {"busiest_engine": naive}},
            ),
            left_out,
        )
        for measured, naive, left_out in rows
    ]


def test_order_is_of_pairs_of_one_family_by_target_and_in_all() -> None:
    kernels = [
        *predicted_family("trn2", "good", (1.0, 3.0, 1.0), (2.0, 2.0, 2.0), (4.0, 1.0, 4.0)),
        *predicted_family("trn2", "bad", (8.0, 1.0, 2.0), (16.0, 2.0, 1.0)),
        *predicted_family("trn1", "near", (1.0, 1.0, 2.0), (1.1, 2.0, 1.0), (3.0, 3.0, 3.0)),
    ]
    items = [item for item, _ in kernels]
    left_out = {place: families.LeftOutPrediction(ms, {}) for place, (_, ms) in enumerate(kernels)}
    trn1, trn2, together = families.report_order(items, left_out)
    assert (trn1["target"], trn1["pairs"], trn1["left_out"]) == ("trn1", 2, 100.0)  # 1.0 and 1.1 are no pair
    assert (trn2["target"], trn2["pairs"], trn2["left_out"], trn2["naive"]) == ("trn2", 4, 75.0, 25.0)
    assert (together["target"], together["pairs"]) == ("all", 6)
    assert together["left_out"] == pytest.approx(500 / 6)
    rows = families.report_families(items, left_out)
    assert {row["family"]: row["worse_than_naive"] for row in rows} == {
        "good": [], "bad": ["order"], "near": ["median"],
    }  # fmt: skip
    said = list(families.lines(rows, [trn1, trn2, together]))
    assert (
        "pairs over 15 % apart in order, trn2: left out 75.0%, in sample 75.0%, naive 25.0% of 4 pairs"
        in said
    )
    assert any(line.startswith("trn2 bad") and line.endswith("no: order") for line in said)


# -- counters as scores ----------------------------------------------------------------------------


def test_counters_are_scored_against_their_aims_by_target() -> None:
    near, far, slight = (
        report.row(outcome({"latency": 2.0, **measured}, predicted))
        for measured, predicted in (
            (
                {"hbm_read_bytes": 100.0, "spill_save_bytes": 0.0},
                {"hbm_read_bytes": 93, "spill_save_bytes": 0},
            ),
            (
                {"hbm_read_bytes": 100.0, "spill_save_bytes": 10.0},
                {"hbm_read_bytes": 95, "spill_save_bytes": 0},
            ),
            ({"gpsimd_engine_active_time_percent": 0.0005}, {"gpsimd_engine_active_time_percent": 0.0}),
        )
    )
    hbm, spill = counter_scores.score_counters([near, far, slight])
    assert (hbm["target"], hbm["kernels"], hbm["median_percent"], hbm["is_met"]) == ("trn1", 1, 6.0, True)
    assert (spill["median_percent"], spill["values"], spill["is_met"]) == (100.0, 1, False)
    assert (spill["measured_zero"], spill["zero_as_predicted"]) == (1, 1)
    said = list(counter_scores.lines([hbm, spill]))
    assert said[1].endswith("8 %: met")
    assert said[2].endswith("25 %: missed; of 1 zeros 1 predicted")
    assert list(counter_scores.lines([])) == []


def test_shares_are_of_the_profiled_run_and_of_each_sides_own_whole() -> None:
    measured = {"latency": 1.0, "total_time": 0.002, "scalar_engine_active_time_percent": 20.0}
    one = report.row(outcome(measured, {"scalar_engine_active_time_percent": 0.4, "total_time": 0.002}))
    busy = one["counters"]["scalar_engine_busy_ms"]
    assert (busy["measured"], busy["predicted"]) == pytest.approx((0.4, 0.8))
    assert one["counters"]["scalar_engine_active_time_percent"]["predicted"] == pytest.approx(40.0)


def test_traffic_of_hbm_may_be_measured_as_one_sum() -> None:
    moved = {"hbm_read_bytes": 3.0, "hbm_write_bytes": 5.0}
    one = report.row(outcome({"latency": 1.0, "hbm_bytes": 10.0}, moved))
    assert one["counters"]["hbm_bytes"]["relative_error"] == pytest.approx(-0.2)
