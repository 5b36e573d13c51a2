"""Time of a day: on devices and under way, held before it is used, settled after, and never above a cap."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace

import pytest

from agent_core.decide import decide
from agent_core.roles import RoleError
from daemon.calls.budget_ledger import BudgetLedger
from daemon.calls.device_time import lease_device
from daemon.calls.errors import EffectDeferred
from daemon.calls.run_time_meter import HOLD_SECONDS, RunTimeMeter
from daemon.home_owner import serve_runs
from daemon.stop_signal import StopSignal
from remote.evaluator import EvaluationAnswer
from stability.budget import DayCaps
from state.events import (
    BudgetWarned,
    DayReserved,
    DaySettled,
    EvaluationCompleted,
    EvaluationFailed,
    EvaluationStarted,
    RunPaused,
    RunResumed,
)
from state.log import EventLog
from state.model import SYSTEM_STREAM, Amount, Level, PauseCause, Resource, RunStatus, StopReason, digest_of
from state.records import NewEvent
from tests.daemon.calls import fake_models
from tests.support import fakes
from tests.support.fakes import FakeEvaluator

NOON = 1_772_452_800.0
"""2 March 2026, 12:00 UTC."""
DAY = 86_400.0


@pytest.fixture
def event_log(home):
    with EventLog.open(home) as log:
        yield log


@dataclass
class Clock:
    now: float = NOON

    def __call__(self) -> float:
        return self.now


def ledger_of(event_log: EventLog, clock: Clock | None = None, **caps: float) -> BudgetLedger:
    return BudgetLedger(event_log, DayCaps(**caps), clock=clock or Clock())


async def submit_run(event_log: EventLog, id_: str = "a", **changes) -> str:
    return await fake_models.submit_run(event_log, fakes.CONFIG.model_copy(update=changes), id_)


def of(event_log: EventLog, stream: str, *kinds: type) -> list:
    return [one.event for one in event_log.read(stream=stream, limit=10_000) if isinstance(one.event, kinds)]


def device_day(event_log: EventLog) -> tuple[float, float]:
    """Return what is spent and held of the day's time on devices."""
    day = event_log.system_state().day
    return day.spent.device_seconds, day.reserved_amount.device_seconds


# --- devices ---------------------------------------------------------------------------------------


async def test_without_a_cap_nothing_is_held(event_log):
    run = await submit_run(event_log)
    assert await ledger_of(event_log).hold_device(run, "k", 600.0) is None
    async with lease_device(None, run, "k", 600.0) as use:
        end = fakes.judge_source(fakes.KERNEL.encode(), "trn2", Level.SLICES, {})
        assert await use.run_within(asyncio.sleep(0, end)) == end
        assert use.settlement_events(end) == []
    assert event_log.system_state().day is None


async def test_an_evaluation_holds_what_it_may_take_and_the_rest_is_for_others(event_log):
    run, ledger = await submit_run(event_log), ledger_of(event_log, device_seconds=1000.0)
    first = await ledger.hold_device(run, "k1", 600.0)
    second = await ledger.hold_device(run, "k2", 600.0)
    assert (first.seconds, second.seconds) == (600.0, 400.0)
    assert device_day(event_log) == (0.0, 1000.0)
    third = asyncio.create_task(ledger.hold_device(run, "k3", 600.0))
    await asyncio.sleep(0)
    await ledger.release(first, Amount(device_seconds=10.0))
    assert (await third).seconds == 590.0
    assert device_day(event_log) == (10.0, 990.0)


async def test_a_day_without_room_lets_the_run_wait_for_another_one(event_log):
    clock = Clock()
    run, ledger = await submit_run(event_log), ledger_of(event_log, clock, device_seconds=100.0)
    await ledger.release(await ledger.hold_device(run, "k1", 600.0), Amount(device_seconds=99.5))
    with pytest.raises(EffectDeferred):
        await ledger.hold_device(run, "k2", 600.0)
    state = event_log.run_state(run)
    assert (state.status, state.pause_cause) == (RunStatus.PAUSED, PauseCause.DAY)
    assert "day_device_seconds of 100" in state.status_reason
    assert not ledger.can_resume(run)
    clock.now += DAY
    assert ledger.can_resume(run)
    await event_log.append([NewEvent(run, RunResumed())])
    assert (await ledger.hold_device(run, "k3", 600.0)).seconds == 100.0


