"""Trees, comparisons and exchanges of runs with known contents."""

from __future__ import annotations

import json

import pytest

from agent_core.providers.completion import CompletionRequest, PromptPart
from agentctl.views import as_json
from agentctl.views.candidate import load_candidate
from agentctl.views.comparison import compare_kernels
from agentctl.views.exchange import load_exchanges
from agentctl.views.tree import CandidateMark, candidate_tree
from daemon.calls.request_rendering import dump_request
from daemon.errors import DaemonError
from state.events import CallCompleted, CallFailed, CallLost, CallStarted, PlanStarted
from state.log import EventLog
from state.model import INITIAL_KEY, Amount, ErrorInfo, Tokens, digest_of
from state.reader import LogReader
from state.records import NewEvent
from tests.support import fakes
from tests.support.simulated_logs import KERNEL, record, world_of

RUN = "toy-5eed01"
PLAN = "r1.b0.p0.k0.f0.planner"


@pytest.fixture(scope="module")
def reader(tmp_path_factory):
    home = tmp_path_factory.mktemp("recorded") / "home"
    record(home, {RUN: world_of().finish()})
    with LogReader.open(home) as opened:
        yield opened


def test_a_tree_has_every_kernel_once_below_its_parent(reader):
    found = candidate_tree(reader, RUN).nodes
    rows = {row["candidate"]: row for row in reader.attempt_rows(RUN)}
    assert sorted(node.id for node in found) == sorted(rows)
    places = {node.id: number for number, node in enumerate(found)}
    depths = {node.id: node.depth for node in found}
    for node in found:
        assert node.parent == rows[node.id]["parent"]
        if node.parent is not None:
            assert places[node.parent] < places[node.id]
            assert depths[node.id] == depths[node.parent] + 1


def test_marks_say_what_became_of_a_kernel(reader):
    state = reader.run_state(RUN)
    marks = {node.id: node.mark for node in candidate_tree(reader, RUN).nodes}
    assert [name for name, mark in marks.items() if mark is CandidateMark.BEST] == [state.best.id]
    for row in reader.attempt_rows(RUN):
        if row["reason"] == "duplicate":
            assert marks[row["candidate"]] is CandidateMark.DUPLICATE
        if row["verdict"] not in (None, "correct"):
            assert marks[row["candidate"]] is CandidateMark.WRONG
    beam = {entry.candidate.id for entry in state.beam}
    assert {node.id for node in candidate_tree(reader, RUN).nodes if node.in_beam} == beam


def test_a_line_of_kernels_may_be_as_long_as_a_run():
    from agentctl.views.tree import _walk_rows

    rows = [{"candidate": number} for number in range(5000)]
    below = {None: [rows[0]]} | {number: [rows[number + 1]] for number in range(4999)}
    assert [depth for _, depth in _walk_rows(below)] == list(range(5000))


def test_a_comparison_has_both_sides(reader):
    found = compare_kernels(reader, RUN, "initial", "best")
    old, new = load_candidate(reader, RUN, "initial"), load_candidate(reader, RUN, "best")
    assert (found.a, found.b) == (INITIAL_KEY.candidate_id, new.id)
    assert found.speedup == pytest.approx(old.latency.ms / new.latency.ms)
    assert found.counters["total_time"] == (old.counters["total_time"], new.counters["total_time"])
    assert found.a_timeline.span_ms == old.latency.ms
    assert found.diff.startswith(f"--- {old.id}\n+++ {new.id}\n")
    assert json.dumps(as_json(found))
    same = compare_kernels(reader, RUN, "best", "best")
    assert (same.diff, same.counters, same.speedup) == ("", {}, 1.0)


def test_a_comparison_explains_latencies_below_the_model_bound(reader, tmp_path):
    usual = as_json(compare_kernels(reader, RUN, "initial", "best"))
    assert not {"a_below_bound", "b_below_bound"} & usual.keys()
    record(tmp_path / "home", {RUN: world_of(tight_ms=50.0).finish()})
    with LogReader.open(tmp_path / "home") as low:
        found = compare_kernels(low, RUN, "initial", "best")
    assert f"{5000 / found.a_ms:.1f} % of the model bound" in found.a_below_bound
    assert f"{5000 / found.b_ms:.1f} % of the model bound" in found.b_below_bound


def test_a_kernels_text_is_told_as_it_is(reader):
    assert load_candidate(reader, RUN, "initial").source == KERNEL


def test_where_no_model_was_asked_there_is_nothing_to_show(reader):
    assert load_exchanges(reader, RUN, "r1.b0.p0.k0.f0") == ()


def ask(number: int, attempt: int, request: str) -> CallStarted:
    return CallStarted(
        key=PLAN, call=number, attempt=attempt, role="planner", model="local/m", request=request,
        reserved=Amount(),
    )  # fmt: skip


def test_prompts_and_answers_are_shown_as_sent(home, ctl):
    run = fakes.submit_run(home)
    fakes.take_commands(home)
    request = CompletionRequest(
        model="m", guide=(PromptPart(text="You optimise kernels.\n\n", cached=True),),
        case=(PromptPart(text="Make \x1b[2Jthis faster.\n\n"),), max_output_tokens=10,
    )  # fmt: skip
    data, texts = dump_request(request)
    named = digest_of(data)
    end = {"key": PLAN, "call": 0, "role": "planner", "model": "local/m"}
    error = ErrorInfo(code="server", message="it stumbled")
    events = [
        PlanStarted(key=PLAN, request=named),
        ask(0, 1, named),
        CallFailed(**end, attempt=1, cost_usd=0.0, kind="server", error=error, ms=5.0),
        ask(0, 2, named),
        CallLost(**end, attempt=2, cost_usd=None, reason="the process died"),
        ask(0, 3, named),
        CallCompleted(
            **end, attempt=3, cost_usd=0.25, tokens=Tokens(input=7, output=3), answer=digest_of(b"Tile it."),
            answered_by="m", stop_reason="end", ms=1500.0,
        ),
        ask(1, 1, digest_of(b"gone")),
    ]  # fmt: skip
    with EventLog.open(home) as log:
        for event in events:
            log.append_now([NewEvent(run, event)], blobs=[data, *texts, b"Tile it.", b"gone"])
    with LogReader.open(home) as reader:
        found = load_exchanges(reader, run, "r1.b0.p0.k1.f0")  # made of the same plan
    assert [one.outcome for one in found] == ["server", "lost", "answered", "waits"]
    assert [(one.question, one.attempt) for one in found] == [(0, 1), (0, 2), (0, 3), (1, 1)]
    assert found[0].said == "it stumbled"
    assert (found[2].answer, found[2].ms, found[2].cost_usd) == ("Tile it.", 1500.0, 0.25)
    assert found[2].guide == "You optimise kernels.\n\n"
    assert (found[1].cost_usd, found[3].guide) == (None, None)


def test_an_unknown_candidate_is_named(reader):
    with pytest.raises(DaemonError, match="unknown candidate"):
        compare_kernels(reader, RUN, "initial", "r9.b9.p9.k9.f9")
