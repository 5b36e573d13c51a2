"""Forks: what was in flight where they are cut is not bought again where the parent was answered."""

from __future__ import annotations

import json

import pytest

from daemon.calls.parent_answers import find_parent_answer
from daemon.command_models import run_id
from daemon.commands import CommandHandler
from state.events import CallCompleted, CallStarted, PlanStarted
from state.fold import state_hash
from state.log import EventLog
from state.reader import LogReader
from state.verify import verify_log
from tests.daemon.calls import fake_models
from tests.daemon.calls.fake_models import FakeProvider
from tests.support import fakes


@pytest.fixture
def event_log(home):
    with EventLog.open(home) as log:
        yield log


def own(event_log: EventLog, run: str, kind: type) -> list:
    found = event_log.read(stream=run, limit=10_000)
    return [item.event for item in found if item.stream == run and isinstance(item.event, kind)]


def place(event_log: EventLog, run: str, kind: type, number: int) -> int:
    """Return the run_seq of a run's event of a type, counted from 0."""
    return [one.run_seq for one in event_log.read(stream=run, limit=10_000) if isinstance(one.event, kind)][
        number
    ]


async def fork_run(event_log: EventLog, parent: str, seq: int, id_: str = "fork", **settings) -> str:
    commands = CommandHandler(event_log, fakes.fake_workers(), touched=lambda *_: None)
    command = {"verb": "fork", "run": parent, "seq": seq, "settings": settings}
    await commands.handle(id_, json.dumps(command).encode())
    return run_id(id_, "silu")


async def finish_run(event_log: EventLog, run: str, provider: FakeProvider) -> None:
    roles = fake_models.create_role_factory(event_log, provider)
    await fake_models.host_until(event_log, roles, until=lambda: event_log.run_state(run).has_ended)


async def test_what_the_parent_was_answered_after_the_cut_is_not_bought_again(event_log):
    parent = await fake_models.finish_run(event_log, FakeProvider())
    cut = place(event_log, parent, CallStarted, 0)
    open_ = set(event_log.run_state(parent, cut).open)
    fork = await fork_run(event_log, parent, cut)
    provider = FakeProvider()
    await finish_run(event_log, fork, provider)
    answers = own(event_log, fork, CallCompleted)
    reused = [one for one in answers if one.reused_from is not None]
    assert {one.key for one in reused} == open_
    assert {one.key for one in answers if one.reused_from is None}.isdisjoint(open_)
    assert len(provider.asked) == len(answers) - len(reused)
    for one in reused:
        run, _, seq = one.reused_from.partition("@")
        (theirs,) = [
            item.event
            for item in event_log.read(stream=run, limit=10_000)
            if item.run_seq == int(seq) and item.stream == run
        ]
        assert (run, theirs.key, theirs.answer, theirs.model) == (parent, one.key, one.answer, one.model)
        assert int(seq) > cut
    assert state_hash(event_log.run_state(fork)) == state_hash(event_log.run_state(parent))


async def test_what_is_reused_costs_nothing_and_is_no_call(event_log, home):
    parent = await fake_models.finish_run(event_log, FakeProvider())
    cut = place(event_log, parent, CallStarted, 0)
    fork = await fork_run(event_log, parent, cut)
    provider = FakeProvider()
    await finish_run(event_log, fork, provider)
    bought = [one for one in own(event_log, fork, CallCompleted) if one.reused_from is None]
    before, after = event_log.run_state(parent, cut), event_log.run_state(fork)
    assert after.spent_calls - before.spent_calls == len(bought) == len(provider.asked)
    assert after.spent_usd == pytest.approx(before.spent_usd + sum(one.cost_usd for one in bought))
    assert after.reserved_amount.calls == 0
    day = event_log.system_state().day
    assert (day.spent.calls, day.held) == (event_log.run_state(parent).spent_calls + len(bought), {})
    assert verify_log(home).is_ok
    with LogReader.open(home) as reader:
        told = {row["model"]: row["calls"] for row in reader.spend_rows(fork) if row["role"] == "planner"}
        assert told == {fake_models.MODEL: sum(one.role == "planner" for one in bought)}


async def test_answers_of_before_the_cut_to_an_effect_in_flight_are_kept_too(event_log):
    """An effect has asked a question, been answered, and asks another where the fork is cut."""
    parent = await fake_models.finish_run(event_log, FakeProvider())
    twice = next(one for one in own(event_log, parent, CallStarted) if one.call == 1)
    at = next(
        item.run_seq
        for item in event_log.read(stream=parent, limit=10_000)
        if isinstance(item.event, CallStarted) and (item.event.key, item.event.call) == (twice.key, 1)
    )
    fork = await fork_run(event_log, parent, at)
    await finish_run(event_log, fork, FakeProvider())
    reused = [one for one in own(event_log, fork, CallCompleted) if one.reused_from]
    assert {one.call for one in reused if one.key == twice.key} == {0, 1}


async def test_other_words_are_another_question(event_log):
    parent = await fake_models.finish_run(event_log, FakeProvider())
    cut = place(event_log, parent, CallStarted, 0)
    fork = await fork_run(event_log, parent, cut, **{"run.llm.max_output_tokens": 900, "run.target": "trn1"})
    provider = FakeProvider()
    await finish_run(event_log, fork, provider)
    assert not [one for one in own(event_log, fork, CallCompleted) if one.reused_from]
    assert provider.asked


async def test_what_the_parent_asked_only_later_is_none_of_the_fork_s(event_log):
    parent = await fake_models.finish_run(event_log, FakeProvider())
    cut = place(event_log, parent, PlanStarted, 0) - 1
    assert event_log.run_state(parent, cut).open == {}
    fork = await fork_run(event_log, parent, cut)
    first = own(event_log, parent, CallStarted)[0]
    assert find_parent_answer(event_log, fork, first.key, first.call, first.request) is None
    provider = FakeProvider()
    await finish_run(event_log, fork, provider)
    assert len(provider.asked) == len(own(event_log, fork, CallCompleted))
    assert find_parent_answer(event_log, parent, first.key, first.call, first.request) is None, (
        "it is no fork"
    )


async def test_a_fork_of_a_fork_has_what_its_parent_reused(event_log):
    parent = await fake_models.finish_run(event_log, FakeProvider())
    child = await fork_run(event_log, parent, place(event_log, parent, CallStarted, 0), "child")
    await finish_run(event_log, child, FakeProvider())
    (at, *_) = [
        item.run_seq
        for item in event_log.read(stream=child, limit=10_000)
        if item.stream == child and isinstance(item.event, CallStarted)
    ]
    grandchild = await fork_run(event_log, child, at, "grandchild")
    await finish_run(event_log, grandchild, FakeProvider())
    found = [one.reused_from for one in own(event_log, grandchild, CallCompleted) if one.reused_from]
    assert found
    assert all(place.startswith(f"{child}@") for place in found)


async def test_an_answer_whose_text_was_pruned_is_bought(event_log, monkeypatch):
    parent = await fake_models.finish_run(event_log, FakeProvider())
    fork = await fork_run(event_log, parent, place(event_log, parent, CallStarted, 0))
    monkeypatch.setattr("daemon.calls.durable_calls.DurableCalls._has_blob", lambda self, digest: False)
    await finish_run(event_log, fork, FakeProvider())
    assert not [one for one in own(event_log, fork, CallCompleted) if one.reused_from]
