"""Kernels and references that never end: the caller's deadline ends them, and no process is left."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

import remote.pool
import seeds
from daemon.evaluation_retries import EvaluationRetryPolicy, InfrastructureFailure, call_with_retries
from remote.evaluator import EvaluationAnswer
from state.model import INITIAL_KEY, Verdict
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
async def test_a_deadline_ends_a_worker_in_the_middle_of_its_work(silu, evaluator, monkeypatch):
    """The whole of a kernel is judged in the worker; where it is cut off does not matter."""
    judge_outputs, judging = evaluator.judge.judge_outputs, asyncio.Event()

    async def announce(*args: Any) -> Any:
        judging.set()
        return await judge_outputs(*args)

    monkeypatch.setattr(evaluator.judge, "judge_outputs", announce)
    whole = asyncio.create_task(evaluator.evaluate(silu.request(size="full"), silu.blobs))
    await judging.wait()
    await asyncio.sleep(DEADLINE_S)
    whole.cancel()
    with pytest.raises(asyncio.CancelledError):
        await whole
    assert evaluator.judge.worker_pids == ()


STAGES = ("rules", "numerics", "identity", "timing", "profile")
WORKER = """
import time
from contextlib import contextmanager
from pathlib import Path
from remote import worker
from targets.nki.judge import program

in_time = program._Judgement.time_stage

@contextmanager
def time_stage(self, stage):
    with in_time(self, stage):
        if stage == {stage!r}:
            Path({begun!r}).touch()
            while True:
                pass
        yield

program._Judgement.time_stage = time_stage
worker.main()
"""


@pytest.mark.parametrize("stage", STAGES)
async def test_a_deadline_ends_a_worker_in_each_of_the_judges_stages(  # noqa: PLR0917
    stage, silu, evaluator, processes, tmp_path, monkeypatch
):
    start, begun = remote.pool.start_process, tmp_path / "begun"
    script = WORKER.format(stage=stage, begun=str(begun))

    async def start_endless(python: str, *command: str, **options: Any) -> asyncio.subprocess.Process:
        assert command[1:3] == ("-m", "remote.worker")
        return await start(python, command[0], "-c", script, *command[3:], **options)

    async def evaluate() -> EvaluationAnswer:
        return await evaluator.evaluate(silu.request(), silu.blobs)

    monkeypatch.setattr(remote.pool, "start_process", start_endless)
    retry = EvaluationRetryPolicy(tries=1, deadline_seconds=DEADLINE_S)
    reached = False
    while not reached:  # on a busy machine the stage is not reached within the deadline
        ended = await call_with_retries(retry, INITIAL_KEY, evaluate)
        assert isinstance(ended, InfrastructureFailure)
        assert ended.error.code == "evaluation_deadline"
        reached = begun.exists()  # if not, the worker that looked for a broken rule may be idle
        assert processes() == (set() if reached else set(evaluator.judge.worker_pids))
        retry = replace(retry, deadline_seconds=2 * retry.deadline_seconds)
