"""Sessions in a run: each turn bought once, each tool call logged with its outcome, ends with a reason."""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from agent_core.providers.completion import Completion
from agent_core.providers.failures import Failure, FailureKind
from agent_core.roles.llm.session import MOST_REPEATS, _RefusalSign
from agentctl.app import agentctl
from agentctl.views.exchange import load_exchanges
from agentctl.views.session import load_session
from daemon import exits
from daemon.calls.request_rendering import load_request
from state.events import (
    CallCompleted,
    CallFailed,
    CallStarted,
    EvaluationCompleted,
    ExecutionFailed,
    ExecutionStarted,
    KernelProposed,
    KernelTried,
    RoundCompleted,
    SessionEnded,
    SessionStarted,
    ToolCallCompleted,
    ToolCallStarted,
)
from state.fold import state_hash
from state.log import EventLog
from state.model import SessionEndReason
from state.reader import LogReader
from state.verify import verify_log
from tests.daemon.calls import fake_models
from tests.daemon.calls.fake_models import LOOP, FakeProvider, answer_request
from tests.support import fakes


@pytest.fixture
def event_log(home):
    with EventLog.open(home) as log:
        yield log


def events(event_log: EventLog, run: str, *kinds: type) -> list:
    return [item.event for item in event_log.read(stream=run, limit=10_000) if isinstance(item.event, kinds)]


def turns_of(request) -> int:
    return len(request.dialogue)


async def finish(event_log: EventLog, script=answer_request, **llm) -> str:
    config = LOOP.model_copy(update={"llm": LOOP.llm.model_copy(update=llm)})
    return await fake_models.finish_run(event_log, FakeProvider(script), config)


async def test_plans_are_carried_out_in_sessions(event_log, home):
    run = await finish(event_log)
    begun = {event.key for event in events(event_log, run, SessionStarted)}
    assert begun == {event.key for event in events(event_log, run, ExecutionStarted)}
    ended = events(event_log, run, SessionEnded)
    assert {event.key for event in ended} == begun
    assert {event.reason for event in ended} >= {SessionEndReason.SUBMITTED, SessionEndReason.GAVE_UP}
    submitted = {event.key: event.submitted for event in ended if event.submitted}
    assert submitted == {event.key: event.source for event in events(event_log, run, KernelProposed)}
    assert event_log.run_state(run).best.latency_ms < event_log.run_state(run).initial.latency_ms
    assert verify_log(home).is_ok


async def test_every_tool_call_has_one_start_and_one_outcome_before_the_next_turn(event_log):
    run = await finish(event_log)
    by_key: dict[str, list] = {}
    for event in events(event_log, run, CallStarted, ToolCallStarted, ToolCallCompleted):
        by_key.setdefault(event.key, []).append(event)
    sessions = [found for found in by_key.values() if any(isinstance(e, ToolCallStarted) for e in found)]
    assert sessions
    for found in sessions:
        for before, after in pairwise(found):
            assert isinstance(before, ToolCallStarted) == isinstance(after, ToolCallCompleted)
    codes = Counter(event.code for event in events(event_log, run, ToolCallCompleted))
    assert codes[None] > 0
    assert set(codes) & {"bad_arguments", "unknown_tool"}, "the model's slips were answered"


async def test_kernels_that_were_tried_are_attempts_and_cached_but_do_not_compete(event_log):
    run = await finish(event_log)
    tried = {event.source for event in events(event_log, run, KernelTried)}
    proposed = {event.source for event in events(event_log, run, KernelProposed)}
    others = tried - proposed
    assert others
    attempts = [one for event in events(event_log, run, RoundCompleted) for one in event.attempts]
    kept = [one for one in attempts if one.in_session]
    assert kept
    assert not any(one.gained for one in kept)
    state = event_log.run_state(run)
    assert not {entry.candidate.source for entry in state.beam} & others
    assert sum(credit.tries for credit in state.credits.values()) == len(attempts) - len(kept)


async def test_a_submitted_kernel_is_not_judged_again(event_log):
    evaluator = fakes.FakeEvaluator()
    run = await fake_models.finish_run(event_log, FakeProvider(), LOOP, workers=fakes.fake_workers(evaluator))
    tried = {event.source for event in events(event_log, run, KernelTried)}
    submitted = {event.source for event in events(event_log, run, KernelProposed)} & tried
    assert submitted
    assert all(evaluator.calls[source] <= 3 for source in submitted), "at each level once"
    judged = events(event_log, run, EvaluationCompleted)
    first = [one for one in judged if one.key.endswith("evaluator") and not one.key.startswith("r0")]
    assert all(one.cached_from is not None for one in first)


