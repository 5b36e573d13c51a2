"""Prices: whose they are, what an answer costs, and the most that it can."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_core.providers.completion import Tokens
from agent_core.providers.prices import Price, TokenRates, parse_price_override, price_of
from agent_core.providers.registry import EndpointSettings, UnknownEndpoint

AT = datetime(2026, 11, 22, tzinfo=UTC)
FLAT = Price(rates=(TokenRates(input=3, cached=0.3, written=3.75, output=15),), source="test")
TIERED = Price(
    rates=(
        TokenRates(input=3, cached=0.3, written=3.75, output=15),
        TokenRates(above=200_000, input=6, cached=0.6, written=7.5, output=22.5),
    ),
    source="test",
)


def test_a_list_price_has_all_four_rates_and_its_source():
    price = price_of("claude-opus-4-6", "anthropic", at=AT)
    assert price is not None
    assert price.rates == (TokenRates(input=5, cached=0.5, written=6.25, output=25),)
    assert price.source.startswith("genai-prices ")
    assert price.source.endswith(": anthropic/claude-opus-4-6")


def test_a_list_price_by_size_of_the_question():
    price = price_of("claude-sonnet-4-5", "anthropic", at=AT)
    assert price is not None
    assert price.rates == TIERED.rates


def test_what_has_no_price_of_its_own_costs_what_plain_input_does():
    price = price_of("gpt-5-pro", "openai", at=AT)
    assert price is not None
    (rates,) = price.rates
    assert rates.cached == rates.written == rates.input > 0


@pytest.mark.parametrize(
    ("model", "endpoint", "url"),
    [
        ("nobody-knows-it", "openai", None),
        ("claude-opus-4-6", "openai", None),
        ("gpt-5", "local", None),
        ("gpt-5", "openai", "http://127.0.0.1:1/v1"),
        ("gpt-5", "openai", "https://gateway.example.com/v1"),
        ("text-embedding-3-small", "openai", None),
    ],
)
def test_an_unknown_price_is_none(model, endpoint, url):
    assert price_of(model, endpoint, settings=EndpointSettings(base_url=url), at=AT) is None


def test_the_address_decides_whose_price_it_is():
    url = "https://api.fireworks.ai/inference/v1"
    price = price_of(
        "accounts/fireworks/models/gpt-oss-120b", "openai", settings=EndpointSettings(base_url=url), at=AT
    )
    assert price is not None
    assert ": fireworks/" in price.source


def test_the_users_price_comes_first_also_where_none_is_known():
    overrides = dict(map(parse_price_override, ["openai/gpt-5=1/0.5/2", "local/Qwen/Qwen3-8B=0/0/0"]))
    price = price_of("gpt-5", "openai", overrides=overrides)
    assert price is not None
    assert price.rates == (TokenRates(input=1, cached=0.5, written=1.25, output=2),)
    own = price_of("Qwen/Qwen3-8B", "local", overrides=overrides)
    assert own is not None
    assert own.cost(Tokens(input=10, output=10)) == 0
    assert price_of("other", "local", overrides=overrides) is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "gpt-5=1/2/3",
        "openai/gpt-5",
        "openai/gpt-5=1/2",
        "openai/m=1/2/x",
        "openai/m=-1/2/3",
        "o/m=nan/1/1",
    ],
)
def test_what_is_no_price_is_refused_with_an_example(text):
    with pytest.raises(ValueError, match=r"is no price: ENDPOINT/MODEL=INPUT/CACHED/OUTPUT"):
        parse_price_override(text)


def test_an_unknown_endpoint_is_an_error_not_an_unknown_price():
    with pytest.raises(UnknownEndpoint):
        price_of("gpt-5", "opnai")


def test_every_token_is_paid_once():
    tokens = Tokens(input=1_000_000, cached=600_000, written=300_000, output=100_000)
    assert FLAT.cost(tokens) == pytest.approx(0.1 * 3 + 0.6 * 0.3 + 0.3 * 3.75 + 0.1 * 15)


def test_the_whole_question_is_paid_by_its_size():
    assert TIERED.cost(Tokens(input=200_000)) == pytest.approx(0.6)
    assert TIERED.cost(Tokens(input=200_001)) == pytest.approx(200_001 * 6 / 1e6)


@given(
    bound=st.integers(0, 400_000),
    longest=st.integers(1, 100_000),
    shares=st.tuples(*[st.floats(0, 1)] * 4),
    price=st.sampled_from([FLAT, TIERED]),
)
def test_nothing_costs_more_than_its_ceiling(bound, longest, shares, price):
    whole = int(bound * shares[0])
    cached = int(whole * shares[1])
    written = int((whole - cached) * shares[2])
    tokens = Tokens(input=whole, cached=cached, written=written, output=int(longest * shares[3]))
    assert price.cost(tokens) <= price.max_cost(bound, longest) + 1e-12


def test_a_ceiling_is_reached():
    assert FLAT.max_cost(1000, 100) == pytest.approx(FLAT.cost(Tokens(input=1000, written=1000, output=100)))


def test_a_price_reads_back_from_a_log():
    assert Price.model_validate_json(TIERED.model_dump_json()) == TIERED
