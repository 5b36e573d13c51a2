"""Honest kernels are correct, however unusual: a judge that refuses them teaches the search to be timid."""

from __future__ import annotations

import pytest

import seeds
from tests.adversarial.honest import formulas, language, numerics, products, rows, silu
from tests.support.sweeps import QUICK_PROBLEMS, parametrize_sweep

pytestmark = pytest.mark.asyncio(loop_scope="session")

KERNELS = tuple(
    item for module in (silu, language, products, rows, numerics, formulas) for item in module.KERNELS
)


async def test_there_are_fifty_for_all_problems():
    assert len({item.kernel for item in KERNELS}) == len(KERNELS) >= 50
    assert {item.problem for item in KERNELS} == set(seeds.builtin_problems())


@parametrize_sweep(
    "honest",
    KERNELS,
    quick=[next(item for item in KERNELS if item.problem == name) for name in QUICK_PROBLEMS],
    ids=[f"{item.problem}: {item.idea}" for item in KERNELS],
)
async def test_passes(honest, judge):
    found = await judge(honest.problem, honest.kernel)
    assert found.is_correct, found.error
    assert found.benchmark.predicted