async def test_a_turn_is_sent_with_all_that_came_before_and_stored_in_parts(event_log):
    run = await finish(event_log)
    session = next(event.key for event in events(event_log, run, SessionStarted))
    calls = [event for event in events(event_log, run, CallStarted) if event.key == session]
    requests = [load_request(event_log.get_blob(call.request), event_log.get_blob) for call in calls]
    assert [turns_of(request) for request in requests] == list(range(len(requests)))
    assert all(request.tools == requests[0].tools for request in requests)
    assert max(len(event_log.get_blob(call.request)) for call in calls) < 8000, "texts are stored once"
    reserved = [call.reserved.tokens for call in calls]
    assert reserved == sorted(reserved), "each turn reserves for its whole dialogue"


def only(*calls: tuple[str, dict]):
    """Return the script of a model whose every turn makes these calls."""

    def script(request, delivery):
        if not request.tools:
            return answer_request(request, delivery)
        said = [(name, json.dumps(arguments)) for name, arguments in calls]
        return fake_models.complete_turn(request, "", said)

    return script


async def ends(event_log: EventLog, script, **llm) -> set[SessionEndReason]:
    run = await finish(event_log, script, **llm)
    found = {event.reason for event in events(event_log, run, SessionEnded)}
    failed = {event.error.code for event in events(event_log, run, ExecutionFailed)}
    assert failed == {f"session_{reason.value}" for reason in found}
    return found


async def test_a_session_that_repeats_itself_is_ended(event_log):
    assert await ends(event_log, only(("history", {}))) == {SessionEndReason.REPETITION}


def failing(error_of_turn):
    """Return the script of a model whose every turn is a call that is refused, differently in each turn."""

    def script(request, delivery):
        if not request.tools:
            return answer_request(request, delivery)
        edit = {"find": error_of_turn(turns_of(request)), "replace": "x" * turns_of(request)}
        said = json.dumps({"source": "v0", "edits": [edit]})
        return fake_models.complete_turn(request, "", [("check", said)])

    return script


async def test_a_session_is_ended_when_an_error_came_back_three_times(event_log):
    assert await ends(event_log, failing(lambda turn: "nowhere")) == {SessionEndReason.REPETITION}


async def test_a_session_is_told_when_an_error_would_end_it(event_log):
    provider = FakeProvider(failing(lambda turn: "nowhere"))
    await fake_models.finish_run(event_log, provider, LOOP)
    notes = {len(r.dialogue): r.dialogue[-1].note for r in provider.asked if r.tools and r.dialogue}
    assert {turn for turn, note in notes.items() if "the session ends" in note} == {MOST_REPEATS}


async def test_errors_that_change_do_not_end_a_session(event_log):
    script = failing(lambda turn: f"nowhere {'ab'[turn % 2]}")
    assert await ends(event_log, script) == {SessionEndReason.TURNS}


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("v1: lint\n[x] it fails\nline 3: f(a)", "v2: lint\n[x] it fails\nline 9: f(a)  # again", True),
        ("v1: lint\n[x] it fails\nline 3: f(a)", "v2: lint\n[x] it fails\nline 3: f(b)", True),
        ("v1: lint\n[x] it fails\nline 3: f(a)", "v2: lint\n[x] it fails\nline 9: g(a)", False),
        ("v1: lint\n[x] it fails\nline 3: f(a)", "v2: lint\n[y] it fails\nline 3: f(a)", False),
        ("v1: incorrect\n[x] no\n\nNext: send v1", "v2: incorrect\n[x] no\n\nNext: send v2", True),
    ],
)
def test_the_same_error_is_the_same_message_at_the_same_place(one, other, same):
    """A line that was mended is another error; one that only moved, or was only commented, is the same."""
    assert _RefusalSign.of(one).is_same(_RefusalSign.of(other)) is same


async def test_a_session_that_calls_no_tool_is_ended(event_log):
    assert await ends(event_log, only()) == {SessionEndReason.NO_CALLS}


async def test_a_session_ends_with_its_last_turn(event_log):
    def script(request, delivery):
        if not request.tools:
            return answer_request(request, delivery)
        called = [("lookup", json.dumps({"query": f"word{turns_of(request)}"}))]
        return fake_models.complete_turn(request, "", called)

    assert await ends(event_log, script, turns=3) == {SessionEndReason.TURNS}


