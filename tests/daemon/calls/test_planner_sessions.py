"""Planners that work in sessions: what ends one, which plans come of it, and that nothing is bought twice."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from agentctl.app import agentctl
from agentctl.page.dialogues import session_page
from agentctl.views.candidate import load_candidate
from agentctl.views.session import load_planning, load_session
from daemon import exits
from daemon.errors import DaemonError
from state.events import (
    CallCompleted,
    KernelProposed,
    PlanFailed,
    PlanProposed,
    PlanStarted,
    RoundStarted,
    SessionEnded,
    SessionStarted,
    ToolCallCompleted,
)
from state.fold import state_hash
from state.log import EventLog
from state.model import EffectKey, Role, SessionEndReason
from state.reader import LogReader
from state.verify import verify_log
from tests.daemon.calls import fake_models
from tests.daemon.calls.fake_models import CONFIG, LOOP, FakeProvider, answer_request
from tests.support import constants_model

SEARCH = LOOP.search.model_copy(update={"plans": 5})
PLANNING = LOOP.model_copy(
    update={"search": SEARCH, "llm": LOOP.llm.model_copy(update={"planner_form": "loop"})}
)
"""A run whose planners and executors work in sessions."""


@pytest.fixture
def event_log(home):
    with EventLog.open(home) as log:
        yield log


def events(event_log: EventLog, run: str, *kinds: type) -> list:
    return [item.event for item in event_log.read(stream=run, limit=10_000) if isinstance(item.event, kinds)]


async def finish(event_log: EventLog, script=answer_request, config=PLANNING) -> str:
    return await fake_models.finish_run(event_log, FakeProvider(script), config)


def planning(event_log: EventLog, run: str, *kinds: type) -> list:
    """Return the events of planners' sessions."""
    return [e for e in events(event_log, run, *kinds) if EffectKey.parse(e.key).role is Role.PLANNER]


async def test_a_session_submits_its_own_plan_and_those_that_follow_it(event_log, home):
    run = await finish(event_log)
    started = events(event_log, run, PlanStarted)
    assert {e.key for e in planning(event_log, run, SessionStarted)} == {e.key for e in started}
    assert {e.role for e in planning(event_log, run, SessionStarted)} == {"planner_session"}
    proposed = events(event_log, run, PlanProposed)
    further = [e for e in proposed if e.beside is not None]
    assert further
    assert not {e.key for e in further} & {e.key for e in started}, (
        "what was submitted besides is not asked for"
    )
    for event in further:
        own, first = EffectKey.parse(event.key), EffectKey.parse(event.beside)
        assert own == first._replace(plan=own.plan)
        assert first.plan < own.plan < SEARCH.plans
    slots = {(e.round, one.slot) for e in events(event_log, run, RoundStarted) for one in e.slots}
    ended = Counter((EffectKey.parse(e.key).round, EffectKey.parse(e.key).slot) for e in proposed)
    ended.update(
        (EffectKey.parse(e.key).round, EffectKey.parse(e.key).slot)
        for e in events(event_log, run, PlanFailed)
    )
    assert set(ended) <= slots
    assert set(ended.values()) == {SEARCH.plans}, "each plan of a kernel has one outcome"
    assert verify_log(home).is_ok


async def test_further_plans_are_carried_out_like_any_other(event_log):
    run = await finish(event_log)
    further = {e.key for e in events(event_log, run, PlanProposed) if e.beside is not None}
    made = {
        str(EffectKey.parse(e.key).for_role(Role.PLANNER)) for e in events(event_log, run, KernelProposed)
    }
    assert further & made
    state = event_log.run_state(run)
    assert state.best.latency_ms < state.initial.latency_ms


async def test_planners_have_no_kernel_judged_and_their_faults_are_answered(event_log):
    run = await finish(event_log)
    tools = {name for e in planning(event_log, run, SessionStarted) for name in e.tools}
    assert "submit_plans" in tools
    assert not tools & {"evaluate", "submit", "apply_rewrite"}
    codes = Counter(e.code for e in planning(event_log, run, ToolCallCompleted))
    assert codes["bad_prediction"] > 0
    own = {name for e in events(event_log, run, SessionStarted) if e.role == "session" for name in e.tools}
    assert "submit_plans" not in own


async def test_a_planner_that_gives_up_costs_its_plan_alone(event_log):
    run = await finish(event_log)
    failed = {e.key: e.error.code for e in events(event_log, run, PlanFailed)}
    gave_up = [e.key for e in planning(event_log, run, SessionEnded) if e.reason is SessionEndReason.GAVE_UP]
    assert gave_up
    assert {failed[key] for key in gave_up} == {"session_gave_up"}


