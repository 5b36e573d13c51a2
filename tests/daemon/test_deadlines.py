"""Deadlines of rounds under the supervisor: they pass, also over a restart; clocks that jump do no harm."""

from __future__ import annotations

import asyncio
import time
from collections import Counter

import pytest

from daemon.deadlines import RoundDeadlines
from state.events import BudgetShort, EffectEnded, RoundDeadlinePassed, RoundStarted
from state.log import EventLog
from state.model import Resource, Role, StopReason
from state.verify import verify_log
from tests.daemon.test_supervisor import Gate, events, running, submit, supervisor_of, wait_until
from tests.support import fakes


@pytest.fixture
def event_log(home):
    with EventLog.open(home) as log:
        yield log


CAPPED = fakes.CONFIG.model_copy(update={"cap_seconds": 600.0})


def with_deadline(seconds: float):
    search = fakes.CONFIG.search.model_copy(update={"round_seconds": seconds})
    return fakes.CONFIG.model_copy(update={"search": search})


async def test_a_round_closes_at_its_deadline_and_what_was_late_ends_once(home, event_log):
    run = await submit(event_log, "a", with_deadline(0.3))
    gate = Gate(event_log, closed=(Role.EXECUTOR,))
    async with running(supervisor_of(event_log, gate, at_a_time=4)):
        await wait_until(lambda: events(event_log, run, RoundDeadlinePassed))
        gate.opened.set()
        await wait_until(lambda: fakes.has_ended(event_log, run))
    ended = Counter(event.key for event in events(event_log, run, EffectEnded))
    assert set(ended.values()) == {1}
    assert event_log.run_state(run).late == {}
    assert verify_log(home).is_ok


async def test_a_round_closes_when_the_run_has_had_its_time_and_no_other_begins(home, event_log):
    run = await submit(event_log, "a", CAPPED)
    stuck = Gate(event_log, closed=(Role.EXECUTOR,))
    async with running(supervisor_of(event_log, stuck, at_a_time=4, grace_seconds=0)):
        await wait_until(stuck.arrived.is_set)
    assert events(event_log, run, RoundDeadlinePassed) == []
    began = event_log.run_began_us
    event_log.run_began_us = lambda name: began(name) - int(601 * 1e6)
    gate = Gate(event_log, closed=(Role.EXECUTOR,))
    async with running(supervisor_of(event_log, gate, at_a_time=4)):
        await wait_until(lambda: events(event_log, run, RoundDeadlinePassed))
        gate.opened.set()
        await wait_until(lambda: fakes.has_ended(event_log, run))
    assert len(events(event_log, run, RoundStarted)) == 1
    assert [event.resource for event in events(event_log, run, BudgetShort)] == [Resource.SECONDS]
    assert event_log.run_state(run).stop is StopReason.BUDGET
    assert verify_log(home).is_ok


async def test_what_is_being_judged_when_the_run_has_had_its_time_gets_a_round_to_itself(home, event_log):
    run = await submit(event_log, "a", CAPPED)
    stuck = Gate(event_log, closed=(Role.EXECUTOR,))
    async with running(supervisor_of(event_log, stuck, at_a_time=4, grace_seconds=0)):
        await wait_until(stuck.arrived.is_set)
    stuck = Gate(event_log, closed=(Role.EVALUATOR,))
    async with running(supervisor_of(event_log, stuck, at_a_time=4, grace_seconds=0)):
        await wait_until(stuck.arrived.is_set)
    began = event_log.run_began_us
    event_log.run_began_us = lambda name: began(name) - int(601 * 1e6)
    gate = Gate(event_log, closed=(Role.EVALUATOR,))
    async with running(supervisor_of(event_log, gate, at_a_time=4)):
        await wait_until(lambda: events(event_log, run, RoundDeadlinePassed))
        assert event_log.run_state(run).late
        gate.opened.set()
        await wait_until(lambda: fakes.has_ended(event_log, run))
    rounds = events(event_log, run, RoundStarted)
    assert [any(slot.plans for slot in event.slots) for event in rounds] == [True, False]
    assert event_log.run_state(run).late == {}
    assert event_log.run_state(run).stop is StopReason.BUDGET
    assert verify_log(home).is_ok


async def test_a_cap_that_is_raised_gives_the_round_under_way_more_time(event_log):
    run = await submit(event_log, "a", CAPPED)
    gate = Gate(event_log, closed=(Role.EXECUTOR,))
    async with running(supervisor_of(event_log, gate, at_a_time=4, grace_seconds=0)):
        await wait_until(gate.arrived.is_set)
    began = event_log.run_began_us
    event_log.run_began_us = lambda name: began(name) - int(3600 * 1e6)
    rang: list[str] = []
    deadlines = RoundDeadlines(event_log, passed=rang.append)
    state = event_log.run_state(run)
    assert not deadlines.check_deadline(run, state)
    await asyncio.sleep(0.02)
    assert rang == [run]
    assert deadlines.check_deadline(run, state) == "run"
    raised = state.model_copy(update={"pending_config": CAPPED.model_copy(update={"cap_seconds": 7200.0})})
    assert not deadlines.check_deadline(run, raised)
    await asyncio.sleep(0.02)
    assert rang == [run]
    deadlines.stop()


async def test_without_a_deadline_no_round_has_one(event_log):
    run = await submit(event_log, "a")
    async with running(supervisor_of(event_log, Gate(event_log), at_a_time=2)):
        await wait_until(lambda: fakes.has_ended(event_log, run))
    assert events(event_log, run, RoundDeadlinePassed) == []


async def test_a_deadline_goes_on_over_a_restart(event_log, monkeypatch):
    """The process was away for longer than the deadline: it has passed when the run is taken up."""
    run = await submit(event_log, "a", with_deadline(3600))
    stuck = Gate(event_log, closed=(Role.EXECUTOR,))
    async with running(supervisor_of(event_log, stuck, at_a_time=4, grace_seconds=0)):
        await wait_until(stuck.arrived.is_set)
    assert events(event_log, run, RoundStarted)
    assert events(event_log, run, RoundDeadlinePassed) == []
    began = event_log.round_began_us
    monkeypatch.setattr(event_log, "round_began_us", lambda name: began(name) - int(3601 * 1e6))
    gate = Gate(event_log, closed=(Role.EXECUTOR,))
    async with running(supervisor_of(event_log, gate, at_a_time=4)):
        await wait_until(lambda: events(event_log, run, RoundDeadlinePassed))
        gate.opened.set()
        await wait_until(lambda: fakes.has_ended(event_log, run))


@pytest.mark.parametrize(("ago", "rings"), [(-3600.0, False), (3600.0, True)])
async def test_a_clock_that_jumped_costs_a_deadline_at_most(event_log, ago, rings):
    """Back, the round has its whole time again; forth, it has had it."""
    run = await submit(event_log, "a", with_deadline(600))
    gate = Gate(event_log, closed=(Role.EXECUTOR,))
    async with running(supervisor_of(event_log, gate, at_a_time=4, grace_seconds=0)):
        await wait_until(gate.arrived.is_set)
    rang: list[str] = []
    deadlines = RoundDeadlines(event_log, passed=rang.append)
    began = event_log.round_began_us
    event_log.round_began_us = lambda name: began(name) - int(ago * 1e6)
    state = event_log.run_state(run)
    assert not deadlines.check_deadline(run, state)
    await asyncio.sleep(0.02)
    assert rang == ([run] if rings else [])
    assert deadlines.check_deadline(run, state) == ("round" if rings else None)
    deadlines.stop()
    assert time.time() * 1e6 >= began(run)
