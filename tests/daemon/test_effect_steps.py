"""Long effects go on where they were cut off, and what is delivered in vain again and again fails by name."""

from __future__ import annotations

import asyncio
from string import ascii_letters
from unittest import mock

import pytest

from agent_core.effects import STARTED, LookAheadRequest, Variants
from agent_core.roles import LookAheadAnswer
from agent_core.roles.worker_pool import ask_worker
from daemon.calls.errors import EffectDeferred
from daemon.effect_steps import (
    FAIR_SECONDS,
    MAX_DELIVERIES,
    MAX_SHORT_DELIVERIES,
    MAX_VAIN_DELIVERIES,
    EffectSteps,
    steps_folder,
)
from daemon.runner import EffectRunner
from daemon.workers import Workers
from state.events import EffectPoisoned, EvaluationFailed, RunResumed
from state.log import EventLog
from state.model import EffectKey, PredictedLatency, Role, RunStatus, digest_of
from state.records import NewEvent
from tests.daemon.test_runner import NO_PAUSE, admit, in_first_round, look_ahead, next_effects, start
from tests.support import fakes


class Killed(BaseException):
    """Stands for the end of the process."""


class CountingEvaluator(fakes.FakeEvaluator):
    """Predicts by a source's length; ends the "process" once `lives` predictions were made."""

    def __init__(self, lives: int = 10**9) -> None:
        super().__init__()
        self.lives = lives
        self.predicted: list[str] = []

    async def predict(self, request, blobs, /):
        if self.lives < len(request.sources):
            raise Killed
        self.lives -= len(request.sources)
        self.predicted += request.sources
        return [PredictedLatency(latency_ms=float(len(source)), instructions=1) for source in request.sources]


class CountingPool:
    def __init__(self) -> None:
        self.asked: list[str] = []

    async def prepare(self) -> None: ...

    async def run(self, request: str) -> str:
        self.asked.append(request)
        return f'{{"ok": {{"made": "{request * 2}"}}}}'


class Searcher:
    """Looks ahead for as many generations as told; what it asks follows from the answers before."""

    name = "searcher"
    repairs = False

    def __init__(self, pool: CountingPool, generations: int) -> None:
        self.pool = pool
        self.generations = generations

    async def look_ahead(self, request: LookAheadRequest, read, predict) -> LookAheadAnswer:
        source, total = "x", 0.0
        for _ in range(self.generations):
            made = await ask_worker(self.pool, source, "the pool")
            source = made["made"]
            told = await predict([source + mark for mark in ascii_letters[:24]])
            total += sum(one.latency_ms for one in told)
            source = source[: 1 + int(total) % 5]
        return LookAheadAnswer(
            variants=Variants(parent_ms=1.0, found=(), reasons=(f"total {total}",)),
            sources={}, predicted=int(total), failed=0, instructions=0,
        )  # fmt: skip

    async def aclose(self) -> None: ...


@pytest.fixture
def event_log(home):
    with EventLog.open(home) as log:
        yield log


def runner_with(event_log: EventLog, evaluator, searcher=None) -> EffectRunner:
    workers = Workers(create_evaluator=lambda _: evaluator, create_proposer=lambda _: searcher)
    return EffectRunner(event_log, workers, retry=NO_PAUSE)


async def deliver_again(
    event_log: EventLog, run: str, key: EffectKey, times: int = 1, *, begun: bool = False, seconds: int = 0
) -> str:
    """Admit an open effect again, as after a crash; return its request. `seconds`: how long each worked."""
    for _ in range(times):
        opened = event_log.run_state(run).open[str(key)]
        again = STARTED[key.role](key=str(key), request=opened.request, delivery=opened.delivery + 1)
        await event_log.append([NewEvent(run, again)])
        if begun:
            await work_in_vain(EffectSteps(event_log, run, key), seconds)
    return opened.request


async def work_in_vain(steps: EffectSteps, seconds: int) -> None:
    """Begin the work of a delivery, and work so long by the effect's own count."""
    await steps.note_begun()
    real = asyncio.sleep
    ticks = iter(range(seconds))

    async def tick(_: float) -> None:
        if next(ticks, None) is None:
            await real(3600)

    with mock.patch("daemon.effect_steps.asyncio.sleep", tick):
        async with steps.count_seconds():
            await real(0.01)


async def test_a_look_ahead_goes_on_where_it_was_cut_off(event_log, tmp_path) -> None:
    run, _ = await in_first_round(event_log)
    effect, pool = look_ahead(event_log, run), CountingPool()
    request = await admit(event_log, run, effect)
    asked: list[str] = []
    for lives in (50, 0, 8, 10**9):
        evaluator = CountingEvaluator(lives)
        runner = runner_with(event_log, evaluator, Searcher(pool, 4))
        if asked:
            request = await deliver_again(event_log, run, effect.key)
        try:
            await runner.perform(run, effect.key, request)
        except Killed:
            assert lives < 10**9
        asked += evaluator.predicted
    outcome = event_log.run_state(run).outcomes[str(effect.key)]
    with EventLog.open(tmp_path / "twin") as twin_log:
        twin, _ = await in_first_round(twin_log)
        evaluator, twin_pool = CountingEvaluator(), CountingPool()
        runner = runner_with(twin_log, evaluator, Searcher(twin_pool, 4))
        await runner.perform(twin, effect.key, await admit(twin_log, twin, look_ahead(twin_log, twin)))
        assert outcome == twin_log.run_state(twin).outcomes[str(effect.key)]
    assert sorted(asked) == sorted(evaluator.predicted)
    assert sorted(set(pool.asked)) == sorted(set(twin_pool.asked))
    assert len(pool.asked) < 4 * len(twin_pool.asked)
    assert not list(steps_folder(event_log.home).glob("*"))