async def test_more_plans_than_are_wanted_are_refused(event_log):
    def script(request, delivery):
        said = answer_request(request, delivery)
        if not any(tool.name == "submit_plans" for tool in request.tools):
            return said
        plan = constants_model.draw_plan(request.case[-2].text, 7)
        calls = [("submit_plans", json.dumps({"plans": [plan] * (4 - len(request.dialogue))}))]
        return fake_models.complete_turn(request, "", calls)

    few = PLANNING.model_copy(update={"search": SEARCH.model_copy(update={"plans": 2})})
    run = await finish(event_log, script, few)
    codes = Counter(e.code for e in planning(event_log, run, ToolCallCompleted))
    sessions = len(planning(event_log, run, SessionStarted))
    assert codes == {"too_many_plans": 2 * sessions, None: sessions}


async def test_two_equal_runs_end_alike_and_buy_each_answer_once(event_log, tmp_path):
    run = await finish(event_log)
    bought = Counter((e.key, e.call) for e in events(event_log, run, CallCompleted))
    assert set(bought.values()) == {1}
    with EventLog.open(tmp_path / "other") as other:
        config = fake_models.daemon_config(proposals=1)
        twin = await fake_models.submit_run(other, PLANNING, "second")
        await fake_models.host_until(
            other,
            fake_models.create_role_factory(other, FakeProvider()),
            until=lambda: other.run_state(twin).has_ended,
            config=config,
        )
        assert state_hash(other.run_state(twin)) == state_hash(event_log.run_state(run))


async def test_planners_ask_one_question_unless_they_are_told_otherwise(event_log):
    run = await finish(event_log, config=CONFIG)
    assert not events(event_log, run, SessionStarted)
    assert not [e for e in events(event_log, run, PlanProposed) if e.beside is not None]


async def test_what_a_planner_read_is_shown_with_the_kernel(event_log, home, capsys):
    run = await finish(event_log)
    further = {e.key for e in events(event_log, run, PlanProposed) if e.beside is not None}
    made = [EffectKey.parse(e.key) for e in events(event_log, run, KernelProposed)]
    one = next(
        key for key in made if str(key._replace(implementation=0, repair=0, role=Role.PLANNER)) in further
    )
    with LogReader.open(home) as reader:
        planned = load_planning(reader, run, one.candidate_id)
        held = load_session(reader, run, one.candidate_id)
    assert planned is not None
    assert (planned.role, planned.reason) == ("planner_session", "submitted")
    assert [call.tool for turn in planned.turns for call in turn.calls][-1] == "submit_plans"
    assert held is not None
    assert held.role == "session"
    assert show(home, run, one.candidate_id) == exits.OK
    shown = capsys.readouterr().out
    assert shown.index("planner's session with") < shown.index("\nsession with")


async def test_a_planner_that_gave_up_is_shown_as_an_executor_is(event_log, home, capsys):
    run = await finish(event_log)
    ended = next(
        e for e in planning(event_log, run, SessionEnded) if e.reason is SessionEndReason.GAVE_UP and e.detail
    )
    name = EffectKey.parse(ended.key).candidate_id
    with LogReader.open(home) as reader:
        found = load_candidate(reader, run, name)
        page = session_page(reader, run, name)
        before = next(
            item.run_seq
            for item in reader.read(stream=run, limit=10_000)
            if isinstance(item.event, PlanFailed) and item.event.key == ended.key
        )
        with pytest.raises(DaemonError, match="candidate"):
            load_candidate(reader, run, name, at=before - 1)
    assert found.planner_failed
    assert (found.failure.code, found.parent is not None) == ("session_gave_up", True)
    assert (page.session, page.planning.session.reason) == (None, "gave_up")
    assert show(home, run, name) == exits.OK
    assert f"ended: gave_up, {ended.detail}" in capsys.readouterr().out
    assert call(home, "show", run, name) == call(home, "why", run, name) == exits.OK
    shown = " ".join(capsys.readouterr().out.split())
    assert shown.count(f"{ended.detail} [session_gave_up]") == 2
    assert "no kernel was written" in shown
    assert call(home, "tail", "--run", run, "--type", "SessionEnded") == exits.OK
    assert f"{name}: planner's session, gave_up after" in capsys.readouterr().out


def show(home: Path, run: str, candidate: str) -> int:
    return call(home, "show", run, candidate, "--what", "session")


def call(home: Path, *words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        exits.run_command(agentctl, "agentctl", ["--home", str(home), *words])
    return int(ended.value.code or 0)
