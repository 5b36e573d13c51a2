"""What an endpoint's refusal is taken for, and what of it may be written down."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_core.providers.completion import CompletionRequest, PromptPart
from agent_core.providers.error_bodies import ErrorBody, classify_error, parse_error_body, redact_message
from agent_core.providers.failures import FailureKind as Kind
from agent_core.providers.keys import Secret

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=10,
)
PROMPT = "Rewrite the kernel so that each tile of the left operand is loaded once. " * 20


def request(text: str = PROMPT) -> CompletionRequest:
    return CompletionRequest(model="m", guide=(PromptPart(text=text),), case=(), max_output_tokens=1)


@pytest.mark.parametrize(
    ("body", "codes", "message"),
    [
        ({"type": "error", "error": {"type": "a", "message": "m"}}, {"a"}, "m"),
        ({"error": {"type": "a", "message": "m", "details": {"error_code": "b"}}}, {"a", "b"}, "m"),
        ({"error": {"type": "a", "code": "c", "message": "m"}}, {"a", "c"}, "m"),
        ({"type": "a", "code": "c", "message": "m"}, {"a", "c"}, "m"),
        ({"object": "error", "message": "m", "code": 400}, set(), "m"),
        ({"error": "m"}, set(), "m"),
        ({"detail": "m"}, set(), "m"),
        ({"error": {"code": 400, "message": ["m"]}}, set(), ""),
        ("<html>", set(), ""),
        ("[" * 100_000, set(), ""),
        (None, set(), ""),
    ],
)
def test_errors_are_read_in_every_form(body, codes, message):
    found = parse_error_body(body)
    assert found.codes == codes
    assert found.message == message
    if isinstance(body, dict):
        assert parse_error_body(json.dumps(body)) == parse_error_body(json.dumps(body).encode()) == found


@given(JSON, st.integers(100, 599))
def test_no_body_is_an_error_of_ours(body, status):
    classify_error(status, parse_error_body(body))
    classify_error(status, parse_error_body({"error": body}))
    classify_error(status, parse_error_body(json.dumps(body)))


@given(st.integers(400, 599))
def test_a_silent_refusal_is_what_its_status_says(status):
    kind = classify_error(status, ErrorBody(frozenset(), ""))
    if status >= 500:
        assert kind in {Kind.SERVER, Kind.OVERLOADED}
    else:
        assert kind not in {Kind.OVERLOADED, Kind.TRUNCATED, Kind.REFUSED}


@pytest.mark.parametrize("status", [400, 402, 403, 429, 500])
@pytest.mark.parametrize("code", ["insufficient_quota", "billing_error", "contract_spend_limit_reached"])
def test_a_spending_limit_is_one_under_any_status(status, code):
    assert classify_error(status, ErrorBody(frozenset({code, "rate_limit_error"}), "")) is Kind.SPEND_LIMIT


@pytest.mark.parametrize(
    "message",
    ["Rate limit reached for tokens per min. Limit 1000, used 900", "context length of others is busy"],
)
def test_a_limit_of_rates_is_not_mended_by_a_shorter_question(message):
    assert classify_error(429, ErrorBody(frozenset(), message)) is Kind.RATE


@given(st.text(max_size=2000), st.text(min_size=1, max_size=200))
def test_what_is_said_is_short_and_one_line(text, prompt):
    shown = redact_message(text, (), request(prompt))
    assert len(shown) <= 300
    assert "\n" not in shown


@given(st.text(alphabet="abc .\n", max_size=40), st.integers(0, 1000), st.integers(24, 400))
def test_no_stretch_of_the_prompt_is_repeated(before, start, length):
    prompt = " ".join(PROMPT.split())
    shown = redact_message(f"{before}|{PROMPT[start : start + length]}| line 3", (), request())
    for at in range(max(0, len(shown) - 48)):
        assert shown[at : at + 48] not in prompt


def test_the_rest_of_a_message_is_kept():
    text = f"bad value at $.messages[0]: {PROMPT} (expected a list)"
    assert redact_message(text, (), request()) == "bad value at $.messages[0]: [prompt] (expected a list)"


def test_a_secret_is_hidden_before_anything_is_cut_off():
    key = "abcdefghijklmnop"
    shown = redact_message("x" * 290 + key, (Secret(key), None), request())
    assert "abcd" not in shown