async def test_the_run_s_own_cap_holds_too_and_ends_the_run(event_log):
    run, ledger = await submit_run(event_log, cap_device_seconds=50.0), ledger_of(event_log)
    held = await ledger.hold_device(run, "k1", 600.0)
    assert held.seconds == 50.0
    other = await submit_run(event_log, "b", cap_device_seconds=70.0)
    assert (await ledger.hold_device(other, "k1", 600.0)).seconds == 70.0, (
        "what others hold is not of its cap"
    )
    await ledger.release(held, Amount(device_seconds=0.0))
    done = await ledger.hold_device(run, "k2", 600.0)
    verdict = await _verdict(event_log, run, 49.5)
    await event_log.append([verdict, ledger.hold_settlement(done, Amount(device_seconds=49.5))])
    with pytest.raises(RoleError, match="cap on device_seconds"):
        await ledger.hold_device(run, "k3", 600.0)
    assert event_log.run_state(run).short == {Resource.DEVICE_SECONDS: 50.0}


async def _verdict(event_log: EventLog, run: str, seconds: float) -> NewEvent:
    """Bring a run's first evaluation to its verdict, as if it had taken so long of a device."""
    (effect,) = decide(event_log.run_state(run))
    request = effect.request.model_dump_json().encode()
    started = EvaluationStarted(key=str(effect.key), request=digest_of(request))
    await event_log.append([NewEvent(run, started)], blobs=[request])
    answer = fakes.judge_source(fakes.KERNEL.encode(), "trn2", effect.request.level, {})
    completed = EvaluationCompleted(
        key=str(effect.key), evaluation=answer.evaluation, cache_key="0" * 64, device_seconds=seconds
    )
    return NewEvent(run, completed)


async def test_what_a_killed_process_held_is_charged_whole_by_the_next(event_log):
    run = await submit_run(event_log)
    await ledger_of(event_log, device_seconds=1000.0).hold_device(run, "k1", 300.0)
    again = ledger_of(event_log, device_seconds=1000.0)
    await RunTimeMeter(event_log, again).begin()
    assert device_day(event_log) == (300.0, 0.0)
    assert (await again.hold_device(run, "k1", 300.0)).seconds == 300.0
    assert device_day(event_log) == (300.0, 300.0)


async def test_marks_of_the_day_are_told_once_a_day_whoever_tells_them(event_log):
    run = await submit_run(event_log)
    for _ in range(2):
        ledger = ledger_of(event_log, device_seconds=100.0)
        await ledger.release(await ledger.hold_device(run, "k", 30.0), Amount(device_seconds=30.0))
    ledger = ledger_of(event_log, Clock(NOON + DAY), device_seconds=100.0)
    await ledger.release(await ledger.hold_device(run, "k", 99.0), Amount(device_seconds=55.0))
    told = [(one.resource, one.percent) for one in of(event_log, SYSTEM_STREAM, BudgetWarned)]
    assert told == [(Resource.DAY_DEVICE_SECONDS, 50), (Resource.DAY_DEVICE_SECONDS, 50)]


class Measuring(FakeEvaluator):
    """An evaluator whose latencies a device gave, in so many seconds each."""

    seconds = 10.0

    async def evaluate(self, request, blobs, /) -> EvaluationAnswer:
        answer = await super().evaluate(request, blobs)
        timed = answer.evaluation.benchmark
        if timed is not None:
            measured = timed.model_copy(update={"predicted": False, "draws_ms": ()})
            found = answer.evaluation.model_copy(update={"benchmark": measured})
            answer = replace(answer, evaluation=found)
        return replace(answer, stage_ms={"benchmark": self.seconds * 1000})


