"""Explanations are computed once for all who ask, and only what is pure and complete is kept."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from daemon.explanation_cache import ExplanationCache
from remote.evaluator import ExplanationRequest
from remote.judge.job import JudgeOutcome
from state.events import PlanProposed, PlanStarted, RoundStarted
from state.log import EventLog
from state.model import ErrorInfo, KernelExplanation, ProblemRef, Verdict
from tests.daemon.calls import fake_models
from tests.daemon.calls.fake_models import CONFIG, FakeProvider
from tests.support.fakes import FakeEvaluator

FOUND = KernelExplanation(latency_ms=1.0, topics={"what_if": "1 ms as it is"})
REFUSED = JudgeOutcome(verdict=Verdict.LINT_ERROR, stage="rules")


def asked(source: str, author: str = "a") -> ExplanationRequest:
    problem = ProblemRef(name="silu", digest="0" * 64, files={})
    return ExplanationRequest(author, source, problem, "reduced", "trn2", ("what_if",))


class Counting:
    """Computes explanations, and counts how often."""

    def __init__(self, *answers) -> None:
        self.answers, self.times = list(answers), 0

    async def __call__(self):
        self.times += 1
        await asyncio.sleep(0)
        found = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(found, Exception):
            raise found
        return found


async def test_authors_that_ask_at_once_share_one_computation():
    cache, compute = ExplanationCache(), Counting(FOUND)
    found = await asyncio.gather(*(cache.find("1", asked("k", author), compute) for author in "abc"))
    assert (found, compute.times) == ([FOUND] * 3, 1)
    await cache.find("2", asked("k"), compute)
    await cache.find("1", asked("other"), compute)
    assert compute.times == 3, "another toolchain or kernel is another explanation"


@pytest.mark.parametrize(
    "first", [REFUSED, KernelExplanation(error=ErrorInfo(code="untimed", message="it has no latency"))]
)
async def test_only_explanations_with_a_latency_are_kept(first):
    cache, compute = ExplanationCache(), Counting(first, FOUND)
    assert await cache.find("1", asked("k"), compute) == first
    assert await cache.find("1", asked("k"), compute) == FOUND


async def test_what_failed_is_computed_by_the_next_who_asks():
    cache, compute = ExplanationCache(), Counting(RuntimeError("no worker"), FOUND)
    both = await asyncio.gather(
        *(cache.find("1", asked("k"), compute) for _ in range(2)), return_exceptions=True
    )
    assert [type(one) for one in both] == [RuntimeError, KernelExplanation]


async def test_the_oldest_explanations_go_first():
    cache, compute = ExplanationCache(most=2), Counting(FOUND)
    for source in ("k", "l", "k", "m", "k"):
        await cache.find("1", asked(source), compute)
    assert compute.times == 3
    await cache.find("1", asked("l"), compute)
    assert compute.times == 4


async def test_the_planners_of_a_kernel_have_its_what_ifs_predicted_once(home, monkeypatch):
    """Five plans for each of a round's kernels, two rounds: each kernel is explained once, not five times."""
    explained: Counter[str] = Counter()

    async def explain(self, request, blobs):
        explained[request.source] += 1
        return FOUND

    monkeypatch.setattr(FakeEvaluator, "explain", explain)
    plans = CONFIG.model_copy(update={"search": CONFIG.search.model_copy(update={"plans": 5})})
    provider = FakeProvider()
    with EventLog.open(home) as log:
        run = await fake_models.finish_run(log, provider, plans)
        events = [item.event for item in log.read(stream=run, limit=10_000)]
    parents = {slot.parent for e in events if isinstance(e, RoundStarted) for slot in e.slots}
    asked_plans = sum(isinstance(e, PlanStarted) for e in events)
    assert any(isinstance(e, PlanProposed) for e in events)
    assert asked_plans > 2 * len(parents)
    assert len(explained) <= len(parents)
    assert set(explained.values()) == {1}, f"{asked_plans} planners asked about {len(parents)} kernels"
    told = [r for r in provider.asked if "1 ms as it is" in "".join(p.text for p in r.case + r.guide)]
    assert len(told) >= asked_plans
