"""At which size a search predicts, and what becomes of a parent that cannot be predicted there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

import seeds
from agent_core.effects import LookAheadRequest
from agent_core.roles import RoleError
from state.model import ErrorInfo, PredictedLatency
from targets.nki.rewrites.prediction_scale import PredictionScale, select_scale
from tests.support.path_kernels import make_candidate

SMALL = {"M": 1, "N": 1}
BROKEN = PredictedLatency(error=ErrorInfo(code="tensor_output_not_written_to", message="out has gaps"))


async def scale(
    at_full: PredictedLatency, at_small: PredictedLatency, dims: dict[str, int] | None
) -> PredictionScale:
    async def ask(job: dict[str, Any]) -> dict[str, Any]:
        return {"dims": dims, "instructions": 100}

    async def predict(
        sources: Sequence[str], dims: Mapping[str, int] | None = None
    ) -> list[PredictedLatency]:
        return [at_small if dims else at_full for _ in sources]

    request = LookAheadRequest.model_construct(
        size="full", target="trn2", instructions=1000, parent=make_candidate("parent", 10.0)
    )
    spec = seeds.load_problem("silu").spec
    return await select_scale(
        request, request.parent, "parent", parent_ms=10.0, predict=predict, spec=spec, ask=ask
    )


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
