"""The proposer `knobs`, asked as the daemon asks it, through a real worker process."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import pytest
import pytest_asyncio

import seeds
from agent_core import proposers
from agent_core.effects import (
    ImplementRequest,
    LearningContext,
    LookAheadRequest,
    PlanRequest,
    SummarizeRequest,
)
from agent_core.roles import RoleError
from state.model import (
    TRUSTED_AUTHORS,
    ExperienceKind,
    LatencyBounds,
    Plan,
    PredictedLatency,
    Prediction,
    ProblemRef,
    canonical_json,
    digest_of,
)
from targets.nki.knobs.tuning import create
from targets.nki.knobs.tuning.proposer import KnobProposer, _first_default
from tests.support.tuning_jobs import kernel, predict_by_text

pytestmark = pytest.mark.asyncio(loop_scope="module")

PROBLEM = seeds.load_problem("rmsnorm_matmul")
NOTHING = LearningContext(memory=(), reflections=(), attempts=(), credits={})


class Blobs(dict[str, bytes]):
    def put(self, data: bytes) -> str:
        self[digest_of(data)] = data
        return digest_of(data)

    def read(self, digest: str) -> bytes:
        return self[digest]


@pytest.fixture
def blobs() -> Blobs:
    store = Blobs()
    for data in PROBLEM.files.values():
        store.put(data)
    return store


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def proposer() -> AsyncIterator[KnobProposer]:
    made = create(workers=1)
    assert isinstance(made, KnobProposer)
    yield made
    await made.aclose()


async def predict(
    sources: Sequence[str], dims: Mapping[str, int] | None = None
) -> Sequence[PredictedLatency]:
    return [predict_by_text(source) for source in sources]


def common(blobs: Blobs, problem: ProblemRef | None = None) -> dict[str, Any]:
    parent = kernel("r0.b0.p0.k0.f0", 9.0)
    source = blobs.put(PROBLEM.kernel.encode())
    profile = blobs.put(b'{"counters": {"mbu_estimated_percent": 42.0}}')
    return {
        "draw": 3, "problem": problem or PROBLEM.make_ref(), "size": "reduced", "target": "trn2",
        "parent": parent.model_copy(update={"source": source, "profile": profile, "bottleneck": "tensor"}),
    }  # fmt: skip


def look(blobs: Blobs, **changes: Any) -> LookAheadRequest:
    told = {
        "key": "r1.b0.p0.k0.f0.predictor", "role": "predictor", "toolchain": "t", "known": (),
        "context": blobs.put(canonical_json(NOTHING.model_dump(mode="json"))), "variants": 4, "depth": 4,
        "width": 2, "predictions": 12, "instructions": 10**6, **common(blobs),
    }  # fmt: skip
    return LookAheadRequest(**{**told, **changes})


def plan(blobs: Blobs, number: int, variants: str | None, **changes: Any) -> PlanRequest:
    told = {
        "key": f"r1.b0.p{number}.k0.f0.planner", "role": "planner", "plans": 4, "best_ms": 9.0,
        "bounds": LatencyBounds(plain_ms=1.0, tight_ms=2.0), "variants": variants,
        "context": blobs.put(canonical_json(NOTHING.model_dump(mode="json"))), **common(blobs),
    }  # fmt: skip
    return PlanRequest(**{**told, **changes})


def implement(blobs: Blobs, planned: Plan, implementation: int = 0) -> ImplementRequest:
    key = f"r1.b0.p0.k{implementation}.f0.executor"
    return ImplementRequest(key=key, role="executor", plan=planned, **common(blobs))


async def test_what_is_found_ahead_is_planned_and_lowered_as_it_was_predicted(
    proposer: KnobProposer, blobs: Blobs
) -> None:
    found = await proposer.look_ahead(look(blobs), blobs.read, predict)
    assert found.variants.reasons[0].startswith("bottleneck tensor, roofline efficiency ")
    assert "42.0 % of bandwidth" in found.variants.reasons[0]
    told = blobs.put(canonical_json(found.variants.model_dump(mode="json")))
    for number, variant in enumerate(found.variants.found):
        planned = (await proposer.plan(plan(blobs, number, told), blobs.read)).plan
        assert planned.technique.startswith("knob_")
        assert planned.steps == ()
        assert variant.latency_ms is not None
        assert planned.prediction.speedup == pytest.approx(9.0 / variant.latency_ms, rel=1e-5)
        made = await proposer.implement(implement(blobs, planned), blobs.read)
        assert digest_of(made.source.encode()) == variant.source
        assert made.note == planned.title
    with pytest.raises(RoleError, match=f"nothing_applies: {len(found.variants.found)} points found"):
        await proposer.plan(plan(blobs, 9, told), blobs.read)


async def test_without_predictions_plans_are_the_next_points(proposer: KnobProposer, blobs: Blobs) -> None:
    plans = [(await proposer.plan(plan(blobs, number, None), blobs.read)).plan for number in range(3)]
    assert len({one.site for one in plans}) == 3
    assert plans[0] == (await proposer.plan(plan(blobs, 0, None), blobs.read)).plan
    assert {one.prediction.speedup for one in plans} == {1.0}
    made = await proposer.implement(implement(blobs, plans[1]), blobs.read)
    assert plans[1].detail == {"source": digest_of(made.source.encode())}


async def test_a_problem_without_a_graph_is_refused_in_words(proposer: KnobProposer, blobs: Blobs) -> None:
    files = {name: digest for name, digest in PROBLEM.make_ref().files.items() if name != "workload.json"}
    bare = PROBLEM.make_ref().model_copy(update={"files": files})
    with pytest.raises(RoleError, match=r"no_graph: the problem rmsnorm_matmul carries no workload\.json"):
        await proposer.look_ahead(look(blobs, problem=bare), blobs.read, predict)
    with pytest.raises(RoleError, match="no_graph"):
        await proposer.plan(plan(blobs, 0, None, problem=bare), blobs.read)


async def test_what_cannot_be_carried_out_says_why(proposer: KnobProposer, blobs: Blobs) -> None:
    good = (await proposer.plan(plan(blobs, 0, None), blobs.read)).plan
    with pytest.raises(RoleError, match="no_more_choices"):
        await proposer.implement(implement(blobs, good, implementation=1), blobs.read)
    other = good.model_copy(update={"detail": {"source": "0" * 64}})
    with pytest.raises(RoleError, match="not_reproduced"):
        await proposer.implement(implement(blobs, other), blobs.read)
    foreign = Plan(technique="engine", site="line 3", title="t", prediction=Prediction(speedup=1.0))
    with pytest.raises(RoleError, match="no_point: 'line 3' is no point"):
        await proposer.implement(implement(blobs, foreign), blobs.read)


async def test_a_pair_is_told_by_arithmetic(proposer: KnobProposer, blobs: Blobs) -> None:
    planned = (await proposer.plan(plan(blobs, 0, None), blobs.read)).plan
    request = SummarizeRequest(
        key="r1.b0.p0.k0.f0.summarizer", role="summarizer", kind=ExperienceKind.POSITIVE,
        slow=kernel("a", 3.0), fast=kernel("b", 2.0), plan=planned,
    )  # fmt: skip
    found = (await proposer.summarize(request, blobs.read)).experience
    assert found is not None
    assert found.technique == planned.technique
    assert "sped up the kernel 1.500x" in found.summary


async def test_it_is_one_of_the_proposers() -> None:
    made = proposers.create_proposer("knobs")
    assert isinstance(made, KnobProposer)
    await made.aclose()
    assert proposers.can_look_ahead("knobs")
    assert not proposers.can_repair("knobs")
    assert "knobs" in TRUSTED_AUTHORS


async def test_where_no_variant_fits_anywhere_nothing_applies() -> None:
    async def ask(job: dict[str, Any]) -> dict[str, Any]:
        assert job == {"job": "defaults"}
        return {"points": [], "reasons": ["identity: too wide", "online: too wide"]}

    with pytest.raises(RoleError, match="nothing_applies: identity: too wide; online: too wide"):
        await _first_default(ask)
