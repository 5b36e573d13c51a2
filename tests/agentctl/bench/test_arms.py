"""How strategies compare, on curves whose answer is known."""

from __future__ import annotations

from math import inf
from typing import Any

from agentctl.bench import arms


def run(arm: str, *curve: tuple[int, float], problem: str = "p", target: str = "trn2") -> dict[str, Any]:
    return {
        "problem": problem, "size": "reduced", "target": target, "arm": arm, "initial_ms": 10.0,
        "curve": [(1, 10.0), *curve],
    }  # fmt: skip


def test_a_share_is_had_with_the_first_kernel_that_is_fast_enough():
    curve = [(1, 10.0), (4, 6.0), (9, 5.0), (30, 2.0)]
    assert arms.evaluations_needed(curve, 10.0, 2.0, 50) == 4
    assert arms.evaluations_needed(curve, 10.0, 2.0, 51) == 9
    assert arms.evaluations_needed(curve, 10.0, 2.0, 90) == 30
    assert arms.evaluations_needed(curve, 10.0, 1.0, 100) == inf


def test_the_gain_is_that_of_the_best_of_all_arms():
    rows = [run("beam", (3, 6.0)), run("random", (2, 9.0), (20, 0.1), (21, 0.0001))]
    beam, random = arms.compare_arms(rows)
    assert (beam["arm"], random["arm"]) == ("beam", "random")
    assert (beam["needed"]["50"]["median"], beam["needed"]["50"]["reached"]) == (None, 0)
    assert random["needed"]["50"] == {"median": 20, "interval": [20, 20], "reached": 1}
    assert round(beam["gain_percent"]) == 40
    assert round(random["gain_percent"]) == 100


def test_a_run_that_never_got_there_is_later_than_all_that_did():
    rows = [run("a", (n, 1.0)) for n in (5, 7)] + [run("a") for _ in range(3)] + [run("b", (2, 1.0))]
    a, _ = arms.compare_arms(rows)
    assert a["needed"]["90"]["median"] is None
    assert a["needed"]["90"]["reached"] == 2
    assert a["runs"] == 5


def test_an_interval_holds_the_median_and_widens_with_the_spread():
    close = [run("a", (n, 1.0)) for n in (10, 11, 12, 13, 14)]
    far = [run("b", (n, 1.0)) for n in (2, 5, 12, 40, 90)]
    a, b = (one["needed"]["90"] for one in arms.compare_arms(close + far))
    assert a["median"] == b["median"] == 12
    assert a["interval"][0] >= 10
    assert a["interval"][1] <= 14
    assert b["interval"][0] < a["interval"][0]
    assert b["interval"][1] > a["interval"][1]


def test_problems_without_any_gain_and_targets_of_one_arm_are_left_out():
    rows = [run("a", problem="q"), run("b", problem="q"), run("a", (2, 1.0)), run("b", (3, 1.0))]
    a, b = arms.compare_arms([*rows, run("a", (2, 1.0), target="trn1")])
    assert (a["runs"], b["runs"], a["target"]) == (1, 1, "trn2")
    assert arms.compare_arms(rows[:1]) == []


def test_problems_that_not_every_arm_ran_are_left_out():
    rows = [run("a", (2, 1.0)), run("b", (3, 1.0)), run("a", (9, 1.0), problem="donor")]
    a, b = arms.compare_arms(rows)
    assert (a["runs"], b["runs"]) == (1, 1)
    assert a["needed"]["90"]["median"] == 2