@pytest.mark.parametrize(
    ("begun", "seconds", "deliveries"),
    [
        (True, FAIR_SECONDS // MAX_VAIN_DELIVERIES, MAX_VAIN_DELIVERIES),
        (True, 1, MAX_SHORT_DELIVERIES),
        (False, 0, MAX_DELIVERIES),
    ],
)
async def test_an_effect_that_is_delivered_in_vain_fails_by_name(
    event_log, begun, seconds, deliveries
) -> None:
    run, _ = await in_first_round(event_log)
    effect = look_ahead(event_log, run)
    await event_log.append([NewEvent(run, RunResumed(reason=""))])
    runner = runner_with(event_log, CountingEvaluator(), None)
    request = await admit(event_log, run, effect)
    await deliver_again(event_log, run, effect.key, deliveries, begun=begun, seconds=seconds)
    steps = EffectSteps(event_log, run, effect.key)
    assert steps.is_poisoned
    await runner.perform(run, effect.key, request)
    outcome = event_log.run_state(run).outcomes[str(effect.key)]
    assert outcome.error.code == "poisoned"
    (told,) = [one.event for one in event_log.read(stream=run) if isinstance(one.event, EffectPoisoned)]
    assert (told.key, told.deliveries) == (str(effect.key), deliveries)
    assert event_log.run_state(run).status is RunStatus.RUNNING


async def test_deliveries_count_from_the_last_part_on(event_log) -> None:
    run, _ = await in_first_round(event_log)
    effect = look_ahead(event_log, run)
    request = await admit(event_log, run, effect)
    await deliver_again(event_log, run, effect.key, MAX_VAIN_DELIVERIES - 1, begun=True)
    evaluator = CountingEvaluator(lives=1)  # after so many deliveries in vain, one kernel at a time
    with pytest.raises(Killed):
        await runner_with(event_log, evaluator, Searcher(CountingPool(), 1)).perform(run, effect.key, request)
    assert len(evaluator.predicted) == 1
    assert event_log.count_vain_deliveries(run, str(effect.key)) == (0, 0, 0)
    await deliver_again(event_log, run, effect.key, 4, begun=True)
    await deliver_again(event_log, run, effect.key, 2)
    assert event_log.count_vain_deliveries(run, str(effect.key)) == (5, 4, 0)


async def test_quick_deliveries_in_vain_are_not_held_against_an_effect_that_may_not_be_to_blame(
    event_log,
) -> None:
    run, _ = await in_first_round(event_log)
    effect = look_ahead(event_log, run)
    await admit(event_log, run, effect)
    for _ in range(3):  # a process that ended before this effect's work began was ended by something else
        await deliver_again(event_log, run, effect.key, MAX_SHORT_DELIVERIES - 2, begun=True, seconds=1)
        assert not EffectSteps(event_log, run, effect.key).is_poisoned
        await deliver_again(event_log, run, effect.key, 1)


async def test_a_poisoned_verdict_that_the_run_needs_pauses_it_until_a_person_has_it_tried_again(
    event_log,
) -> None:
    run = await start(event_log)
    (initial,) = await next_effects(event_log, run)
    request = await admit(event_log, run, initial)
    await deliver_again(event_log, run, initial.key, MAX_VAIN_DELIVERIES, begun=True, seconds=FAIR_SECONDS)
    runner = EffectRunner(event_log, fakes.fake_workers(), retry=NO_PAUSE)
    with pytest.raises(EffectDeferred):
        await runner.perform(run, initial.key, request)
    state = event_log.run_state(run)
    assert state.status is RunStatus.PAUSED
    assert "poisoned" in state.status_reason
    await event_log.append([NewEvent(run, RunResumed(reason="by a person"))])
    await deliver_again(event_log, run, initial.key)
    await runner.perform(run, initial.key, request)
    assert event_log.run_state(run).outcomes[str(initial.key)].evaluation.is_correct


async def test_another_poisoned_verdict_is_a_failure_of_the_infrastructure(event_log) -> None:
    run, effects = await in_first_round(event_log)
    key = effects[0].key.for_role(Role.EVALUATOR)
    (started,) = [one.event for one in event_log.read(stream=run, types=("EvaluationStarted",))]
    for delivery in range(1, MAX_SHORT_DELIVERIES + 2):
        again = STARTED[Role.EVALUATOR](key=str(key), request=started.request, delivery=delivery)
        await event_log.append([NewEvent(run, again)])
        await EffectSteps(event_log, run, key).note_begun()
    runner = EffectRunner(event_log, fakes.fake_workers(), retry=NO_PAUSE)
    await runner.perform(run, key, started.request)
    failed = event_log.run_state(run).outcomes[str(key)]
    assert isinstance(failed, EvaluationFailed)
    assert failed.error.code == "poisoned"


async def test_a_kept_answer_counts_for_its_question_alone(event_log) -> None:
    run, _ = await in_first_round(event_log)
    effect = look_ahead(event_log, run)
    await admit(event_log, run, effect)
    steps = EffectSteps(event_log, run, effect.key)
    await steps.keep("asked", "answer")
    await deliver_again(event_log, run, effect.key)
    again = EffectSteps(event_log, run, effect.key)
    assert await again.find("asked") == "answer"
    (path,) = (one for one in steps_folder(event_log.home).rglob("*") if one.is_file())
    path.rename(path.with_name(digest_of(b"another")))
    assert await again.find("another") is None
