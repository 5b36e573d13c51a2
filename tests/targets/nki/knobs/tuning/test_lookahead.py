"""Looking ahead by predictions: what is asked, what is found, and that nothing else decides."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from agent_core.effects import LearningContext, LookAheadRequest
from agent_core.roles import LookAheadAnswer, PredictionsEndedError
from state.model import Attempt, Candidate, ErrorInfo, PredictedLatency, ProblemRef, Verdict, digest_of
from targets.nki.judge.normalise import code_digest
from targets.nki.knobs.narrowing import default_ir
from targets.nki.knobs.render import render_kernel
from targets.nki.knobs.tuning.look_ahead import KnobLookAhead, ParentFeedback, PredictedPoint, choose_points
from targets.nki.knobs.tuning.points import KnobPoint
from targets.nki.knobs.tuning.worker import answer_request
from targets.nki.knobs.workload_file import dump_graphs
from tests.support.tuning_jobs import kernel, predict_by_text
from tests.support.workloads import WORKLOADS

GRAPH = WORKLOADS["rmsnorm_matmul"].graph
FILE = dump_graphs({"full": GRAPH}).decode()
BASE = render_kernel(default_ir(GRAPH))
NOTHING = LearningContext(memory=(), reflections=(), attempts=(), credits={})


class Model:
    """Predicts by the text of kernels; remembers what it was asked, refuses what `refuses` says."""

    def __init__(self, *, instructions: int = 100, refuses: str = "no such text") -> None:
        self.asked: list[str] = []
        self._instructions = instructions
        self._refuses = refuses

    async def __call__(
        self, sources: Sequence[str], dims: Mapping[str, int] | None = None
    ) -> Sequence[PredictedLatency]:
        self.asked += sources
        return [self._one(source) for source in sources]

    def _one(self, source: str) -> PredictedLatency:
        if self._refuses in source:
            return PredictedLatency(instructions=1, error=ErrorInfo(code="psum_capacity", message="too much"))
        return predict_by_text(source).model_copy(update={"instructions": self._instructions})


async def ask(job: dict[str, Any]) -> dict[str, Any]:
    told = {"workload": FILE, "size": "full", "target": "trn2", **job}
    made: dict[str, Any] = json.loads(answer_request(json.dumps(told)))
    return made["ok"]  # type: ignore[no-any-return]


def request(**changes: Any) -> LookAheadRequest:
    problem = ProblemRef(name="p", digest="0" * 64, files={})
    base: dict[str, Any] = {
        "key": "r1.b0.p0.k0.f0.predictor", "role": "predictor", "draw": 5, "problem": problem, "size": "full",
        "target": "trn2", "toolchain": "t", "parent": initial(), "known": (code_digest(BASE.encode()),),
        "context": "0" * 64, "variants": 6, "depth": 4, "width": 2, "predictions": 40,
        "instructions": 10**6,
    }  # fmt: skip
    return LookAheadRequest(**{**base, **changes})


def initial() -> Candidate:
    latency_ms = predict_by_text(BASE).latency_ms
    assert latency_ms is not None
    return kernel("r0.b0.p0.k0.f0", latency_ms)


def look(model: Model, context: LearningContext = NOTHING, **changes: Any) -> KnobLookAhead:
    return KnobLookAhead(request(**changes), context, ParentFeedback("dma", 12.0, 0.3), ask, model)


def latencies(found: LookAheadAnswer) -> list[float]:
    return [one.latency_ms for one in found.variants.found if one.latency_ms is not None]


async def test_many_points_are_predicted_and_the_best_are_found() -> None:
    model = Model()
    found = await look(model).run()
    assert found.predicted == len(model.asked) <= 40
    assert len(set(model.asked)) == len(model.asked)
    best = min(ms for source in model.asked if (ms := predict_by_text(source).latency_ms) is not None)
    assert min(latencies(found)) == best < initial().latency_ms
    for one in found.variants.found:
        assert digest_of(found.sources[one.source]) == one.source


async def test_equal_requests_have_equal_answers_and_draws_matter() -> None:
    first = await look(Model()).run()
    assert await look(Model()).run() == first
    assert (await look(Model(), draw=6).run()).variants != first.variants


async def test_the_first_round_begins_with_defaults_of_the_variants() -> None:
    found = await look(Model(), known=()).run()
    sites = [one.steps[0].site for one in found.variants.found]
    assert sites[0] == str(KnobPoint("identity", default_ir(GRAPH)))
    assert [site.split(" ")[0] for site in sites[1:3]] != ["identity"] * 2
    assert [step.technique for step in found.variants.found[0].steps] == ["knob_joint"]


async def test_what_was_judged_is_neither_predicted_again_nor_found() -> None:
    first = await look(Model()).run()
    codes = [code_digest(source) for source in first.sources.values()]
    attempts = tuple(
        Attempt(
            candidate=f"r1.b0.p{number}.k0.f0", parent=initial().id, technique=one.steps[0].technique,
            site=one.steps[0].site, code=codes[number], verdict=Verdict.CORRECT, error=None,
            speedup=initial().latency_ms / (one.latency_ms or 1), round=1,
        )
        for number, one in enumerate(first.variants.found)
    )  # fmt: skip
    model = Model()
    context = NOTHING.model_copy(update={"attempts": attempts})
    known = (code_digest(BASE.encode()), *codes)
    best = attempts[latencies(first).index(min(latencies(first)))]
    parent = initial().model_copy(update={"id": best.candidate})
    again = await look(model, context, known=known, parent=parent, draw=9).run()
    assert not {code_digest(source) for source in again.sources.values()} & set(known)
    assert not {one.source for one in first.variants.found} & {digest_of(s.encode()) for s in model.asked}


@pytest.mark.parametrize(("predictions", "instructions"), [(1, 10**6), (7, 10**6), (40, 1000), (40, 1)])
async def test_no_more_is_predicted_than_the_counts_allow(predictions: int, instructions: int) -> None:
    model = Model(instructions=100)
    found = await look(model, predictions=predictions, instructions=instructions).run()
    assert 1 <= len(model.asked) <= predictions
    assert found.instructions <= max(100, instructions)


async def test_a_search_whose_time_is_over_returns_what_it_has_found() -> None:
    class Hasty(Model):
        async def __call__(
            self, sources: Sequence[str], dims: Mapping[str, int] | None = None
        ) -> Sequence[PredictedLatency]:
            if len(self.asked) > 8:
                raise PredictionsEndedError
            return await super().__call__(sources, dims)

    found = await look(Hasty()).run()
    assert found.predicted > 8
    assert found.variants.found
    assert found.variants.reasons[-1] == "the share of the run's time for predictions was used up"


async def test_what_cannot_be_predicted_is_not_found() -> None:
    model = Model(refuses="nisa.dma_copy")
    found = await look(model).run()
    assert found.variants.found == ()
    assert found.failed == len(model.asked) > 1


async def test_why_it_looked_there_is_told() -> None:
    found = await look(Model()).run()
    assert found.variants.reasons[0] == "bottleneck dma, roofline efficiency 0.30, 12.0 % of bandwidth"


async def test_points_drawn_evenly_are_predicted_only_where_that_is_allowed() -> None:
    model = Model()
    found = await look(model, drawn=2, predictions=0).draw()
    assert model.asked == []
    assert [one.latency_ms for one in found.variants.found] == [None] * 6
    found = await look(model, drawn=2, predictions=12).draw()
    assert len(model.asked) == 12
    assert len(latencies(found)) > 1


def predicted_point(text: str, ms: float, code: str) -> PredictedPoint:
    return PredictedPoint(text, "title", "source", "knob_joint", ms, code)


def test_points_that_are_as_fast_as_one_before_come_last() -> None:
    made = [
        predicted_point("a 1", 1.0, "1"),
        predicted_point("a 2", 1.0001, "2"),
        predicted_point("b 1", 1.5, "3"),
        predicted_point("a 3", 1.2, "4"),
    ]
    told = [one.text for one in choose_points(made, 9, 2.0, frozenset(), ())]
    assert told == ["a 1", "b 1", "a 3", "a 2"]


def test_one_slower_point_is_among_them_and_no_known_one() -> None:
    made = [
        predicted_point("a 1", 2.1, "1"),
        predicted_point("a 2", 2.2, "2"),
        predicted_point("a 3", 3.0, "3"),
        predicted_point("a 4", 1.0, "4"),
    ]
    assert [one.text for one in choose_points(made, 9, 2.0, frozenset({"4"}), ())] == ["a 1"]
    same = [replace(made[3], text="a 5"), made[3]]
    assert len(choose_points(same, 9, 2.0, frozenset(), ())) == 1
