"""Reading what headers say."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_core.providers.completion import RateLimits
from agent_core.providers.headers import rate_limits, request_id, retry_after_seconds

NOW = datetime(2026, 11, 22, 12, 0, 0, tzinfo=UTC)


def test_anthropics_limits():
    headers = {
        "anthropic-ratelimit-requests-limit": "50",
        "anthropic-ratelimit-requests-remaining": "49",
        "anthropic-ratelimit-requests-reset": "2026-11-22T12:00:02Z",
        "anthropic-ratelimit-tokens-limit": "80000",
        "anthropic-ratelimit-tokens-remaining": "79000",
        "anthropic-ratelimit-tokens-reset": "2026-11-22T12:01:00Z",
        "anthropic-ratelimit-input-tokens-remaining": "1",
    }
    assert rate_limits(headers, NOW) == RateLimits(
        requests=49,
        requests_limit=50,
        requests_reset_seconds=2,
        tokens=79000,
        tokens_limit=80000,
        tokens_reset_seconds=60,
    )


def test_a_limit_on_input_alone_is_taken_where_it_is_the_only_one():
    limits = rate_limits({"anthropic-ratelimit-input-tokens-remaining": "7"}, NOW)
    assert limits == RateLimits(tokens=7)


def test_openais_limits():
    headers = {
        "x-ratelimit-limit-requests": "60",
        "x-ratelimit-remaining-requests": "59",
        "x-ratelimit-reset-requests": "1s",
        "x-ratelimit-limit-tokens": "150000",
        "x-ratelimit-remaining-tokens": "149984",
        "x-ratelimit-reset-tokens": "6m0s",
    }
    assert rate_limits(headers, NOW) == RateLimits(
        requests=59,
        requests_limit=60,
        requests_reset_seconds=1,
        tokens=149984,
        tokens_limit=150000,
        tokens_reset_seconds=360,
    )


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("120ms", 0.12),
        ("1m30.5s", 90.5),
        ("2h3m", 7380),
        ("1d", 86400),
        ("17", 17),
        ("2026-11-22T12:00:05+00:00", 5),
        ("2026-11-22T12:00:05", 5),
        ("2020-01-01T00:00:00Z", 0),
        ("-3", 0),
        ("later", None),
        ("inf", None),
    ],
)
def test_when_a_limit_is_reset(text, seconds):
    headers = {"x-ratelimit-remaining-requests": "1", "x-ratelimit-reset-requests": text}
    limits = rate_limits(headers, NOW)
    assert limits is not None
    assert limits.requests_reset_seconds == pytest.approx(seconds)


def test_headers_that_say_nothing_of_limits():
    assert rate_limits({}, NOW) is None
    assert rate_limits({"x-ratelimit-remaining-requests": "many"}, NOW) is None


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "3"}, 3),
        ({"retry-after": "2.5"}, 2.5),
        ({"retry-after": "-3"}, 0),
        ({"retry-after": "86400"}, 86400),
        ({"retry-after-ms": "250", "retry-after": "9"}, 0.25),
        ({"retry-after": "Sun, 22 Nov 2026 13:00:00 GMT"}, 3600),
        ({"retry-after": "Sun, 22 Nov 2026 11:00:00 GMT"}, 0),
        # The endpoint's clock is an hour ahead of ours: what it means is ten seconds.
        ({"retry-after": "Sun, 22 Nov 2026 13:00:10 GMT", "date": "Sun, 22 Nov 2026 13:00:00 GMT"}, 10),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "never"}, None),
        ({}, None),
    ],
)
def test_when_to_come_back(headers, seconds):
    assert retry_after_seconds(headers, NOW) == seconds


def test_the_name_of_an_answer():
    assert request_id({"request-id": "req_1"}) == "req_1"
    assert request_id({"request-id": "", "x-request-id": "req_2"}) == "req_2"
    assert request_id({}) is None


@given(st.text(), st.sampled_from(["remaining", "limit", "reset"]))
def test_no_header_is_an_error(text, part):
    headers = {
        f"anthropic-ratelimit-requests-{part}": text,
        f"x-ratelimit-{part}-tokens": text,
        "retry-after": text,
        "date": text,
    }
    rate_limits(headers, NOW)
    assert (retry_after_seconds(headers, NOW) or 0) >= 0
