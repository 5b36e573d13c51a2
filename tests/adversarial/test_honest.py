"""Honest kernels are correct, however unusual: a judge that refuses them teaches the search to be timid."""

from __future__ import annotations

import pytest

import seeds
from tests.adversarial.honest import formulas, input_ranges, language, numerics, products, rows, silu
from tests.adversarial.small_problems import LAYERNORM, layernorm
from tests.support.sweeps import QUICK_PROBLEMS, parametrize_sweep

pytestmark = pytest.mark.asyncio(loop_scope="session")

MODULES = (silu, language, products, rows, numerics, formulas, input_ranges)
KERNELS = tuple(item for module in MODULES for item in module.KERNELS)


async def test_there_are_fifty_for_all_problems():
    assert len({item.kernel for item in KERNELS}) == len(KERNELS) >= 50
    assert {item.problem_name for item in KERNELS} >= set(seeds.builtin_problems())


@parametrize_sweep(
    "honest",
    KERNELS,
    quick=[next(item for item in KERNELS if item.problem == name) for name in QUICK_PROBLEMS],
    ids=[f"{item.problem_name}: {item.idea}" for item in KERNELS],
)
async def test_passes(honest, judge):
    found = await judge(honest.problem, honest.kernel)
    assert found.is_correct, found.error
    assert found.benchmark.predicted


async def test_a_proof_is_about_the_formula_and_stability_is_told_apart(judge):
    stable, naive = [await judge(LAYERNORM, layernorm(naive=naive)) for naive in (False, True)]
    assert (stable.identity.verdict, naive.identity.verdict) == ("proven", "proven")
    assert (stable.stability.verdict, naive.stability.verdict) == ("stable", "unstable")
    assert naive.stability.rel_l2 > 5 * naive.stability.tolerance > 25 * stable.stability.rel_l2
