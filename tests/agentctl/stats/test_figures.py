"""The arithmetic of statistics: every figure here was counted by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from agentctl.stats.facts import Charge, KernelFact, RunFacts
from agentctl.stats.figures import FAST_AT, combined_figures, run_figures
from state.model import PERSON, Tokens

MATMUL, SILU = ("matmul", "full", "trn2"), ("silu", "full", "trn2")


def call(seq: int, outcome: str = "answered", **more: Any) -> Charge:
    """A call of 0.25 dollars, 100 tokens in and 10 out that took 2 s, and whose answer was usable."""
    answered = outcome == "answered"
    plain: dict[str, Any] = {
        "role": "planner",
        "cost_nano_usd": 250_000_000,
        "tokens": Tokens(input=100, cached=40, output=10) if answered else None,
        "model": "x/big",
        "usable": True if answered else None,
        "ms": 2000.0,
    }
    return Charge(seq=seq, outcome=outcome, **(plain | more))


def kernel(seq: int, gain: float | None = None, **more: Any) -> KernelFact:
    """A kernel that is correct if it has a gain; its parent is the first one."""
    plain: dict[str, Any] = {
        "chain": seq,
        "round": 1,
        "repair": 0,
        "author": "x/big",
        "technique": "hoist",
        "proposed": True,
        "verdict": "incorrect" if gain is None else "correct",
        "speedup": gain,
        "gain": gain,
    }
    return KernelFact(seq, **(plain | more))


def run(name: str = "first", task: tuple[str, str, str] = MATMUL, **more: Any) -> RunFacts:
    plain: dict[str, Any] = {"predicted": True, "speedup": 2.0}
    return RunFacts(run=name, task=task, **(plain | more))


def shares(fast: list[dict[str, Any]]) -> dict[float, tuple[int, int]]:
    return {one["p"]: (one["count"], one["of"]) for one in fast}


# --- Fast@p -------------------------------------------------------------------------------------------


def test_fast_at_p_counts_what_is_more_than_p_times_as_fast():
    """At p itself a kernel is not counted, nor one that is wrong or none."""
    kernels = (
        kernel(1, 1.0),
        kernel(2, 1.2),
        kernel(3, 1.5),
        kernel(4),
        kernel(5, proposed=False, verdict=None),
    )
    found = run_figures(run(kernels=kernels), (0.5, 1.0, 1.2, 1.5))["fast"]
    assert shares(found) == {0.5: (3, 5), 1.0: (2, 5), 1.2: (1, 5), 1.5: (0, 5)}
    assert [one["percent"] for one in found] == [60.0, 40.0, 20.0, 0.0]


def test_an_attempt_counts_once_by_what_its_repairs_came_to():
    kernels = (
        kernel(1),
        kernel(2, 1.5, chain=1, repair=1),  # mended
        kernel(3, proposed=False, verdict=None),
        kernel(4, chain=3, repair=1),  # not mended
        kernel(5, 1.1, chain=3, repair=2),  # but then
    )
    assert shares(run_figures(run(kernels=kernels), (1.0, 1.2))["fast"]) == {1.0: (2, 2), 1.2: (1, 2)}


@pytest.mark.parametrize(
    "left_out",
    [{"author": PERSON}, {"counts": False}, {"verdict": None, "gain": None}],
    ids=["a person's", "judged by something else", "not judged yet"],
)
def test_what_fast_at_p_is_no_share_of(left_out):
    kernels = (kernel(1, 1.5), kernel(2, **({"gain": 3.0} | left_out)))
    assert shares(run_figures(run(kernels=kernels), (1.0,))["fast"]) == {1.0: (1, 1)}


def test_fast_at_p_of_nothing_is_no_number():
    (one,) = run_figures(run(), (1.0,))["fast"]
    assert one == {"p": 1.0, "count": 0, "of": 0, "percent": None}


def test_fast_at_p_of_each_round():
    kernels = (kernel(1), kernel(2, 1.3, round=2), kernel(3, 1.1, round=2), kernel(4, 1.6, round=4))
    rounds = run_figures(run(kernels=kernels), (1.2,))["rounds"]
    assert {one["round"]: shares(one["fast"])[1.2] for one in rounds} == {1: (0, 1), 2: (1, 2), 4: (1, 1)}


def test_by_problem_the_best_kernel_of_all_its_runs_counts():
    runs = [
        run("a", MATMUL, speedup=1.1),
        run("b", MATMUL, speedup=1.6),
        run("c", SILU, speedup=1.3),
        run("d", ("silu", "reduced", "trn2"), speedup=None),
    ]
    found = combined_figures(runs, (1.2, 1.5))
    assert shares(found["fast_problems"]) == {1.2: (2, 3), 1.5: (1, 3)}
    assert (found["runs"], found["problems"]) == (4, 3)
    assert found["geomean_speedup"] == pytest.approx((1.6 * 1.3) ** 0.5)


def test_the_thresholds_begin_at_any_gain():
    assert FAST_AT[0] == 1.0
    assert sorted(FAST_AT) == list(FAST_AT)


# --- kernels ------------------------------------------------------------------------------------------


def test_validity_is_the_share_of_the_judged():
    kernels = (
        kernel(1, 1.1, kept=True, improved=True),
        kernel(2, 0.9, kept=True),
        kernel(3),
        kernel(4, verdict=None),  # the infrastructure failed, or it still waits
        kernel(5, proposed=False, verdict=None),
    )
    found = run_figures(run(kernels=kernels), (1.0,))["kernels"]
    assert found == {
        "failed": 1,
        "proposed": 4,
        "judged": 3,
        "valid": 2,
        "validity_percent": pytest.approx(200 / 3),
        "kept": 2,
        "improvements": 1,
    }


def test_validity_is_told_by_model_and_also_of_who_was_never_asked():
    kernels = (kernel(1, 1.1), kernel(2), kernel(3, 1.2, author="builtin"))
    models = run_figures(run(charges=(call(4), call(5, model="y/small")), kernels=kernels), (1.0,))["models"]
    told = {one["model"]: (one["proposed"], one["validity_percent"], one["calls"]["made"]) for one in models}
    assert told == {"x/big": (2, 50.0, 1), "builtin": (1, 100.0, 0), "y/small": (0, None, 1)}
    assert [one["cost_usd"] for one in models] == [0.0, 0.25, 0.25]


def test_repairs_that_succeeded():
    """Three attempts were repaired in five rounds, and two of them came right."""
    kernels = (
        kernel(1),
        kernel(2, 1.1, chain=1, repair=1),
        kernel(3),
        kernel(4, chain=3, repair=1),
        kernel(5, 0.8, chain=3, repair=2),
        kernel(6),
        kernel(7, chain=6, repair=1),
        kernel(8, proposed=False, verdict=None, chain=6, repair=2),
        kernel(9, 1.5),
    )
    found = run_figures(run(kernels=kernels), (1.0,))["repairs"]
    assert found == {"attempts": 3, "rounds": 5, "succeeded": 2, "percent": pytest.approx(200 / 3)}


def test_without_repairs_there_is_no_rate_of_them():
    assert run_figures(run(kernels=(kernel(1),)), (1.0,))["repairs"]["percent"] is None


def test_techniques_are_told_by_what_attempts_came_to():
    kernels = (
        kernel(1, 1.5, kept=True, improved=True),
        kernel(2, 1.1),
        kernel(3),
        kernel(4, 0.8, chain=3, repair=1),
        kernel(5, technique="blocks"),
        kernel(6, 1.3, technique=None, author=PERSON),
    )
    hoist, blocks = sorted(
        run_figures(run(kernels=kernels), (1.0,))["techniques"], key=lambda one: -one["tried"]
    )
    assert hoist == {
        "technique": "hoist", "tried": 3, "valid": 3, "kept": 1, "improvements": 1, "median_speedup": 1.1,
    }  # fmt: skip
    assert blocks == {
        "technique": "blocks", "tried": 1, "valid": 0, "kept": 0, "improvements": 0, "median_speedup": None,
    }  # fmt: skip


# --- calls and money ----------------------------------------------------------------------------------


def test_calls_are_counted_by_what_came_of_them():
    charges = (
        call(1),
        call(2, usable=False),
        call(3, usable=None, ms=5000.0),
        call(4, "rate", cost_nano_usd=0, ms=100.0),
        call(5, "server", cost_nano_usd=0, ms=100.0),
        call(6, "rate", cost_nano_usd=0, ms=100.0),
        call(7, "lost", charged_tokens=500, ms=None),
        Charge(8, "planner", 10**9, Tokens(input=7)),
    )
    found = run_figures(run(charges=charges), (1.0,))["calls"]
    assert found == {
        "made": 7,
        "answered": 3,
        "usable": 1,
        "usable_percent": pytest.approx(100 / 7),
        "failed": {"rate": 2, "server": 1},
        "lost": 1,
        "input_tokens": 300,
        "cached_tokens": 120,
        "output_tokens": 30,
        "uncounted_tokens": 500,
        "total_ms": 9300.0,
        "median_ms": 1050.0,
    }


def test_tokens_that_nobody_counted_are_counted_apart_as_estimates():
    guessed = Tokens(input=100, output=20, estimated=True)
    charges = (call(1), replace(call(2), tokens=guessed))
    found = run_figures(run(charges=charges), (1.0,))["calls"]
    assert found["estimated_tokens"] == 120


def test_roles_are_those_that_asked():
    charges = (
        call(1),
        call(2, role="executor", usable=False),
        call(3, role="executor"),
        Charge(4, "judge", 1),
    )
    roles = run_figures(run(charges=charges), (1.0,))["roles"]
    told = {one["role"]: (one["calls"]["made"], one["calls"]["usable_percent"]) for one in roles}
    assert told == {"planner": (1, 100.0), "executor": (2, 50.0)}


def test_an_improvement_costs_all_that_was_spent_over_their_number():
    """Also what came to nothing, and what was no call."""
    charges = (call(1), call(2, usable=False), call(3, "lost"), Charge(4, "planner", 10**9))
    kernels = (kernel(5, 1.5, kept=True, improved=True), kernel(6, 1.2, kept=True, improved=True), kernel(7))
    found = run_figures(run(charges=charges, kernels=kernels), (1.0,))
    assert (found["cost_usd"], found["unpriced"]) == (1.75, 0)
    assert found["cost_per_improvement_usd"] == 0.875


def test_without_an_improvement_there_is_no_cost_of_one():
    found = run_figures(run(charges=(call(1),), kernels=(kernel(2, 0.9, kept=True),)), (1.0,))
    assert (found["cost_usd"], found["cost_per_improvement_usd"]) == (0.25, None)


def test_where_a_price_is_unknown_so_is_the_cost():
    charges = (call(1), call(2, cost_nano_usd=None, model="y/small"))
    found = run_figures(run(charges=charges, kernels=(kernel(3, 1.5, kept=True, improved=True),)), (1.0,))
    assert (found["cost_usd"], found["cost_per_improvement_usd"]) == (None, None)
    assert (found["priced_usd"], found["unpriced"]) == (0.25, 1)
    assert {one["model"]: one["cost_usd"] for one in found["models"]} == {"x/big": 0.25, "y/small": None}


def test_improvements_of_a_run_without_calls_cost_nothing():
    found = run_figures(run(kernels=(kernel(1, 1.5, author="builtin", kept=True, improved=True),)), (1.0,))
    assert (found["cost_usd"], found["cost_per_improvement_usd"], found["roles"]) == (0.0, 0.0, [])


def test_sums_do_not_depend_on_the_order_of_charges():
    costs = (100_000_001, 200_000_003, 699_999_996)
    charges = tuple(call(seq, cost_nano_usd=cost) for seq, cost in enumerate(costs))
    for mine in (charges, charges[::-1]):
        assert run_figures(run(charges=mine), (1.0,))["cost_usd"] == 1.0


# --- several runs -------------------------------------------------------------------------------------


def test_what_runs_share_counts_once():
    """Of what both have, the first one's word: its fork was cut before the kernel was judged."""
    parent = run("a", charges=(call(1), call(5)), kernels=(kernel(2, 1.5), kernel(6)))
    child = run("b", charges=(call(1), call(7)), kernels=(kernel(2, verdict=None), kernel(8, 1.1)))
    found = combined_figures([parent, child], (1.0,))
    assert (found["calls"]["made"], found["cost_usd"]) == (3, 0.75)
    assert shares(found["fast"]) == {1.0: (2, 3)}
    assert found["kernels"]["proposed"] == 3


def test_no_runs_have_figures_too():
    found = combined_figures([], (1.0,))
    assert (found["runs"], found["geomean_speedup"], found["cost_usd"]) == (0, None, 0.0)
