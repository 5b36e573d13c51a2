"""The built-in proposer's sequences: found by real predictions, planned, carried out again, judged."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

import seeds
from agent_core.effects import ImplementRequest, LearningContext, LookAheadRequest, PlanRequest
from agent_core.roles import LookAheadAnswer, RoleError
from agent_core.sequences import describe_setting
from remote.evaluator import PredictionRequest
from remote.judge_service import JudgeService
from remote.local import LocalEvaluator
from state.model import (
    Benchmark,
    Candidate,
    EvaluationRequest,
    LatencyBounds,
    Plan,
    PredictedLatency,
    SequenceLeg,
    canonical_json,
    digest_of,
)
from targets.nki.judge.normalise import code_digest
from targets.nki.rewrites import create
from tests.support.blobs import Blobs
from tests.support.learnt_sequences import learnt_sequence

PROBLEM = seeds.load_problem("silu")
DEPTH, PREDICTIONS, PLANS = 4, 16, 3

pytestmark = pytest.mark.asyncio(loop_scope="module")


class Bench:
    """A proposer and the real evaluator, with one kernel to look ahead from; `asked` are its predictions."""

    def __init__(self, home: Path) -> None:
        self.blobs = Blobs()
        for data in PROBLEM.files.values():
            self.blobs.put(data)
        self.evaluator = LocalEvaluator(
            JudgeService(home=home, slots=1, allow_weak_jail=True, secret="a secret of tests"), target="trn2"
        )
        self.proposer = create(workers=1)
        self.context = self.blobs.put(canonical_json(EMPTY.model_dump(mode="json")))
        self.asked: list[tuple[Sequence[str], Mapping[str, int] | None]] = []

    async def aclose(self) -> None:
        await self.proposer.aclose()
        await self.evaluator.aclose()

    async def predict(
        self, sources: Sequence[str], dims: Mapping[str, int] | None = None
    ) -> list[PredictedLatency]:
        self.asked.append((sources, dims))
        request = PredictionRequest(
            author="builtin", sources=tuple(sources), problem=PROBLEM.make_ref(), size="reduced",
            target="trn2", toolchain=self.evaluator.toolchain(), dims=dims,
        )  # fmt: skip
        return await self.evaluator.predict(request, self.blobs)

    async def parent(self, kernel: str = PROBLEM.kernel) -> Candidate:
        (told,) = await self.predict([kernel])
        assert told.latency_ms is not None
        timed = Benchmark(
            latency_ms=told.latency_ms,
            lo_ms=told.latency_ms,
            hi_ms=told.latency_ms,
            predicted=True,
            samples=1,
        )
        source = kernel.encode()
        return Candidate(
            id="r0.b0.p0.k0.f0", parent=None, lineage="r0.b0.p0.k0.f0", round=0,
            source=self.blobs.put(source), code=code_digest(source), technique=None, title="",
            benchmark=timed, bottleneck="vector", profile=None,
        )  # fmt: skip

    async def look_ahead(self, *, kernel: str = PROBLEM.kernel, **changes: Any) -> LookAheadAnswer:
        parent = await self.parent(kernel)
        fields: dict[str, Any] = {
            "key": "r1.b0.p0.k0.f0.predictor", "role": "predictor", "draw": 7, "problem": PROBLEM.make_ref(),
            "size": "reduced", "target": "trn2", "toolchain": self.evaluator.toolchain(), "parent": parent,
            "known": (parent.code,), "context": self.context, "variants": PLANS, "depth": DEPTH, "width": 2,
            "predictions": PREDICTIONS, "instructions": 300_000,
        }  # fmt: skip
        request = LookAheadRequest(**(fields | changes))
        return await self.proposer.look_ahead(request, self.blobs.get_blob, self.predict)

    async def plan(self, seen: LookAheadAnswer, number: int) -> Plan:
        request = PlanRequest(
            key=f"r1.b0.p{number}.k0.f0.planner", role="planner", draw=0, plans=PLANS,
            problem=PROBLEM.make_ref(), size="reduced", target="trn2",
            bounds=LatencyBounds(plain_ms=1, tight_ms=1), parent=await self.parent(), best_ms=1.0,
            context=self.context,
            variants=self.blobs.put(canonical_json(seen.variants.model_dump(mode="json"))),
        )  # fmt: skip
        return (await self.proposer.plan(request, self.blobs.__getitem__)).plan

    async def carry_out(self, plan: Plan, implementation: int = 0) -> str:
        request = ImplementRequest(
            key=f"r1.b0.p0.k{implementation}.f0.executor", role="executor", draw=0,
            problem=PROBLEM.make_ref(), size="reduced", target="trn2", parent=await self.parent(), plan=plan,
        )  # fmt: skip
        return (await self.proposer.implement(request, self.blobs.__getitem__)).source


EMPTY = LearningContext(memory=(), reflections=(), attempts=(), credits={})


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def bench(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Bench]:
    made = Bench(tmp_path_factory.mktemp("evaluator"))
    yield made
    await made.aclose()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def seen(bench: Bench) -> LookAheadAnswer:
    return await bench.look_ahead()


async def test_sequences_are_found_within_the_limits(bench: Bench, seen: LookAheadAnswer):
    found = seen.variants.found
    assert 0 < seen.predicted + seen.failed <= PREDICTIONS
    assert 0 < len(found) <= PLANS
    assert found[0].latency_ms < seen.variants.parent_ms
    assert any(len(one.steps) > 1 for one in found)
    for one in found:
        assert len(one.steps) <= DEPTH
        assert digest_of(seen.sources[one.source]) == one.source
        assert prod(step.speedup for step in one.steps) == pytest.approx(
            seen.variants.parent_ms / one.latency_ms
        )
    assert await bench.look_ahead() == seen


async def test_what_paid_elsewhere_is_tried_first_in_the_first_round_and_left_out_where_it_is_lost(
    bench: Bench, seen: LookAheadAnswer
):
    found = seen.variants.found[0]
    mine = SequenceLeg(source=bench.blobs.put(PROBLEM.kernel.encode()), steps=found.steps, speedup=2.0)
    where = describe_setting(PROBLEM.spec, "reduced", "trn2", PROBLEM.kernel)
    paid = learnt_sequence("paid", of=where.tags, arguments=where.arguments, legs=(mine,))
    lost = learnt_sequence("lost", of=where.tags, arguments=where.arguments)
    given = EMPTY.model_copy(update={"sequences": (lost, paid)})
    context = bench.blobs.put(canonical_json(given.model_dump(mode="json")))
    bench.asked.clear()
    told = await bench.look_ahead(context=context)
    assert told.variants.reasons[0].startswith("lost@7 was not tried: ")
    first = next(sources for sources, _ in bench.asked if PROBLEM.kernel not in sources)
    assert code_digest(first[0].encode()) == code_digest(seen.sources[found.source])
    later = await bench.look_ahead(context=context, key="r2.b0.p0.k0.f0.predictor")
    assert later == seen


async def test_who_looks_ahead_again_elsewhere_finds_the_same(tmp_path: Path, seen: LookAheadAnswer):
    """As after a kill: no ranking, no prediction and no process is left of the first time."""
    other = Bench(tmp_path)
    try:
        assert await other.look_ahead() == seen
    finally:
        await other.aclose()


async def test_what_was_predicted_is_what_is_planned_carried_out_and_judged(
    bench: Bench, seen: LookAheadAnswer
):
    best = seen.variants.found[0]
    plan = await bench.plan(seen, 0)
    assert plan.steps == best.steps
    assert plan.prediction.speedup == pytest.approx(seen.variants.parent_ms / best.latency_ms, rel=1e-5)
    source = await bench.carry_out(plan)
    assert source.encode() == seen.sources[best.source]
    request = EvaluationRequest(
        candidate="r1.b0.p0.k0.f0", author="builtin", source=bench.blobs.put(source.encode()),
        problem=PROBLEM.make_ref(), size="reduced", target="trn2", toolchain=bench.evaluator.toolchain(),
    )  # fmt: skip
    judged = (await bench.evaluator.evaluate(request, bench.blobs)).evaluation
    assert judged.is_correct
    assert judged.benchmark is not None
    assert judged.benchmark.latency_ms == pytest.approx(best.latency_ms)


async def test_each_plan_is_a_variant_and_there_are_no_more(bench: Bench, seen: LookAheadAnswer):
    count = len(seen.variants.found)
    plans = [await bench.plan(seen, number) for number in range(count)]
    assert [plan.detail for plan in plans] == [{"source": one.source} for one in seen.variants.found]
    with pytest.raises(RoleError, match=f"nothing_applies: {count} variants found of r0.b0.p0.k0.f0: ."):
        await bench.plan(seen, count)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda plan: {"detail": {"source": "0" * 64}}, "not_reproduced"),
        (lambda plan: {"steps": plan.steps[:-1]}, "not_reproduced"),
        (lambda plan: {"steps": (*plan.steps, plan.steps[0])}, "does_not_apply"),
        (
            lambda plan: {"steps": (plan.steps[0].model_copy(update={"site": "nowhere"}),)},
            "does_not_apply",
        ),
    ],
)
async def test_a_sequence_that_leads_elsewhere_is_refused(bench: Bench, seen: LookAheadAnswer, change, code):
    number = next(n for n, one in enumerate(seen.variants.found) if len(one.steps) > 1)
    plan = await bench.plan(seen, number)
    with pytest.raises(RoleError, match=code):
        await bench.carry_out(plan.model_copy(update=change(plan)))


async def test_a_sequence_has_one_form(bench: Bench, seen: LookAheadAnswer):
    with pytest.raises(RoleError, match="no_more_choices"):
        await bench.carry_out(await bench.plan(seen, 0), implementation=1)


async def test_kernels_too_large_to_predict_enough_of_are_predicted_at_smaller_dimensions(bench: Bench):
    before = len(bench.asked)
    small = await bench.look_ahead(instructions=600)
    dims = {tuple((told or {}).items()) for _, told in bench.asked[before + 1 :]}
    full = PROBLEM.spec.dims("reduced")
    ((*asked,),) = dims
    assert prod(dict(asked).values()) < prod(full.values())
    assert small.variants.parent_ms == (await bench.parent()).latency_ms
    assert 0 < small.variants.found[0].latency_ms < small.variants.parent_ms


FIXED = """
import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def kernel(x):
    out = nl.ndarray(({rows}, {columns}), dtype=nl.float32, buffer=nl.shared_hbm)
    for i in nl.affine_range({rows} // 128):
        for j in nl.affine_range({columns} // 128):
            tile = nl.ndarray((128, 128), dtype=nl.float32, buffer=nl.sbuf)
            nisa.dma_copy(dst=tile, src=x[i * 128 : (i + 1) * 128, j * 128 : (j + 1) * 128])
            result = nl.ndarray((128, 128), dtype=nl.float32, buffer=nl.sbuf)
            nisa.activation(dst=result, op=nl.silu, data=tile)
            nisa.dma_copy(dst=out[i * 128 : (i + 1) * 128, j * 128 : (j + 1) * 128], src=result)
    return out
"""


async def test_large_kernels_of_fixed_sizes_are_predicted_with_fewer_iterations(bench: Bench):
    """They say dimensions, because no prediction at a problem's size may be below the problem's bound."""
    dims = PROBLEM.spec.dims("reduced")
    kernel = FIXED.format(rows=dims["M"], columns=dims["N"])
    before = len(bench.asked)
    small = await bench.look_ahead(kernel=kernel, instructions=600)
    shortened = [source for sources, told in bench.asked[before + 1 :] if told == dims for source in sources]
    assert len(shortened) > small.predicted // 2
    (whole,) = await bench.predict([kernel])
    assert small.instructions < small.predicted * whole.instructions / 2
    assert small.variants.parent_ms == whole.latency_ms
    best = small.variants.found[0]
    source = small.sources[best.source].decode()
    (real,) = await bench.predict([source])
    assert real.latency_ms == pytest.approx(best.latency_ms, rel=0.1)
    again = await bench.look_ahead(kernel=kernel, instructions=600, known=(code_digest(source.encode()),))
    assert best.source not in [one.source for one in again.variants.found]
