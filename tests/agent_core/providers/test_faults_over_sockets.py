"""Every fault of a model's service, over real sockets and through the official SDKs, as the failure it is.

The table is fault by vendor. What holds for all: the failure is of the right kind, one request was sent, and
neither the key nor the prompt is in what is said of it.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest

from agent_core.providers.completion import PromptPart, Tokens
from agent_core.providers.failures import FailureKind as Kind
from tests.agent_core.providers.provider_calls import (
    ENDPOINTS,
    KEY,
    MESSAGES,
    REQUEST,
    SENTENCE,
    ask_for_failure,
    ask_once,
    endpoint,
)
from tests.support.llm_server import Hang, LlmServer, Refuse, Reply, Said

SPENT = "You have reached your specified API usage limits. You will regain access on 2026-12-01."
POOR = "Your credit balance is too low to access the API."
LONG = "prompt is too long: 210000 tokens > 200000 maximum"
LONG_TOO = "This model's maximum context length is 8192 tokens. However, you requested 9000 tokens."
LONG_STILL = "Input tokens exceed the configured limit of 272000 tokens."
HUGE = "Request too large for gpt-x in organization o on tokens per min (TPM): Limit 1, Requested 2."
GENERAL = "invalid_request_error"


@dataclass(frozen=True)
class Row:
    """A fault, the kind it is, and whether it may have cost something that nobody counted."""

    said: Said
    kind: Kind
    may_cost: bool = False
    status: int | None = None
    endpoints: tuple[str, ...] = ENDPOINTS


RESPONSES = ("responses",)
STUCK = Reply(ending="hang", text="it began, and then")
ANTHROPIC, OPENAI = MESSAGES, ("openai", "local")
ROWS = {
    "401": Row(Refuse(401, "authentication_error"), Kind.AUTH, status=401),
    "403": Row(Refuse(403, "permission_error"), Kind.AUTH, status=403),
    "404": Row(Refuse(404, "not_found_error"), Kind.AUTH, status=404),
    "400": Row(Refuse(400, GENERAL), Kind.INVALID, status=400),
    "422": Row(Refuse(422, GENERAL), Kind.INVALID, status=422),
    "302": Row(Refuse(302, headers={"location": "http://127.0.0.1:1/"}), Kind.AUTH, status=302),
    "413": Row(Refuse(413, "request_too_large"), Kind.TOO_LARGE, status=413),
    "413 page": Row(Refuse(413, raw=b"<html>no</html>"), Kind.TOO_LARGE, status=413),
    "400 long": Row(Refuse(400, GENERAL, LONG), Kind.TOO_LARGE, status=400),
    "400 context": Row(Refuse(400, GENERAL, LONG_TOO), Kind.TOO_LARGE, status=400),
    "400 limit": Row(Refuse(400, GENERAL, LONG_STILL), Kind.TOO_LARGE, status=400),
    "400 code": Row(Refuse(400, GENERAL, code="context_length_exceeded"), Kind.TOO_LARGE, endpoints=OPENAI),
    "400 llama": Row(Refuse(400, "exceed_context_size_error"), Kind.TOO_LARGE, endpoints=OPENAI),
    "429": Row(Refuse(429, "rate_limit_error"), Kind.RATE, status=429),
    "429 page": Row(Refuse(429, raw=b"<html>slow down</html>"), Kind.RATE, status=429),
    "429 ramp": Row(Refuse(429, "rate_limit_error", code="ramp_limit_exceeded"), Kind.RATE),
    "429 huge": Row(
        Refuse(429, "tokens", HUGE, code="rate_limit_exceeded"), Kind.TOO_LARGE, endpoints=OPENAI
    ),
    "429 quota": Row(
        Refuse(429, "insufficient_quota", code="insufficient_quota"), Kind.SPEND_LIMIT, endpoints=OPENAI
    ),
    "429 limit": Row(
        Refuse(429, "rate_limit_error", code="enforced_spend_limit_reached"), Kind.SPEND_LIMIT, status=429
    ),
    "429 said": Row(Refuse(429, "rate_limit_error", SPENT), Kind.SPEND_LIMIT),
    "400 said": Row(Refuse(400, GENERAL, SPENT), Kind.SPEND_LIMIT),
    "400 poor": Row(Refuse(400, GENERAL, POOR), Kind.SPEND_LIMIT),
    "402": Row(Refuse(402, "billing_error"), Kind.SPEND_LIMIT, status=402),
    "529": Row(Refuse(529, "overloaded_error"), Kind.OVERLOADED, status=529),
    "503": Row(Refuse(503, raw=b"busy"), Kind.OVERLOADED, status=503),
    "500": Row(Refuse(500, "api_error"), Kind.SERVER, status=500),
    "502": Row(Refuse(502, raw=b"<html>gateway</html>"), Kind.SERVER, may_cost=True, status=502),
    "504": Row(Refuse(504, "timeout_error"), Kind.TRANSPORT, may_cost=True, status=504),
    "409": Row(Refuse(409, "conflict_error"), Kind.SERVER, status=409),
    "408": Row(Refuse(408), Kind.TRANSPORT, status=408),
    "filtered": Row(Refuse(400, GENERAL, code="content_filter"), Kind.REFUSED, endpoints=OPENAI),
    "dropped": Row(Hang(drop=True), Kind.TRANSPORT, may_cost=True),
    "cut": Row(Reply(ending="cut"), Kind.TRANSPORT, may_cost=True, status=200),
    "eof": Row(Reply(ending="eof"), Kind.TRANSPORT, may_cost=True, status=200),
    "no usage": Row(
        Reply(ending="no_usage"),
        Kind.TRANSPORT,
        may_cost=True,
        status=200,
        endpoints=(*MESSAGES, "responses"),
    ),
    "no stop": Row(Reply(ending="no_stop"), Kind.TRANSPORT, may_cost=True, status=200),
    "garbage": Row(Reply(ending="garbage"), Kind.SERVER, may_cost=True, status=200),
    "page": Row(Refuse(200, raw=b"<html>welcome</html>"), Kind.SERVER, may_cost=True, status=200),
    "nothing": Row(Refuse(200, raw=b""), Kind.SERVER, may_cost=True, status=200),
    "late overload": Row(Reply(ending="error"), Kind.OVERLOADED, may_cost=True, status=200),
    "late error": Row(Reply(ending="error", error="api_error"), Kind.SERVER, may_cost=True, status=200),
    "late limit": Row(Reply(ending="error", error="rate_limit_error"), Kind.RATE, may_cost=True, status=200),
    "refusal": Row(Reply(refusal="I would rather not."), Kind.REFUSED, status=200),
    "truncated": Row(Reply(stop="max_tokens"), Kind.TRUNCATED, endpoints=ANTHROPIC),
    "length": Row(Reply(stop="length"), Kind.TRUNCATED, endpoints=OPENAI),
    "window": Row(Reply(stop="model_context_window_exceeded"), Kind.TOO_LARGE, endpoints=ANTHROPIC),
    "filter": Row(Reply(stop="content_filter"), Kind.REFUSED, endpoints=OPENAI),
    "tool": Row(Reply(stop="tool_use"), Kind.INVALID, endpoints=ANTHROPIC),
    "tools": Row(Reply(stop="tool_calls"), Kind.INVALID, endpoints=OPENAI),
    "unheard": Row(Reply(stop="boredom", text=" "), Kind.INVALID, endpoints=(*MESSAGES, *OPENAI)),
    "unheard limit": Row(Reply(stop="MODEL_LENGTH"), Kind.TRUNCATED, endpoints=(*MESSAGES, *OPENAI)),
    "incomplete": Row(Reply(stop="max_messages"), Kind.SERVER, endpoints=RESPONSES),
    "most tokens": Row(Reply(stop="max_output_tokens"), Kind.TRUNCATED, endpoints=RESPONSES),
    "filtered late": Row(Reply(stop="content_filter"), Kind.REFUSED, endpoints=RESPONSES),
    "failed": Row(Reply(stop="failed", error="server_error"), Kind.SERVER, endpoints=RESPONSES),
    "failed fast": Row(Reply(stop="failed", error="rate_limit_exceeded"), Kind.RATE, endpoints=RESPONSES),
    "flagged": Row(Reply(stop="failed", error="invalid_prompt"), Kind.REFUSED, endpoints=RESPONSES),
    "aws throttles": Row(Refuse(429, "ThrottlingException"), Kind.RATE, endpoints=("bedrock",)),
    "aws too long": Row(
        Refuse(400, GENERAL, "Input is too long for requested model."), Kind.TOO_LARGE, endpoints=("bedrock",)
    ),
    "aws denies": Row(Refuse(403, "AccessDeniedException"), Kind.AUTH, endpoints=("bedrock",)),
    "shouted": Row(Reply(stop="LENGTH"), Kind.TRUNCATED, endpoints=OPENAI),
    "unsafe": Row(Reply(stop="SAFETY"), Kind.REFUSED, endpoints=OPENAI),
    "abort": Row(Reply(stop="abort"), Kind.SERVER, endpoints=OPENAI),
}
CASES = [(endpoint, fault) for fault, row in ROWS.items() for endpoint in row.endpoints]


@pytest.mark.parametrize(("name", "fault"), CASES)
async def test_a_fault_is_a_failure_of_its_kind(name, fault):
    row = ROWS[fault]
    failure, _, server = await ask_once(name, lambda _: row.said)
    assert failure.kind is row.kind
    assert failure.may_cost is row.may_cost
    assert row.status in {None, failure.status}
    assert len(server.asked) == 1
    assert KEY not in failure.message
    assert SENTENCE not in failure.message
    assert 0 < len(failure.message) <= 300


@pytest.mark.parametrize("name", ENDPOINTS)
async def test_an_answer_that_is_no_use_says_what_it_was_counted_at(name):
    stop = "max_tokens" if name in MESSAGES else "length"
    failure = await ask_for_failure(name, lambda _: Reply(stop=stop, input=100, cached=60, output=7))
    assert failure.tokens == Tokens(input=100, cached=60, output=7)
    assert not failure.may_cost


@pytest.mark.parametrize("name", ENDPOINTS)
async def test_a_server_that_is_not_there_costs_nothing(name):
    with LlmServer(lambda _: Reply()) as server:
        pass
    async with endpoint(name, server) as provider:
        place = f"http://127.0.0.1:{server.port} cannot be reached: "
        with pytest.raises(Exception, match=place) as caught:
            await provider.complete(REQUEST, deadline_seconds=60, observe=lambda _: None)
    assert caught.value.failure.kind is Kind.TRANSPORT
    assert not caught.value.failure.may_cost


@pytest.mark.parametrize("name", ENDPOINTS)
async def test_an_answer_that_does_not_begin_is_a_failure_before_the_deadline(name):
    failure = await ask_for_failure(name, lambda _: Hang(), first_token_seconds=0.3)
    assert failure.kind is Kind.TRANSPORT
    assert failure.may_cost
    assert "no first token in 0.3 s" in failure.message


@pytest.mark.parametrize("name", ENDPOINTS)
async def test_silence_within_an_answer_is_a_failure_too(name):
    failure = await ask_for_failure(name, lambda _: STUCK, silence_seconds=0.3)
    assert failure.kind is Kind.TRANSPORT
    assert failure.may_cost
    assert "silent for 0.3 s" in failure.message


@pytest.mark.parametrize("name", ENDPOINTS)
async def test_an_answer_does_not_outlast_its_deadline(name):
    failure = await ask_for_failure(name, lambda _: STUCK, deadline=0.3)
    assert failure.kind is Kind.TRANSPORT
    assert failure.may_cost
    assert "no whole answer in 0.3 s" in failure.message


@pytest.mark.parametrize("name", ENDPOINTS)
async def test_events_before_the_first_token_do_not_lengthen_its_limit(name):
    slow = Reply(pause_seconds=0.4, text="x" * 64)
    failure = await ask_for_failure(name, lambda _: slow, first_token_seconds=0.3, silence_seconds=60)
    assert "no first token in 0.3 s" in failure.message


@pytest.mark.parametrize("name", ENDPOINTS)
async def test_an_endless_answer_is_broken_off(name, monkeypatch):
    monkeypatch.setattr("agent_core.providers.http_provider.MOST_BYTES", 10_000)
    failure = await ask_for_failure(name, lambda _: Reply(text="x" * 20_000))
    assert failure.kind is Kind.SERVER
    assert "more than 10000 bytes" in failure.message


@pytest.mark.parametrize("name", ENDPOINTS)
async def test_an_endless_refusal_is_broken_off(name, monkeypatch):
    monkeypatch.setattr("agent_core.providers.http_provider.MOST_BYTES", 10_000)
    failure = await ask_for_failure(name, lambda _: Refuse(500, message="x" * 20_000))
    assert failure.kind in {Kind.SERVER, Kind.TRANSPORT}


@pytest.mark.parametrize("name", ENDPOINTS)
async def test_a_server_that_repeats_key_and_prompt_is_not_quoted(name):
    said = f"cannot parse {SENTENCE!r} of {REQUEST.case[0].text}, Bearer {KEY}, x-api-key: {KEY} at line 1"
    failure = await ask_for_failure(name, lambda _: Refuse(400, GENERAL, said))
    assert "cannot parse" in failure.message
    assert "at line 1" in failure.message
    for secret in (KEY, SENTENCE, "partition dimension", "kernel of today", "nki.language"):
        assert secret not in failure.message


@pytest.mark.parametrize("name", ENDPOINTS)
async def test_a_cancelled_question_is_cancelled(name):
    with LlmServer(lambda _: Hang()) as server:
        async with endpoint(name, server) as provider:
            call = provider.complete(REQUEST, deadline_seconds=60, observe=lambda _: None)
            task = asyncio.create_task(call)
            await asyncio.to_thread(server.wait_for, 1)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task


@pytest.mark.parametrize("name", ENDPOINTS)
async def test_the_prompt_of_a_model_that_refuses_stays_out_of_the_message(name):
    failure = await ask_for_failure(name, lambda _: Reply(refusal=f"I will not work on: {SENTENCE}"))
    assert failure.kind is Kind.REFUSED
    assert "I will not work on: [prompt]" in failure.message


@pytest.mark.parametrize("name", ENDPOINTS)
async def test_letters_that_no_wire_can_carry_are_a_failure_not_a_crash(name):
    broken = REQUEST.model_copy(update={"case": (PromptPart(text="half a letter: \ud83d"),)})
    failure = await ask_for_failure(name, lambda _: Reply(), request=broken)
    assert failure.kind in {Kind.INVALID, Kind.SERVER, Kind.TRANSPORT}
