"""Windows of models, and how many tokens a text is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_core.providers.completion import CompletionRequest, PromptPart
from agent_core.providers.windows import (
    UNKNOWN_WINDOW,
    WRAPPING_TOKENS,
    ModelWindow,
    bound_request_tokens,
    bound_tokens,
    estimate_request_tokens,
    estimate_tokens,
    parse_window_override,
    window_of,
)


@pytest.mark.parametrize(
    ("model", "endpoint", "window"),
    [
        ("claude-sonnet-4-5", "anthropic", ModelWindow(context=200_000, output=64_000)),
        ("claude-opus-4-1-20250805", "anthropic", ModelWindow(context=200_000, output=32_000)),
        ("claude-haiku-5-5", "anthropic", ModelWindow(context=1_000_000, output=128_000)),
        ("claude-sonnet-5-5", "anthropic", ModelWindow(context=1_000_000, output=128_000)),
        ("gpt-6.1-sol", "openai", ModelWindow(context=1_050_000, output=128_000)),
        ("us.anthropic.claude-sonnet-5-5", "bedrock", ModelWindow(context=1_000_000, output=128_000)),
        ("claude-opus-5-5", "vertex", ModelWindow(context=1_000_000, output=128_000)),
        ("gpt-4.1", "openai", ModelWindow(context=1_000_000, output=32_768)),
        ("gpt-5-mini", "openai", ModelWindow(context=400_000, output=128_000)),
        ("o3", "openai", ModelWindow(context=200_000, output=100_000)),
        ("gpt-oss-20b", "openai", ModelWindow(context=131_072, output=32_768)),
        ("never-heard-of", "openai", UNKNOWN_WINDOW),
    ],
)
def test_known_models_have_their_window(model, endpoint, window):
    assert window_of(model, endpoint) == window


def test_a_server_of_ones_own_decides_by_itself_whatever_its_model_is_called():
    assert window_of("openai/gpt-oss-120b", "local") == UNKNOWN_WINDOW


def test_the_users_word_comes_first():
    overrides = dict([parse_window_override("local/qwen3-coder=65536/16384")])
    assert window_of("qwen3-coder", "local", overrides=overrides) == ModelWindow(context=65536, output=16384)
    assert window_of("other", "local", overrides=overrides) == UNKNOWN_WINDOW


@pytest.mark.parametrize(
    "text", ["", "local/m", "local/m=0/1", "local/m=1/0", "local/m=1", "m=1/1", "local/m=x/1"]
)
def test_what_is_no_window_is_refused_with_an_example(text):
    with pytest.raises(ValueError, match=r"is no window: ENDPOINT/MODEL=CONTEXT/OUTPUT"):
        parse_window_override(text)


@given(st.text())
def test_an_estimate_lies_below_the_bound(text):
    assert estimate_tokens(text) <= bound_tokens([text])


@given(st.text(), st.text())
def test_more_text_is_not_fewer_tokens(text, more):
    assert estimate_tokens(text) <= estimate_tokens(text + more)


def test_letters_beyond_ascii_count_whole():
    assert estimate_tokens("日本語") == 3
    assert estimate_tokens("") == 0
    assert estimate_tokens("abc日") == 3


def test_letters_that_stand_for_many_are_bounded_by_those():
    assert bound_tokens(["\ufdfa"]) - WRAPPING_TOKENS == 33  # one letter of three bytes for eighteen
    assert bound_tokens(["\ud83d"]) > WRAPPING_TOKENS


def test_a_request_is_counted_with_what_wraps_it():
    request = CompletionRequest(
        model="m",
        guide=(PromptPart(text="ab"),),
        case=(PromptPart(text="é"), PromptPart(text="")),
        max_output_tokens=1,
    )
    assert bound_request_tokens(request) == 4 + WRAPPING_TOKENS
    assert estimate_request_tokens(request) == 2 + WRAPPING_TOKENS