async def test_what_was_found_competes_although_the_session_was_cut_off(event_log):
    """A model that never submits: its fastest correct kernel is submitted in its name."""

    def script(request, delivery):
        said = answer_request(request, delivery)
        if isinstance(said, Completion) and any(call.name == "submit" for call in said.calls):
            return fake_models.complete_turn(request, "", [("lookup", '{"query": "softmax"}')])
        return said

    run = await finish(event_log, script)
    cut = [one for one in events(event_log, run, SessionEnded) if one.reason is SessionEndReason.REPETITION]
    assert [one for one in cut if one.submitted is not None]
    state = event_log.run_state(run)
    assert state.best.latency_ms < state.initial.latency_ms


async def test_a_model_that_refuses_ends_the_session_with_its_reason(event_log):
    def script(request, delivery):
        if request.tools and request.dialogue:
            return Failure(kind=FailureKind.REFUSED, message="no")
        return answer_request(request, delivery)

    run = await finish(event_log, script)
    reasons = Counter(event.reason for event in events(event_log, run, SessionEnded))
    assert reasons[SessionEndReason.MODEL] > 0


async def test_two_equal_runs_end_alike_however_their_sessions_interleave(event_log, tmp_path):
    run = await finish(event_log)
    with EventLog.open(tmp_path / "other") as other:
        config = fake_models.daemon_config(proposals=1)
        twin = await fake_models.submit_run(other, LOOP, "second")
        await fake_models.host_until(
            other,
            fake_models.create_role_factory(other, FakeProvider()),
            until=lambda: other.run_state(twin).has_ended,
            config=config,
        )
        assert state_hash(other.run_state(twin)) == state_hash(event_log.run_state(run))


async def test_answers_are_bought_once(event_log):
    run = await finish(event_log)
    bought = Counter((event.key, event.call) for event in events(event_log, run, CallCompleted))
    assert set(bought.values()) == {1}


async def test_a_session_is_shown_as_a_dialogue(event_log, home, capsys):
    run = await finish(event_log)
    key = next(one.key for one in events(event_log, run, SessionEnded) if one.submitted)
    candidate = key.rsplit(".", 1)[0]
    with LogReader.open(home) as reader:
        held = load_session(reader, run, candidate)
    assert held is not None
    assert (held.reason, held.most_turns) == ("submitted", 8)
    assert [call.tool for turn in held.turns for call in turn.calls][-1] == "submit"
    assert show(home, run, candidate) == exits.OK
    shown = capsys.readouterr().out
    for said in ("ended: submitted", "history", "times as fast as v0", "is submitted"):
        assert said in shown
    assert show(home, run, "initial") != exits.OK
    assert "no session was held" in capsys.readouterr().err


def show(home: Path, run: str, candidate: str) -> int:
    with pytest.raises(SystemExit) as ended:
        exits.run_command(
            agentctl, "agentctl", ["--home", str(home), "show", run, candidate, "--what", "session"]
        )
    return int(ended.value.code or 0)


async def test_a_dialogue_that_outgrows_the_window_ends_its_session_and_what_it_had_competes(event_log):
    def script(request, delivery):
        if turns_of(request) >= 2:
            return Failure(kind=FailureKind.TOO_LARGE, message="prompt is too long")
        return answer_request(request, delivery)

    run = await finish(event_log, script)
    ended = [event for event in events(event_log, run, SessionEnded) if "too_large" in event.detail]
    assert {event.reason for event in ended} == {SessionEndReason.MODEL}
    asked = Counter((event.key, event.call) for event in events(event_log, run, CallFailed))
    assert set(asked.values()) == {1}, "asked once: nothing of a dialogue can be left out"
    assert event_log.run_state(run).has_ended


def change(at: str, more: str = "") -> dict:
    name, _, value = at.partition(" = ")
    old = {"TILE_M": 128, "TILE_N": 64, "TILE_K": 32}[name]
    return {
        "source": "v0",
        "edits": [{"find": f"{name} = {old}\n", "replace": f"{name} = {value}\n{more}"}],
    }


def first_round_submits_two(request, delivery):
    """Evaluate two changes of the run's first kernel, and submit both; give up on all later kernels."""
    if not request.tools:
        return answer_request(request, delivery)
    also = [{"version": "v1", "title": "smaller rows", "technique": "new:smaller_rows", "speedup": 1.5}]
    turns = [
        ("evaluate", change("TILE_K = 64")),
        ("evaluate", change("TILE_N = 128")),
        ("submit", {"source": "v2", "also": also}),
    ]
    turns += [("give_up", {"reason": "it is another kernel"})] * 3
    name, said = turns[turns_of(request)]
    return fake_models.complete_turn(request, "", [(name, json.dumps(said))])


