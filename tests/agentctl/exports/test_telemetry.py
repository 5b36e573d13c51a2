"""Spans and metrics of runs, as a receiver on this machine gets them."""

from __future__ import annotations

import builtins
import sys

import pytest

from agent_core.providers.completion import CompletionRequest, PromptPart
from agentctl.exports.telemetry import iterate_spans
from daemon.calls.request_rendering import dump_request
from state.events import CallCompleted, CallStarted, PlanStarted
from state.log import EventLog
from state.model import Tokens, digest_of
from state.reader import LogReader
from state.records import NewEvent
from tests.agentctl.stats.history import BIG, RESERVED, History, one_round
from tests.support.otlp import attributes, receiver

CALL = "gen_ai.operation.name"


@pytest.fixture
def asked(home) -> str:
    """A run in which models were asked."""
    with EventLog.open(home) as log:
        one_round(log)
    return "first"


def sent(ctl, run: str, *more: str):
    with receiver() as got:
        called = ctl("export", run, "--otlp", got.address, "--json", *more)
    assert called.status == 0, called.err
    return called.json, got


def test_a_run_is_a_trace_of_rounds_effects_and_questions(ctl, asked):
    told, got = sent(ctl, asked)
    assert (told["spans"], told["questions"]) == (
        len(got.spans),
        sum(CALL in attributes(one) for one in got.spans),
    )
    assert len({one.trace_id for one in got.spans}) == 1
    ids = [one.span_id for one in got.spans]
    assert len(set(ids)) == len(ids)
    (root,) = [one for one in got.spans if not one.parent_span_id]
    assert root.name == f"run {asked}"
    assert all(one.parent_span_id in ids for one in got.spans if one is not root)
    assert all(
        root.start_time_unix_nano <= one.start_time_unix_nano <= one.end_time_unix_nano for one in got.spans
    )
    assert {"round 1", "plan r1.b0.p0.k0.f0", "evaluate r0.b0.p0.k0.f0"} <= {one.name for one in got.spans}


def test_questions_follow_the_genai_conventions(ctl, asked):
    _, got = sent(ctl, asked)
    questions = [one for one in got.spans if CALL in attributes(one)]
    assert {one.kind for one in questions} == {3}  # CLIENT
    one = next(span for span in questions if span.name == "chat big" and not span.status.code)
    told = attributes(one)
    assert told["gen_ai.provider.name"] == "x"
    assert told["gen_ai.request.model"] == "big"
    assert told["gen_ai.response.model"] == "model"
    assert told["gen_ai.response.finish_reasons"] == ["end"]
    assert (told["gen_ai.usage.input_tokens"], told["gen_ai.usage.output_tokens"]) == (100, 10)
    assert told["gen_ai.usage.cache_read.input_tokens"] == 40
    assert told["nki_agent.cost_usd"] == 0.25
    failed = {attributes(span)["error.type"] for span in questions if span.status.code == 2}
    assert failed == {"server", "lost"}


def test_names_are_those_of_the_conventions(ctl, asked, worded):
    """As the package of the conventions has them, with the operation and the kinds of tokens."""
    known = pytest.importorskip("opentelemetry.semconv._incubating.attributes.gen_ai_attributes")
    measured = pytest.importorskip("opentelemetry.semconv._incubating.metrics.gen_ai_metrics")
    names = {value for value in vars(known).values() if isinstance(value, str)}
    operations, kinds = (
        {one.value for one in values}
        for values in (known.GenAiOperationNameValues, known.GenAiTokenTypeValues)
    )
    for run in (asked, worded):
        _, got = sent(ctl, run, "--prompts")
        told = [attributes(one) for one in got.spans]
        used = {name for one in told for name in one if name.startswith("gen_ai.")}
        assert len(used) > 5
        assert used <= names
        assert {one[CALL] for one in told if CALL in one} <= operations
        assert {
            attributes(one)["gen_ai.token.type"] for one in got.points["gen_ai.client.token.usage"]
        } <= kinds
        metrics = {name for name in got.points if name.startswith("gen_ai.")}
        assert metrics == {
            measured.GEN_AI_CLIENT_TOKEN_USAGE,
            measured.GEN_AI_CLIENT_OPERATION_DURATION,
        }


def test_metrics_count_tokens_time_cost_and_verdicts(ctl, asked):
    _, got = sent(ctl, asked)
    points = got.points
    usage = points["gen_ai.client.token.usage"]
    told = {attributes(one)["gen_ai.token.type"] for one in usage}
    assert told == {"input", "output"}
    questions = [attributes(one) for one in got.spans if CALL in attributes(one)]
    counted = [one for one in questions if "gen_ai.usage.input_tokens" in one]
    assert sum(one.sum for one in usage) == sum(
        one["gen_ai.usage.input_tokens"] + one["gen_ai.usage.output_tokens"] for one in counted
    )
    assert sum(one.count for one in points["gen_ai.client.operation.duration"]) == len(questions)
    cost = sum(one.get("nki_agent.cost_usd", 0.0) for one in questions)
    assert sum(one.as_double for one in points["nki_agent.cost"]) == pytest.approx(cost)
    verdicts = {attributes(one)["nki_agent.verdict"]: one.as_int for one in points["nki_agent.verdicts"]}
    assert verdicts == {"correct": 3, "incorrect": 1}
    assert points["nki_agent.latency.best"][0].as_double == 8.0
    assert attributes(points["nki_agent.latency.best"][0])["nki_agent.predicted"] is True