async def host_to_end(event_log: EventLog, evaluator: FakeEvaluator, config, daemon) -> str:
    """Host a run until it has ended, or waits."""
    run = await submit_run(event_log, **config)
    stop = StopSignal()
    roles = fake_models.create_role_factory(event_log, fake_models.FakeProvider(), daemon)
    hosting = asyncio.create_task(
        serve_runs(event_log, daemon, stop=stop, workers=fakes.fake_workers(evaluator), roles=roles)
    )
    async with asyncio.timeout(60):
        while event_log.run_state(run).status is RunStatus.RUNNING and not hosting.done():  # noqa: ASYNC110
            await asyncio.sleep(0.002)
    stop.request()
    await hosting
    return run


def never_over(event_log: EventLog, cap: float) -> None:
    """Check after every event that what is spent and held of the day stays within the cap."""
    spent, holds = 0.0, {}
    for event in of(event_log, SYSTEM_STREAM, DayReserved, DaySettled):
        if isinstance(event, DayReserved):
            holds[event.call] = event.amount.device_seconds
        else:
            holds.pop(event.call)
            spent += event.amount.device_seconds
        assert spent + sum(holds.values()) <= cap
    assert holds == {}


async def test_a_run_waits_when_the_day_s_devices_are_used_up_and_never_exceeds_them(event_log):
    daemon = fake_models.daemon_config(day_device_seconds=35.0)
    run = await host_to_end(event_log, Measuring(), {}, daemon)
    state = event_log.run_state(run)
    assert (state.status, state.pause_cause) == (RunStatus.PAUSED, PauseCause.DAY)
    never_over(event_log, 35.0)
    assert device_day(event_log) == (35.0, 0.0)
    assert state.device_seconds == 35.0
    assert of(event_log, run, RunPaused)


async def test_a_run_ends_when_its_own_devices_are_used_up(event_log):
    run = await host_to_end(event_log, Measuring(), {"cap_device_seconds": 35.0}, fake_models.daemon_config())
    state = event_log.run_state(run)
    assert (state.status, state.stop) == (RunStatus.COMPLETED, StopReason.BUDGET)
    assert state.device_seconds == 35.0
    failed = of(event_log, run, EvaluationFailed)
    assert {one.error.code for one in failed} == {"budget"}


async def test_an_evaluation_that_takes_longer_than_is_left_is_broken_off_and_charged(event_log):
    class Endless(FakeEvaluator):
        async def evaluate(self, request, blobs, /):
            await asyncio.Event().wait()

    daemon = fake_models.daemon_config(evaluation_seconds=3600.0)
    run = await host_to_end(event_log, Endless(), {"cap_device_seconds": 1.0}, daemon)
    (failed,) = of(event_log, run, EvaluationFailed)
    assert (failed.error.code, failed.device_seconds) == ("budget", 1.0)
    state = event_log.run_state(run)
    assert (state.status, state.device_seconds) == (RunStatus.COMPLETED, 1.0)
    day = event_log.system_state().day
    assert (day.spent.device_seconds, day.held) == (1.0, {})


@pytest.mark.parametrize("cap", [100.0, 1.0])
async def test_a_day_that_is_used_up_has_no_room_for_runs_of_another_life_either(event_log, cap):
    run, ledger = await submit_run(event_log), ledger_of(event_log, device_seconds=cap)
    await ledger.release(await ledger.hold_device(run, "k1", cap), Amount(device_seconds=cap))
    assert not ledger_of(event_log, device_seconds=cap).can_resume(run)
    assert ledger_of(event_log, device_seconds=cap + 1).can_resume(run)
    assert ledger_of(event_log, Clock(NOON + DAY), device_seconds=cap).can_resume(run)


async def test_what_is_predicted_takes_no_device(event_log):
    run = await host_to_end(
        event_log, FakeEvaluator(), {}, fake_models.daemon_config(day_device_seconds=2000.0)
    )
    assert event_log.run_state(run).stop is StopReason.ROUNDS
    assert event_log.run_state(run).device_seconds < 1.0
    never_over(event_log, 2000.0)


# --- under way -------------------------------------------------------------------------------------


