"""Kernels and references that never end: the caller's deadline ends them, and no process is left."""

from __future__ import annotations

import asyncio

import pytest

import seeds
from state.model import Verdict
from tests.support.endless_kernels import ENDLESS, REFUSED, with_endless_reference
from tests.support.sweeps import parametrize_sweep

DEADLINE_S = 1.5


@parametrize_sweep("name", sorted(set(ENDLESS) - REFUSED), quick={"sum in C", "power at import"})
async def test_a_deadline_ends_the_evaluation_of_a_kernel(name, silu, evaluator, processes):
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(DEADLINE_S):
            await evaluator.evaluate(silu.request(ENDLESS[name]), silu.blobs)
    assert processes() == set()


@pytest.mark.parametrize("name", sorted(REFUSED))
async def test_a_static_rule_refuses_it_before_it_runs(name, silu, evaluator, processes):
    answer = await evaluator.evaluate(silu.request(ENDLESS[name]), silu.blobs)
    assert answer.evaluation.verdict is Verdict.LINT_ERROR
    assert processes() == set()


async def test_a_deadline_ends_a_reference_that_does_not(bench, evaluator):
    endless = bench(with_endless_reference(seeds.load_problem("silu")))
    jail = asyncio.create_task(evaluator.evaluate(endless.request(), endless.blobs))
    _, waiting = await asyncio.wait({jail}, timeout=4 * DEADLINE_S)
    assert waiting
    jail.cancel()
    with pytest.raises(asyncio.CancelledError):
        await jail


@pytest.mark.slow
async def test_a_deadline_ends_a_worker_in_the_middle_of_its_work(silu, evaluator, running):
    """The whole of a kernel is judged in the worker; where it is cut off does not matter."""
    whole = asyncio.create_task(evaluator.evaluate(silu.request(size="full"), silu.blobs))
    await running()
    while not evaluator.judge.worker_pids:  # noqa: ASYNC110  a worker sends no event when it starts
        await asyncio.sleep(0.01)
    await asyncio.sleep(DEADLINE_S)
    whole.cancel()
    with pytest.raises(asyncio.CancelledError):
        await whole
    assert evaluator.judge.worker_pids == ()
