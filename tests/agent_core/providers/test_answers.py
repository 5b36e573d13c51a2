"""Answers over real sockets: what is sent, what of it comes back, and how it is counted."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from agent_core.providers import http_provider, registry
from agent_core.providers.addresses import LOOPBACK_ONLY, RealRequestForbidden, is_loopback
from agent_core.providers.completion import CompletionRequest, PromptPart, Tokens
from agent_core.providers.failures import CallError, FailureKind
from agent_core.providers.registry import EndpointSettings, UnknownEndpoint
from agent_core.providers.windows import estimate_request_tokens
from tests.agent_core.providers.provider_calls import (
    ENDPOINTS,
    KEY,
    MESSAGES,
    REQUEST,
    SENTENCE,
    ask_for_answer,
    ask_for_failure,
    ask_once,
    endpoint,
)
from tests.support.llm_server import (
    LlmServer,
    Refuse,
    Reply,
    by_digest,
    digest_of_request,
    fail_first_deliveries,
)

OPENAI = ("openai", "local")
STOPS = {
    **dict.fromkeys(OPENAI, "stop"),
    **dict.fromkeys(MESSAGES, "end_turn"),
    "responses": "completed",
}


@pytest.mark.parametrize("name", ENDPOINTS)
async def test_an_answer_comes_whole(name):
    text = "def kernel():\n    return 'ü' + \"\\n\"\n" * 50
    answer = await ask_for_answer(
        name, lambda _: Reply(text=text, input=90, cached=40, output=12, model="m-2026")
    )
    assert answer.text == text
    assert answer.model == "m-2026"
    assert answer.tokens == Tokens(input=90, cached=40, output=12)
    assert answer.stop_reason == (STOPS[name])
    assert answer.request_id == "req_scripted"


@pytest.mark.parametrize("name", ENDPOINTS)
async def test_tokens_of_the_input_include_both_those_read_from_a_cache_and_those_written_to_one(name):
    answer = await ask_for_answer(name, lambda _: Reply(input=100, cached=30, written=50, output=5))
    assert answer.tokens == Tokens(input=100, cached=30, written=50, output=5)


@pytest.mark.parametrize("name", ENDPOINTS)
async def test_an_answer_without_text_is_an_empty_answer(name):
    answer = await ask_for_answer(name, lambda _: Reply(text=""))
    assert answer.text == ""


@pytest.mark.parametrize("name", [*OPENAI, *MESSAGES])
async def test_an_answer_may_also_stop_at_a_word(name):
    stop = "stop_sequence" if name in MESSAGES else "stop"
    answer = await ask_for_answer(name, lambda _: Reply(stop=stop))
    assert answer.stop_reason == stop


@pytest.mark.parametrize("name", ENDPOINTS)
@pytest.mark.parametrize("ending", ["open", "reset"])
async def test_an_answer_with_stop_reason_and_counts_is_whole_however_its_stream_ends(
    name, ending, monkeypatch
):
    monkeypatch.setattr(http_provider, "TAIL_SECONDS", 0.1)
    answer = await ask_for_answer(name, lambda _: Reply(text="all of it", input=9, output=4, ending=ending))
    assert answer.text == "all of it"
    assert answer.tokens == Tokens(input=9, output=4)


async def test_a_server_that_neither_counts_nor_ends_its_stream_is_asked_for_whole_answers():
    whole = Reply(text="counted", input=50, output=3)
    hung = Reply(ending="open", counted=False)
    with LlmServer(lambda came: hung if came.body.get("stream") else whole) as server:
        async with endpoint("local", server, silence_seconds=0.3) as provider:
            first = await provider.complete(REQUEST, deadline_seconds=60, observe=lambda _: None)
            answer = await provider.complete(REQUEST, deadline_seconds=60, observe=lambda _: None)
    assert (first.text, first.tokens.estimated) == ("ok", True)
    assert (answer.text, answer.tokens.estimated) == ("counted", False)


@pytest.mark.parametrize("name", [*OPENAI, *MESSAGES])
@pytest.mark.parametrize("stop", ["eos_token", "STOP", "finished"])
async def test_an_unknown_stop_reason_with_text_ends_an_answer(name, stop):
    answer = await ask_for_answer(name, lambda _: Reply(text="def kernel(): ...", stop=stop))
    assert (answer.text, answer.stop_reason) == ("def kernel(): ...", stop)


@pytest.mark.parametrize("name", OPENAI)
async def test_content_in_parts_is_read(name):
    answer = await ask_for_answer(name, lambda _: Reply(text="in two pieces", parts=True))
    assert answer.text == "in two pieces"


async def test_a_whole_answer_s_content_in_parts_is_read():
    uncounted, whole = Reply(ending="no_usage"), Reply(text="in parts", parts=True)
    with LlmServer(lambda came: uncounted if came.body.get("stream") else whole) as server:
        async with endpoint("local", server) as provider:
            await provider.complete(REQUEST, deadline_seconds=60, observe=lambda _: None)
            answer = await provider.complete(REQUEST, deadline_seconds=60, observe=lambda _: None)
    assert answer.text == "in parts"


async def test_what_anthropic_is_sent():
    request = REQUEST.model_copy(update={"effort": "high"})
    _, _, server = await ask_once("anthropic", lambda _: Reply(), request=request)
    (came,) = server.asked
    assert came.body == {
        "model": "test-model",
        "max_tokens": 1000,
        "stream": True,
        "thinking": {"type": "adaptive"},
        "output_config": {"effort": "high"},
        "system": [
            {"type": "text", "text": "You write kernels."},
            {"type": "text", "text": SENTENCE, "cache_control": {"type": "ephemeral"}},
        ],
        "messages": [{"role": "user", "content": [{"type": "text", "text": REQUEST.case[0].text}]}],
    }
    assert came.headers["authorization"] == f"Bearer {KEY}"
    assert "temperature" not in came.body


async def test_of_more_than_four_breakpoints_the_last_four_are_set():
    parts = tuple(PromptPart(text=f"part {i}", cached=True) for i in range(5))
    request = CompletionRequest(model="m", guide=parts[:3], case=parts[3:], max_output_tokens=5)
    _, _, server = await ask_once("anthropic", lambda _: Reply(), request=request)
    (came,) = server.asked
    blocks = [*came.body["system"], *came.body["messages"][0]["content"]]
    assert ["cache_control" in block for block in blocks] == [False, True, True, True, True]


async def test_empty_parts_are_not_sent():
    parts = (PromptPart(text="\n", cached=True), PromptPart(text="a"))
    request = CompletionRequest(model="m", guide=(PromptPart(text=""),), case=parts, max_output_tokens=5)
    for name in ENDPOINTS:
        _, _, server = await ask_once(name, lambda _: Reply(), request=request)
        assert server.asked[0].guide == ""
        assert server.asked[0].case == "a"


@pytest.mark.parametrize("name", OPENAI)
async def test_what_a_server_of_chat_completions_is_sent(name):
    request = REQUEST.model_copy(update={"effort": "low"})
    _, _, server = await ask_once(name, lambda _: Reply(), request=request)
    (came,) = server.asked
    assert came.body == {
        "model": "test-model",
        "max_tokens": 1000,
        "stream": True,
        "stream_options": {"include_usage": True},
        "reasoning_effort": "low",
        "messages": [
            {"role": "system", "content": f"You write kernels.\n\n{SENTENCE}"},
            {"role": "user", "content": REQUEST.case[0].text},
        ],
    }
    assert came.headers["authorization"] == f"Bearer {KEY}"


def test_the_vendor_is_told_the_bound_in_its_own_word():
    provider = registry.create_provider("openai", EndpointSettings(wire="chat"))
    assert provider.build_body(REQUEST)["max_completion_tokens"] == 1000
    assert "max_tokens" not in provider.build_body(REQUEST)


async def test_the_same_question_has_the_same_digest_at_all_servers():
    wanted = digest_of_request(REQUEST)
    for name in ENDPOINTS:
        answer = await ask_for_answer(name, by_digest({wanted: Reply(text="found")}))
        assert answer.text == "found"


@pytest.mark.parametrize("name", OPENAI)
async def test_a_server_that_takes_the_other_word_for_the_bound_is_asked_in_that(name):
    message = "Unsupported parameter: 'max_tokens' is not supported with this model."
    refusal = Refuse(400, "invalid_request_error", message, code="unsupported_parameter", param="max_tokens")

    def script(came):
        return refusal if "max_tokens" in came.body else Reply(text="taken")

    with LlmServer(script) as server:
        async with endpoint(name, server) as provider:
            for _ in range(2):
                answer = await provider.complete(REQUEST, deadline_seconds=60, observe=lambda _: None)
                assert answer.text == "taken"
    assert ["max_tokens" in came.body for came in server.asked] == [True, False, False]
    assert server.asked[-1].most_tokens == 1000


@pytest.mark.parametrize(
    ("name", "field", "message"),
    [
        ("anthropic", "output_config", "output_config.effort: Extra inputs are not permitted"),
        ("anthropic", "output_config", "This model does not support the effort parameter."),
        ("local", "reasoning_effort", "body.reasoning_effort: unknown field"),
    ],
)
async def test_effort_is_left_out_where_it_is_not_taken(name, field, message):
    request = REQUEST.model_copy(update={"effort": "high"})
    refusal = Refuse(400, "invalid_request_error", message)
    _, _, server = await ask_once(
        name, lambda came: refusal if field in came.body else Reply(), request=request
    )
    assert [field in came.body for came in server.asked] == [True, False]


@pytest.mark.parametrize("name", ENDPOINTS)
async def test_a_server_that_takes_nothing_is_not_asked_for_ever(name):
    message = "max_tokens, max_completion_tokens, output_config, reasoning_effort: not supported"
    request = REQUEST.model_copy(update={"effort": "high"})
    outcome, _, server = await ask_once(
        name, lambda _: Refuse(400, "invalid_request_error", message), request=request
    )
    assert outcome.kind is FailureKind.INVALID
    assert len(server.asked) <= 4
    assert all(came.most_tokens == 1000 for came in server.asked)


@pytest.mark.parametrize("name", ENDPOINTS)
async def test_a_bound_that_is_too_high_is_no_reason_to_leave_it_out(name):
    message = "max_tokens: 1000 > 500, which is the maximum allowed number of output tokens for this model"
    outcome, _, server = await ask_once(name, lambda _: Refuse(400, "invalid_request_error", message))
    assert outcome.kind is FailureKind.INVALID
    assert len(server.asked) == 1


@pytest.mark.parametrize("name", ENDPOINTS)
@pytest.mark.parametrize("said", [Reply(), Refuse(529), Refuse(429)])
async def test_limits_are_observed_with_answers_and_with_refusals(name, said):
    headers = {
        "anthropic-ratelimit-requests-remaining": "7",
        "anthropic-ratelimit-requests-limit": "50",
        "x-ratelimit-remaining-tokens": "900",
        "x-ratelimit-reset-tokens": "1m30s",
    }
    said = type(said)(**{**vars(said), "headers": headers})
    _, limits, _ = await ask_once(name, lambda _: said)
    (seen,) = limits
    assert (seen.requests, seen.requests_limit) == (7, 50)
    assert (seen.tokens, seen.tokens_reset_seconds) == (900, 90)


@pytest.mark.parametrize("name", ENDPOINTS)
async def test_nothing_is_observed_where_nothing_is_said(name):
    _, limits, _ = await ask_once(name, lambda _: Reply())
    assert limits == []


@pytest.mark.parametrize("name", ENDPOINTS)
@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "12"}, 12),
        ({"retry-after": "7200"}, 7200),
        (
            {"retry-after": "Sun, 22 Nov 2026 12:00:30 GMT", "date": "Sun, 22 Nov 2026 12:00:00 GMT"},
            30,
        ),
        ({"retry-after": "soon"}, None),
        ({}, None),
    ],
)
async def test_when_to_come_back_is_told_as_it_was_said(name, headers, seconds):
    failure = await ask_for_failure(name, lambda _: Refuse(429, "rate_limit_error", headers=headers))
    assert failure.retry_after_seconds == seconds


@pytest.mark.parametrize("name", ENDPOINTS)
async def test_faults_by_delivery_end_in_an_answer(name):
    script = fail_first_deliveries(lambda _: Reply(text="at last"), Refuse(529), Reply(ending="cut"))
    with LlmServer(script) as server:
        async with endpoint(name, server) as provider:
            for _ in range(2):
                with pytest.raises(Exception, match=r"overloaded|transport"):
                    await provider.complete(REQUEST, deadline_seconds=60, observe=lambda _: None)
            answer = await provider.complete(REQUEST, deadline_seconds=60, observe=lambda _: None)
    assert answer.text == "at last"
    assert server.counts() == {digest_of_request(REQUEST): 3}


@pytest.mark.parametrize("name", OPENAI)
async def test_a_whole_answer_without_counts_is_taken_with_estimated_ones(name):
    text = "def kernel(): ..." * 20
    answer = await ask_for_answer(name, lambda _: Reply(text=text, ending="no_usage", reasoning=3))
    assert (answer.text, answer.stop_reason) == (text, "stop")
    assert answer.tokens.estimated
    assert answer.tokens.input == estimate_request_tokens(REQUEST)
    assert len(text) / 4 < answer.tokens.output <= REQUEST.max_output_tokens


@pytest.mark.parametrize("name", OPENAI)
@pytest.mark.parametrize("said", [Reply(ending="no_usage"), Refuse(200, raw=b"")])
async def test_a_server_that_does_not_count_in_streams_is_asked_for_whole_answers(name, said):
    whole = Reply(text="counted", input=50, cached=20, output=3)
    with LlmServer(lambda came: said if came.body.get("stream") else whole) as server:
        async with endpoint(name, server) as provider:
            with suppress(CallError):  # without any event there is no answer
                await provider.complete(REQUEST, deadline_seconds=60, observe=lambda _: None)
            answer = await provider.complete(REQUEST, deadline_seconds=60, observe=lambda _: None)
    assert answer.text == "counted"
    assert answer.tokens == Tokens(input=50, cached=20, output=3)
    assert answer.request_id == "req_scripted"
    assert ["stream" in came.body for came in server.asked] == [True, False]


@pytest.mark.parametrize(
    "said", [Reply(stop="length", output=9), Reply(refusal="no"), Refuse(413), Refuse(529)]
)
async def test_whole_answers_have_the_failures_of_streamed_ones(said):
    uncounted = Reply(ending="no_usage")
    failures = []
    for first in (uncounted, None):
        script = (lambda came: uncounted if came.body.get("stream") else said) if first else lambda _: said
        with LlmServer(script) as server:
            async with endpoint("local", server) as provider:
                if first:
                    await provider.complete(REQUEST, deadline_seconds=60, observe=lambda _: None)
                with pytest.raises(CallError) as caught:
                    await provider.complete(REQUEST, deadline_seconds=60, observe=lambda _: None)
                failures.append(caught.value.failure)
    assert failures[0] == failures[1]


async def test_a_whole_answer_that_is_no_json_is_a_failure():
    garbage = Refuse(200, raw=b"<html>")
    with LlmServer(lambda came: Reply(ending="no_usage") if came.body.get("stream") else garbage) as server:
        async with endpoint("local", server) as provider:
            await provider.complete(REQUEST, deadline_seconds=60, observe=lambda _: None)
            with pytest.raises(CallError) as caught:
                await provider.complete(REQUEST, deadline_seconds=60, observe=lambda _: None)
    assert caught.value.failure.kind is FailureKind.SERVER


async def test_a_connection_that_is_cut_is_no_reason_to_stop_streaming():
    script = fail_first_deliveries(lambda _: Reply(), Reply(ending="cut"))
    with LlmServer(script) as server:
        async with endpoint("local", server) as provider:
            with pytest.raises(CallError):
                await provider.complete(REQUEST, deadline_seconds=60, observe=lambda _: None)
            await provider.complete(REQUEST, deadline_seconds=60, observe=lambda _: None)
    assert all(came.body["stream"] for came in server.asked)


def test_the_vendors_own_streams_are_counted():
    provider = registry.create_provider("openai", EndpointSettings(wire="chat"))
    assert not provider.may_count_nothing()
    assert registry.create_provider("local", EndpointSettings()).may_count_nothing()


@pytest.mark.parametrize("name", ENDPOINTS)
async def test_many_questions_at_a_time_have_each_their_own_answer(name):
    requests = [REQUEST.model_copy(update={"case": (PromptPart(text=f"question {i}"),)}) for i in range(20)]
    with LlmServer(lambda came: Reply(text=f"answer to {came.case}")) as server:
        async with endpoint(name, server) as provider:
            answers = await asyncio.gather(
                *(provider.complete(r, deadline_seconds=60, observe=lambda _: None) for r in requests)
            )
    assert [a.text for a in answers] == [f"answer to question {i}" for i in range(20)]


async def test_local_needs_no_key():
    assert not registry.find_service("local").needs_key
    with LlmServer(lambda _: Reply(text="free")) as server:
        provider = registry.create_provider("local", EndpointSettings(base_url=server.openai))
        answer = await provider.complete(REQUEST, deadline_seconds=60, observe=lambda _: None)
        await provider.aclose()
    assert answer.text == "free"


def test_an_unknown_endpoint_is_named_with_its_likeness():
    with pytest.raises(UnknownEndpoint, match=r"'antropic' \(did you mean 'anthropic'\?\)"):
        registry.create_provider("antropic", EndpointSettings())


@pytest.mark.parametrize("name", ENDPOINTS)
async def test_tests_cannot_ask_a_real_model(name):
    url = "https://example.com/v1"
    settings = EndpointSettings(base_url=url, region="us-west-2")
    provider = registry.create_provider("openai" if name == "responses" else name, settings)
    with pytest.raises(RealRequestForbidden, match=rf"example\.com .* {LOOPBACK_ONLY}"):
        await provider.complete(REQUEST, deadline_seconds=5, observe=lambda _: None)
    await provider.aclose()


def test_neither_can_the_processes_that_tests_start():
    assert os.environ[LOOPBACK_ONLY]
    script = "import os; print(os.environ[%r])" % LOOPBACK_ONLY  # noqa: UP031
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert out.strip() == os.environ[LOOPBACK_ONLY]


async def test_without_the_switch_the_request_is_tried(monkeypatch):
    monkeypatch.delenv(LOOPBACK_ONLY)
    provider = registry.create_provider("openai", EndpointSettings(base_url="http://192.0.2.1/v1"))
    with pytest.raises(CallError):  # the guard of sockets is what it met instead
        await provider.complete(REQUEST, deadline_seconds=5, observe=lambda _: None)
    await provider.aclose()


@pytest.mark.parametrize(
    ("url", "own"),
    [
        ("http://127.0.0.1:8000/v1", True),
        ("http://127.9.9.9", True),
        ("http://[::1]:8000", True),
        ("http://localhost:1/v1", True),
        ("http://localhost.example.com/v1", False),
        ("http://127.0.0.1.example.com", False),
        ("https://127.0.0.1@example.com", False),
        ("http://10.0.0.1", False),
        ("nonsense", False),
    ],
)
def test_which_addresses_are_this_machines(url, own):
    assert is_loopback(url) is own


def test_the_registry_imports_no_sdk():
    script = "import sys, json, agent_core.providers.registry; print(json.dumps(sorted(sys.modules)))"
    out = subprocess.run(
        [sys.executable, "-c", script],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert not {"anthropic", "openai", "httpx2", "genai_prices"} & set(json.loads(out))


@pytest.mark.parametrize("name", OPENAI)
async def test_a_stream_that_is_cut_off_says_nothing_about_counts(name):
    with LlmServer(lambda came: Reply(ending="eof") if came.number == 1 else Reply(text="at last")) as server:
        async with endpoint(name, server) as provider:
            with pytest.raises(CallError):
                await provider.complete(REQUEST, deadline_seconds=60, observe=lambda _: None)
            answer = await provider.complete(REQUEST, deadline_seconds=60, observe=lambda _: None)
    assert not answer.tokens.estimated
    assert ["stream" in came.body for came in server.asked] == [True, True]