async def test_time_under_way_is_held_a_while_at_a_time_and_settled_at_what_passed(event_log):
    ticks = Clock(0.0)
    run, ledger = await submit_run(event_log), ledger_of(event_log, seconds=1000.0)
    meter = RunTimeMeter(event_log, ledger, clock=Clock(), ticks=ticks)
    await meter.poll()
    assert event_log.system_state().day.reserved_amount.seconds == HOLD_SECONDS
    ticks.now = 10.0
    await meter.poll()
    assert len(of(event_log, SYSTEM_STREAM, DayReserved)) == 1
    ticks.now = 75.0
    await meter.poll()
    ticks.now = 80.0
    await ledger.pause_run(run, "test", PauseCause.PERSON)
    await meter.poll()
    day = event_log.system_state().day
    assert (day.spent.seconds, day.held) == (80.0, {})


async def test_where_the_day_s_time_is_used_up_runs_wait_for_another(event_log):
    ticks, clock = Clock(0.0), Clock()
    runs = [await submit_run(event_log, id_) for id_ in "abc"]
    ledger = ledger_of(event_log, clock, seconds=90.0)
    meter = RunTimeMeter(event_log, ledger, driven=lambda run: run != runs[2], clock=clock, ticks=ticks)
    for ticks.now in (0.0, 60.0, 90.0):
        await meter.poll()
    states = [event_log.run_state(run) for run in runs]
    assert [state.status for state in states] == [RunStatus.PAUSED, RunStatus.PAUSED, RunStatus.RUNNING]
    assert {state.pause_cause for state in states[:2]} == {PauseCause.DAY}
    day = event_log.system_state().day
    assert (day.spent.seconds, day.held) == (90.0, {})
    clock.now += DAY
    assert ledger.can_resume(runs[0])
    await event_log.append([NewEvent(runs[0], RunResumed())])
    await meter.poll()
    assert event_log.system_state().day.reserved_amount.seconds == HOLD_SECONDS


async def test_a_while_ends_with_its_day(event_log):
    clock = Clock(NOON + DAY / 2 - 7.0)
    await submit_run(event_log)
    await RunTimeMeter(
        event_log, ledger_of(event_log, clock, seconds=90.0), clock=clock, ticks=Clock(0.0)
    ).poll()
    assert event_log.system_state().day.reserved_amount.seconds == 7.0


async def test_nothing_is_held_where_nothing_runs_or_no_cap_is_set(event_log):
    ticks = Clock(0.0)
    await RunTimeMeter(event_log, ledger_of(event_log, seconds=90.0), ticks=ticks).poll()
    assert event_log.system_state().day is None
    run = await submit_run(event_log)
    await RunTimeMeter(event_log, ledger_of(event_log), ticks=ticks).poll()
    assert event_log.system_state().day is None
    assert event_log.run_state(run).status is RunStatus.RUNNING


async def test_an_owner_holds_time_while_it_works_and_settles_it_as_it_leaves(event_log):
    daemon = fake_models.daemon_config(day_seconds=3600.0)
    run = await host_to_end(event_log, FakeEvaluator(), {}, daemon)
    assert event_log.run_state(run).has_ended
    day = event_log.system_state().day
    assert day.held == {}
    assert 0.0 < day.spent.seconds <= 3600.0
    kinds = [type(one) for one in of(event_log, SYSTEM_STREAM, DayReserved, DaySettled)]
    assert kinds[0] is DayReserved
    assert kinds[-1] is DaySettled


async def test_a_kernel_that_is_wrong_on_a_stand_in_takes_no_device(event_log):
    """Its verdict has no time that would say that it is a prediction, so the evaluator says what it used."""

    class StandIn(Measuring):
        async def evaluate(self, request, blobs, /) -> EvaluationAnswer:
            return replace(await super().evaluate(request, blobs), device_seconds=0.0)

    daemon = fake_models.daemon_config(day_device_seconds=35.0)
    run = await host_to_end(event_log, StandIn(), {}, daemon)
    assert event_log.run_state(run).stop is StopReason.ROUNDS
    assert event_log.run_state(run).device_seconds == 0.0
    assert device_day(event_log) == (0.0, 0.0)
