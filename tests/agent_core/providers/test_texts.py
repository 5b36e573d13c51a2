"""Texts of endpoints: whatever a server says, what comes out can be written down, and holds no key."""

from __future__ import annotations

import pytest

from agent_core.providers.failures import FailureKind
from tests.agent_core.providers.provider_calls import ENDPOINTS, KEY, REQUEST, ask_for_answer, ask_for_failure
from tests.support.llm_server import Refuse, Reply

FIRST, SECOND = "\ud83d", "\ude00"
"""The halves of an emoji, as a JSON's escapes can say them."""
GONE = "\ufffd"


@pytest.mark.parametrize("name", ENDPOINTS)
async def test_an_emoji_that_comes_in_two_halves_is_one(name):
    """The server sends each half of the text as a piece of its own."""
    answer = await ask_for_answer(name, lambda _: Reply(text=f"so {FIRST}{SECOND} ok"))
    assert answer.text == "so \U0001f600 ok"


@pytest.mark.parametrize("name", ENDPOINTS)
@pytest.mark.parametrize("half", [FIRST, SECOND])
async def test_half_a_letter_costs_no_answer(name, half):
    said = Reply(text=f"a {half} b{half}", model=f"m{half}1", output=7)
    answer = await ask_for_answer(name, lambda _: said)
    assert answer.text == f"a {GONE} b{GONE}"
    assert answer.model == f"m{GONE}1"
    assert answer.tokens.output == 7
    answer.model_dump_json().encode()


@pytest.mark.parametrize("name", ENDPOINTS)
@pytest.mark.parametrize(
    ("said", "kind"),
    [
        (Refuse(500, "api_error", f"down {FIRST}"), FailureKind.SERVER),
        (Refuse(400, "invalid_request_error", f"down {FIRST}"), FailureKind.INVALID),
        (Reply(refusal=f"down {FIRST}"), FailureKind.REFUSED),
        (Reply(stop=f"down {FIRST}", text=""), FailureKind.INVALID),
    ],
)
async def test_half_a_letter_in_a_failure_can_be_written_down(name, said, kind):
    if name == "responses" and getattr(said, "stop", None):
        said, kind = Reply(stop="failed", error=f"down {FIRST}"), FailureKind.SERVER
    failure = await ask_for_failure(name, lambda _: said)
    assert failure.kind is kind
    assert f"down {GONE}" in failure.message
    failure.model_dump_json().encode()


def echo(text: str) -> dict[str, str]:
    return {"request-id": text, "x-request-id": text}


@pytest.mark.parametrize("name", ENDPOINTS)
async def test_a_gateway_that_repeats_the_key_with_its_answer_is_not_quoted(name):
    said = Reply(model=f"m for {KEY}", headers=echo(f"{'x' * 190} {KEY}"))
    answer = await ask_for_answer(name, lambda _: said)
    assert answer.model == "m for [hidden]"
    assert answer.request_id == f"{'x' * 190} [hidden]"


@pytest.mark.parametrize("name", ENDPOINTS)
async def test_nor_is_one_that_repeats_it_with_a_refusal(name):
    failure = await ask_for_failure(name, lambda _: Refuse(500, headers=echo(f"{'x' * 190} {KEY}")))
    assert failure.request_id == f"{'x' * 190} [hidden]"


@pytest.mark.parametrize("name", ENDPOINTS)
async def test_names_are_short(name):
    answer = await ask_for_answer(name, lambda _: Reply(model="m" * 5000, headers=echo("x" * 5000)))
    assert answer.model == "m" * 297 + "..."
    assert answer.request_id == "x" * 297 + "..."


@pytest.mark.parametrize("name", ENDPOINTS)
async def test_the_model_that_was_asked_for_keeps_its_name(name):
    """Also one that looks like a key."""
    request = REQUEST.model_copy(update={"model": "hf-some-model-8b"})
    assert (await ask_for_answer(name, lambda _: Reply(), request=request)).model == "hf-some-model-8b"