async def test_all_kernels_that_a_session_submits_compete(event_log, home):
    run = await finish(event_log, first_round_submits_two)
    proposed = events(event_log, run, KernelProposed)
    further = [one for one in proposed if one.beside is not None]
    assert further
    first = {one.key for one in proposed if one.beside is None}
    assert {one.beside for one in further} <= first, "each stands beside the first kernel of its session"
    verdicts = [one for one in events(event_log, run, EvaluationCompleted) if one.key.endswith("evaluator")]
    judged = {one.key.rpartition(".")[0]: one for one in verdicts}
    for one in further:
        assert judged[one.key.rpartition(".")[0]].evaluation.is_correct
        assert judged[one.key.rpartition(".")[0]].cached_from is not None, "it was judged once"
    attempts = [one for event in events(event_log, run, RoundCompleted) for one in event.attempts]
    told = [one for one in attempts if one.technique == "new:smaller_rows"]
    assert {one.candidate for one in told} == {one.key.rpartition(".")[0] for one in further}
    assert not any(one.in_session for one in told)
    assert verify_log(home).is_ok


async def test_a_kernel_that_was_submitted_besides_leads_to_its_session(event_log, home, capsys):
    run = await finish(event_log, first_round_submits_two)
    one = next(one for one in events(event_log, run, KernelProposed) if one.beside is not None)
    candidate, first = (key.rpartition(".")[0] for key in (one.key, str(one.beside)))
    assert show(home, run, candidate) == exits.OK
    shown = capsys.readouterr().out
    assert f"it is the session of {first}, which submitted {candidate} besides" in shown
    assert "v2 is submitted" in shown
    assert show(home, run, first) == exits.OK
    assert "it is the session of" not in capsys.readouterr().out
    with LogReader.open(home) as reader:
        assert load_session(reader, run, candidate) == load_session(reader, run, first)
        asked = load_exchanges(reader, run, candidate)
    assert {"planner", "session"} <= {other.role for other in asked}


async def test_a_session_is_as_it_was_after_an_event(event_log, home):
    run = await finish(event_log)
    ended = next(item for item in event_log.read(stream=run, limit=10_000) if item.type == "SessionEnded")
    candidate = ended.event.key.rpartition(".")[0]
    with LogReader.open(home) as reader:
        whole = load_session(reader, run, candidate)
        before = load_session(reader, run, candidate, at=ended.run_seq - 1)
        assert load_session(reader, run, candidate, at=1) is None
    assert whole is not None
    assert before is not None
    assert (before.reason, before.turns) == (None, whole.turns)
    assert whole.reason == ended.event.reason
    last = [call for turn in whole.turns for call in turn.calls][-1]
    at = int(last.place.rpartition("@")[2])
    with LogReader.open(home) as reader:
        running = load_session(reader, run, candidate, at=at)
    assert running is not None
    assert [call.result for turn in running.turns for call in turn.calls][-1] is None


async def test_estimated_tokens_are_marked_in_dialogues_and_reports(event_log, home, capsys):
    def script(request, delivery):
        said = answer_request(request, delivery)
        whole = fake_models.complete_turn(request, said) if isinstance(said, str) else said
        tokens = whole.tokens.model_copy(update={"estimated": bool(request.tools)})
        return whole.model_copy(update={"tokens": tokens})

    run = await finish(event_log, script)
    key = events(event_log, run, SessionStarted)[0].key
    assert show(home, run, key.rpartition(".")[0]) == exits.OK
    shown = capsys.readouterr().out
    assert " out (some estimated), $" in shown
    assert " out (estimated), $" in shown
    with pytest.raises(SystemExit):
        exits.run_command(agentctl, "agentctl", ["--home", str(home), "report", run])
    assert "of the tokens are estimates, as their endpoint counted none" in capsys.readouterr().out


async def test_a_session_ends_when_its_share_of_the_cap_is_spent(event_log):
    found = await ends(
        event_log, only(("history", {}), ("lookup", {"query": "hoist"})), session_percent=0.012
    )
    assert found == {SessionEndReason.BUDGET}


async def test_the_same_error_of_other_kernels_is_a_repetition_too(event_log):
    def script(request, delivery):
        if not request.tools:
            return answer_request(request, delivery)
        said = change("TILE_M = 64", f"# broken\n# {turns_of(request)}\n")
        return fake_models.complete_turn(request, "", [("evaluate", json.dumps(said))])

    run = await finish(event_log, script)
    reasons = [one.reason for one in events(event_log, run, SessionEnded)]
    assert SessionEndReason.REPETITION in reasons
    assert SessionEndReason.TURNS not in reasons
