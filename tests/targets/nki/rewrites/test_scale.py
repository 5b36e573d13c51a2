"""At which size a search predicts, and what becomes of a parent that cannot be predicted there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

import seeds
from agent_core.effects import LookAheadRequest
from agent_core.roles import Predict, PredictionsEndedError, RoleError
from state.model import ErrorInfo, PredictedLatency
from targets.nki.judge.normalise import code_digest
from targets.nki.rewrites.lookahead_role import predict_whole
from targets.nki.rewrites.prediction_scale import (
    PredictionScale,
    RunEngineJob,
    problem_job_fields,
    select_scale,
)
from targets.nki.rewrites.search_nodes import SearchNode
from targets.nki.rewrites.worker import perform_job
from tests.support.path_kernels import make_candidate

SMALL = {"M": 1, "N": 1}
BROKEN = PredictedLatency(error=ErrorInfo(code="tensor_output_not_written_to", message="out has gaps"))


async def select_from_parent(predict: Predict, ask: RunEngineJob) -> PredictionScale:
    request = LookAheadRequest.model_construct(
        size="full", target="trn2", instructions=1000, parent=make_candidate("parent", 10.0)
    )
    spec = seeds.load_problem("silu").spec
    return await select_scale(
        request, request.parent, "parent", parent_ms=10.0, predict=predict, spec=spec, ask=ask
    )


async def scale(
    at_full: PredictedLatency, at_small: PredictedLatency, dims: dict[str, int] | None
) -> PredictionScale:
    async def ask(job: dict[str, Any]) -> dict[str, Any]:
        return {"dims": dims, "shortened": [], "instructions": 100}

    async def predict(
        sources: Sequence[str], dims: Mapping[str, int] | None = None
    ) -> list[PredictedLatency]:
        return [at_small if dims else at_full for _ in sources]

    return await select_from_parent(predict, ask)


@pytest.mark.parametrize(("late", "told"), [(0, [3.0, 2.0, None]), (1, [3.0, 2.0, None]), (2, [])])
async def test_what_was_found_is_predicted_whole_if_there_is_time(late: int, told: list[float | None]):
    whole = {"a": 3.0, "b": 2.0, "broken": None}
    asked: list[Mapping[str, int] | None] = []

    async def predict(
        sources: Sequence[str], dims: Mapping[str, int] | None = None
    ) -> list[PredictedLatency]:
        asked.append(dims)
        if len(asked) <= late:
            raise PredictionsEndedError
        return [PredictedLatency(latency_ms=whole[source], instructions=7) for source in sources]

    there = PredictionScale(predict, SMALL, PredictedLatency(latency_ms=1.0), 4.0, 0)
    found = await predict_whole(there, [SearchNode(source, (), 1.0, 1) for source in whole])
    assert [one.latency_ms for one in found] == told
    assert asked == [None] * max(1, min(late + 1, 2))


async def test_what_is_predicted_at_a_smaller_size_is_told_at_the_problems_own():
    found = await scale(PredictedLatency(latency_ms=8.0), PredictedLatency(latency_ms=2.0), SMALL)
    assert found.dims == SMALL
    assert (await found.predict(["other"]))[0].latency_ms == 10.0


async def test_a_parent_that_only_works_at_its_own_size_is_predicted_there():
    found = await scale(PredictedLatency(latency_ms=8.0), BROKEN, SMALL)
    assert found.dims is None
    assert (await found.predict(["other"]))[0].latency_ms == 10.0


@pytest.mark.parametrize("dims", [SMALL, None])
async def test_nothing_is_searched_from_a_parent_without_a_prediction(dims: dict[str, int] | None):
    with pytest.raises(RoleError, match="out has gaps") as caught:
        await scale(BROKEN, BROKEN, dims)
    assert caught.value.info.code == "not_predicted"


WANTED = [[0, 0, 4], [1, 0, 2]]
"""Along which dimensions kernels are to be shortened."""
FULL_DIMS = seeds.load_problem("silu").spec.dims("full")


async def shortened_scale(
    at_shorter: dict[str, PredictedLatency], made: dict[str, list[list[int]]]
) -> PredictionScale:
    """At a scale where kernels of these names become shorter along dimensions, with these predictions.

    Their names then end with the divisors. All whole kernels take 8 ms.
    """

    async def ask(job: dict[str, Any]) -> dict[str, Any]:
        if job["job"] == "proxy":
            return {"dims": None, "shortened": WANTED, "instructions": 100}
        assert job["job"] == "shorten"
        done = made.get(job["source"], [])
        done = [
            [*one[:2], min(one[2], most)] for one, (*_, most) in zip(done, job["dimensions"], strict=False)
        ]
        named = [dict(zip(("argument", "axis", "divisor"), one, strict=True)) for one in done]
        name = " ".join([job["source"], *(str(one[2]) for one in done)])
        shortened = {"source": name, "dimensions": named} if done else None
        return {"shortened": shortened, "code": f"{job['source']} whole"}

    async def predict(
        sources: Sequence[str], dims: Mapping[str, int] | None = None
    ) -> list[PredictedLatency]:
        whole = [source for source in sources if source not in at_shorter]
        assert dims == (FULL_DIMS if not whole else None), "at a problem's size, too little work is refused"
        return [at_shorter.get(source, PredictedLatency(latency_ms=8.0)) for source in sources]

    return await select_from_parent(predict, ask)


async def test_kernels_of_fixed_sizes_are_predicted_with_fewer_iterations():
    """Each relative to the parent with as few; what cannot be shortened is predicted and told as it is."""
    answers = {
        "parent 4 2": 2.0, "parent 2": 5.0, "other 4 2": 3.0, "partly 2": 6.0
    }  # fmt: skip
    found = await shortened_scale(
        {name: PredictedLatency(latency_ms=value) for name, value in answers.items()},
        {"parent": WANTED, "other": WANTED, "partly": [[0, 0, 2]]},
    )
    assert not found.is_full_size
    told = await found.predict(["other", "unlike", "partly", "other"])
    assert [one.latency_ms for one in told] == [15.0, 8.0, 12.0, 15.0]
    assert [one.code for one in told] == ["other whole", None, "partly whole", "other whole"]


async def test_a_kernel_that_breaks_a_rule_when_shortened_is_predicted_as_it_is():
    short = {"parent 4 2": PredictedLatency(latency_ms=2.0), "other 4 2": BROKEN}
    found = await shortened_scale(short, {"parent": WANTED, "other": WANTED})
    assert [one.latency_ms for one in await found.predict(["other"])] == [8.0]


async def test_kernels_are_predicted_as_they_are_where_the_parent_cannot_be_shortened_alike():
    short = {"parent 4 2": PredictedLatency(latency_ms=2.0), "parent 2": BROKEN}
    found = await shortened_scale(short, {"parent": WANTED, "other": [[0, 0, 2]]})
    assert [one.latency_ms for one in await found.predict(["other"])] == [8.0]


@pytest.mark.parametrize("made", [{"parent": WANTED}, {"parent": WANTED[:1]}, {}])
async def test_a_parent_that_needs_all_iterations_is_predicted_as_it_is(made: dict[str, list[list[int]]]):
    found = await shortened_scale({"parent 4 2": BROKEN}, made)
    assert found.is_full_size
    assert (await found.predict(["other"]))[0].latency_ms == 10.0


FIXED = """
import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def kernel(x):
    out = nl.ndarray((4096, 7168), dtype=nl.float32, buffer=nl.shared_hbm)
    for i in nl.affine_range(32):
        tile = nl.ndarray((128, 7168), dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=x[i * 128 : (i + 1) * 128, :])
        nisa.activation(dst=tile, op=nl.silu, data=tile)
        nisa.dma_copy(dst=out[i * 128 : (i + 1) * 128, :], src=tile)
    return out
"""


@pytest.mark.parametrize(("most", "shortened"), [(96, []), (95, [(0, 0, 2)]), (1, [(0, 0, 16)])])
def test_the_engine_finds_what_can_be_shortened(most: int, shortened: list[tuple[int, int, int]]):
    spec = seeds.load_problem("silu").spec
    fields = problem_job_fields(spec, "full", "trn2")
    job = {"source": FIXED, "spec": spec.model_dump(mode="json"), "dims": spec.dims("full"), "most": most}
    found = perform_job({**fields, **job, "job": "proxy"})
    assert found == {"dims": None, "instructions": 96, "shortened": shortened}
    if shortened:
        job = {"job": "shorten", "source": FIXED, "dimensions": shortened}
        trips = 32 // shortened[0][2]
        made = perform_job({**fields, **job})
        assert f"affine_range({trips})" in made["shortened"]["source"]
        assert made["code"] == code_digest(FIXED.encode())
    broken = {"job": "shorten", "source": "def kernel(", "dimensions": shortened}
    assert perform_job({**fields, **broken}) == {"shortened": None}