def test_the_same_run_gives_the_same_spans(home, asked):
    with LogReader.open(home) as reader:
        assert list(iterate_spans(reader, asked)) == list(iterate_spans(reader, asked))


WORDS, ANSWER = "the words of the prompt", "the words of the answer"


@pytest.fixture
def worded(home) -> str:
    """A run with a question whose request and answer are in the log."""
    request = CompletionRequest(
        model="big", guide=(PromptPart(text=f"guide: {WORDS}"),), case=(PromptPart(text=f"case: {WORDS}"),),
        max_output_tokens=321,
    )  # fmt: skip
    data, texts = dump_request(request)
    at = {"key": "r1.b0.p0.k0.f0.planner", "call": 0, "attempt": 1, "role": "planner", "model": BIG}
    started = CallStarted(**at, request=digest_of(data), reserved=RESERVED)
    done = CallCompleted(
        **at,
        cost_usd=0.1,
        tokens=Tokens(input=5, output=2),
        charged_tokens=7,
        answer=digest_of(ANSWER.encode()),
        answered_by="big-1",
        stop_reason="end",
        ms=1.0,
    )
    with EventLog.open(home) as log:
        told = History(log, "worded").begin()
        told.round(1, BIG)
        told.say(PlanStarted(key="r1.b0.p0.k0.f0.planner", request=digest_of(data)))
        told.log.append_now([NewEvent("worded", started)], blobs=(data, *texts))
        told.log.append_now([NewEvent("worded", done)], blobs=(ANSWER.encode(),))
    return "worded"


def test_prompts_and_answers_are_sent_only_if_asked_for(ctl, worded):
    _, got = sent(ctl, worded)
    assert WORDS.encode() not in got.bodies
    assert ANSWER.encode() not in got.bodies
    (question,) = [attributes(one) for one in got.spans if CALL in attributes(one)]
    assert question["gen_ai.request.max_tokens"] == 321
    told, got = sent(ctl, worded, "--prompts")
    assert told["prompts"] is True
    (question,) = [attributes(one) for one in got.spans if CALL in attributes(one)]
    assert f"guide: {WORDS}" in question["gen_ai.system_instructions"]
    assert f"case: {WORDS}" in question["gen_ai.input.messages"]
    assert ANSWER in question["gen_ai.output.messages"]


def test_a_receivers_key_comes_from_the_environment_and_goes_nowhere_else(ctl, asked, monkeypatch):
    key = "otlp-secret-0123456789"
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", f"x-key={key}")
    with receiver() as got:
        called = ctl("export", asked, "--otlp", got.address)
    assert {headers["x-key"] for headers in got.headers} == {key}
    assert key.encode() not in got.bodies
    with receiver(status=400) as got:
        refused = ctl("export", asked, "--otlp", got.address)
    assert refused.status == 1
    assert key not in called.out + called.err + refused.out + refused.err


def test_a_receiver_that_refuses_is_named_with_its_reason(ctl, asked):
    with receiver(status=400) as got:
        called = ctl("export", asked, "--otlp", got.address)
    assert called.status == 1
    assert f"{got.address}/v1/traces did not take everything" in called.err
    assert "400" in called.err


@pytest.mark.parametrize(
    "address", ["nothing", "ftp://h:1", "http://", "http://me:key@127.0.0.1:1", "http://h:x"]
)
def test_what_is_no_address_is_refused_without_repeating_it(ctl, asked, address):
    called = ctl("export", asked, "--otlp", address)
    assert called.status == 2
    assert "key@" not in called.err


def test_without_the_libraries_it_says_what_to_install(ctl, asked, monkeypatch):
    real = builtins.__import__

    def without(name, *more, **named):
        if name.startswith("opentelemetry"):
            raise ImportError(name)
        return real(name, *more, **named)

    for name in [name for name in sys.modules if name.startswith("opentelemetry")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(builtins, "__import__", without)
    called = ctl("export", asked, "--otlp", "http://127.0.0.1:1")
    assert called.status == 2
    assert "[otel]" in called.err


def test_a_run_of_this_machine_alone_is_sent_too(ctl, finished):
    told, got = sent(ctl, finished)
    assert told["questions"] == 0
    assert {"look ahead", "plan", "implement", "evaluate"} & {one.name.split(" r")[0] for one in got.spans}
