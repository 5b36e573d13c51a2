"""The model that answers as it is told."""

from __future__ import annotations

import asyncio

import pytest

from agent_core.providers.completion import Completion, CompletionRequest, PromptPart, RateLimits, Tokens
from agent_core.providers.failures import CallError, Failure, FailureKind
from agent_core.providers.scripted import ScriptedProvider, digest_of_question, fail_first, fail_share

OVERLOADED = Failure(kind=FailureKind.OVERLOADED, message="busy")
CUT = Failure(kind=FailureKind.TRANSPORT, message="cut", may_cost=True)


def question(text: str) -> CompletionRequest:
    return CompletionRequest(model="m", guide=(), case=(PromptPart(text=text),), max_output_tokens=10)


async def ask_provider(provider: ScriptedProvider, text: str) -> Completion | Failure:
    try:
        return await provider.complete(question(text), deadline_seconds=1, observe=lambda _: None)
    except CallError as error:
        return error.failure


async def test_answers_are_found_by_the_digest_of_the_question():
    provider = ScriptedProvider({digest_of_question(question("a")): "an answer"})
    answer = await ask_provider(provider, "a")
    assert isinstance(answer, Completion)
    assert answer.text == "an answer"
    assert answer.tokens.input > 0
    assert answer.tokens.output > 0


async def test_an_unknown_question_is_a_failure_not_an_answer():
    failure = await ask_provider(ScriptedProvider({}), "a")
    assert failure == Failure(kind=FailureKind.INVALID, message="no such question in the script")


async def test_answers_may_be_a_function_of_the_question():
    whole = Completion(text="t", model="other", stop_reason="stop", tokens=Tokens(input=3, output=1))
    provider = ScriptedProvider(lambda request: whole if request.case[0].text == "a" else CUT)
    assert await ask_provider(provider, "a") == whole
    assert await ask_provider(provider, "b") == CUT


async def test_any_change_of_a_question_is_another_question():
    longer = question("a").model_copy(update={"max_output_tokens": 11})
    assert digest_of_question(longer) != digest_of_question(question("a"))


async def test_faults_come_with_the_first_deliveries_of_each_question():
    provider = ScriptedProvider(lambda _: "yes", faults=fail_first(OVERLOADED, CUT))
    for text in ("a", "b"):
        assert await ask_provider(provider, text) == OVERLOADED
        assert await ask_provider(provider, text) == CUT
        assert isinstance(await ask_provider(provider, text), Completion)
    assert provider.count_deliveries(question("a")) == 3
    assert len(provider.asked) == 6


async def test_a_share_of_the_questions_fails_once_whoever_asks():
    texts = [f"question {i}" for i in range(600)]

    async def failing() -> list[str]:
        provider = ScriptedProvider(lambda _: "yes", faults=fail_share(1 / 3, OVERLOADED, CUT))
        found = [(text, await ask_provider(provider, text)) for text in texts]
        again = [await ask_provider(provider, text) for text, _ in found]
        assert all(isinstance(answer, Completion) for answer in again)
        assert {f.kind for _, f in found if isinstance(f, Failure)} == {OVERLOADED.kind, CUT.kind}
        return [text for text, outcome in found if isinstance(outcome, Failure)]

    once = await failing()
    assert 150 <= len(once) <= 250
    assert await failing() == once


async def test_limits_are_observed_also_with_a_fault():
    limits = RateLimits(requests=1)
    provider = ScriptedProvider(lambda _: "yes", faults=fail_first(OVERLOADED), limits=[limits])
    seen: list[RateLimits] = []
    for _ in range(2):
        try:
            await provider.complete(question("a"), deadline_seconds=1, observe=seen.append)
        except CallError:
            continue
    assert seen == [limits]


@pytest.mark.parametrize("order", [1, -1])
async def test_what_is_said_does_not_depend_on_the_order_of_questions(order):
    provider = ScriptedProvider(lambda request: request.case[0].text.upper(), faults=fail_share(0.5, CUT))
    texts = [f"q{i}" for i in range(20)][::order]
    outcomes = dict(
        zip(texts, await asyncio.gather(*(ask_provider(provider, t) for t in texts)), strict=True)
    )
    alone = ScriptedProvider(lambda request: request.case[0].text.upper(), faults=fail_share(0.5, CUT))
    assert outcomes == {text: await ask_provider(alone, text) for text in texts}
