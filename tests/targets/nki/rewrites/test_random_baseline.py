"""Rewrites drawn evenly: which kernels come of it, and what of them is taken with and without predictions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

import pytest

from agent_core.effects import LookAheadRequest
from state.model import ErrorInfo, PredictedLatency, ProblemRef, digest_of
from targets.nki.rewrites import lookahead_role, random_baseline
from targets.nki.rewrites.prediction_scale import PredictionScale
from targets.nki.rewrites.random_walk import walk_randomly
from targets.nki.rewrites.reader import read_kernel
from tests.support.kernels import TARGET, Sample
from tests.support.path_kernels import make_candidate

ROWS = """\
import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def rows(x):
    out = nl.ndarray((256, 512), dtype=x.dtype, buffer=nl.shared_hbm)
    for i in nl.affine_range(2):
        tile = nl.ndarray((128, 512), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=x[i * 128 : (i + 1) * 128, :])
        doubled = nl.ndarray((128, 512), dtype=x.dtype, buffer=nl.sbuf)
        nisa.tensor_scalar(dst=doubled, data=tile, op0=nl.multiply, operand0=2.0)
        nisa.dma_copy(dst=out[i * 128 : (i + 1) * 128, :], src=doubled)
    return out
"""
SAMPLE = Sample(ROWS, ((256, 512),), lambda x: 2 * x)


def walk(seed: int, steps: int) -> list[Any]:
    return walk_randomly(SAMPLE.source, SAMPLE.arguments, TARGET, steps, Random(seed))


def test_a_walk_is_a_sequence_of_rewrites_each_of_the_kernel_before_it():
    made = walk(3, 4)
    assert len(made) == 4
    assert len({ROWS, *(one.source for one in made)}) == 5
    for one in made:
        assert read_kernel(one.source, SAMPLE.arguments, TARGET).statements


def test_one_seed_gives_one_walk_and_many_seeds_many_techniques():
    assert [one.source for one in walk(3, 2)] == [one.source for one in walk(3, 2)]
    assert len({walk(seed, 1)[0].transform.id for seed in range(12)}) > 2


def request(variants: int, predictions: int, known: tuple[str, ...] = ()) -> LookAheadRequest:
    return LookAheadRequest.model_construct(
        draw=5, parent=make_candidate("parent", 10.0), known=known, variants=variants, depth=12, width=1,
        predictions=predictions, instructions=10_000, drawn=1,
        problem=ProblemRef.model_construct(),
    )  # fmt: skip


class Pool:
    """Draws kernels `k0`, `k1`, ... in turn, each of them twice; the n-th takes 9 - n ms."""

    def __init__(self) -> None:
        self.asked = 0

    async def ask(self, job: dict[str, Any]) -> dict[str, Any]:
        number, self.asked = self.asked // 2, self.asked + 1
        step = {"technique": "flip", "site": f"k{number}", "title": "flip", "choice": {}}
        return {"source": f"k{number}", "steps": [step]}

    async def predict(
        self, sources: Sequence[str], dims: Mapping[str, int] | None = None
    ) -> list[PredictedLatency]:
        return [self._predict_latency(source) for source in sources]

    def _predict_latency(self, source: str) -> PredictedLatency:
        if source == "k4":
            return PredictedLatency(error=ErrorInfo(code="capacity", message="too large"))
        return PredictedLatency(latency_ms=9.0 - int(source[1:]), code=code(source), instructions=100)


def code(source: str) -> str:
    return digest_of(source.encode())


async def test_without_predictions_the_first_are_taken_that_differ():
    answer = await random_baseline.draw_variants(request(3, 0), "parent", Pool().ask, {})
    assert [one.steps[0].site for one in answer.variants.found] == ["k0", "k1", "k2"]
    assert {one.latency_ms for one in answer.variants.found} == {None}
    assert (answer.predicted, answer.failed) == (0, 0)
    assert set(answer.sources) == {one.source for one in answer.variants.found}
    plan = lookahead_role.plan_variant(answer.variants.found[0], 10.0)
    assert (plan.prediction.speedup, plan.prediction.reason) == (1.0, "drawn evenly; nothing was predicted")


async def test_with_predictions_the_fastest_are_taken_that_are_new():
    pool = Pool()
    scale = PredictionScale(pool.predict, None, pool._predict_latency("k0"), 9.0, 0)
    answer = await random_baseline.draw_and_predict(
        request(3, 12, known=(code("k5"),)), "parent", pool.ask, {}, scale
    )
    assert [one.steps[0].site for one in answer.variants.found] == ["k3", "k2", "k1"]
    assert (answer.predicted, answer.failed) == (5, 1)
    assert answer.variants.found[0].steps[0].speedup == pytest.approx(10 / 6)


async def test_no_more_is_drawn_than_can_be_predicted():
    pool = Pool()
    scale = PredictionScale(
        pool.predict, None, pool._predict_latency("k0").model_copy(update={"instructions": 5000}), 9.0, 0
    )
    await random_baseline.draw_and_predict(request(1, 12), "parent", pool.ask, {}, scale)
    assert pool.asked == 2
