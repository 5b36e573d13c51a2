"""When a failed question is asked again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_core.providers.failures import REMEDIES, Failure, FailureKind, Remedy
from agent_core.providers.retry import RetryPolicy, retry_pause

POLICY = RetryPolicy(tries=6, first_seconds=1, longest_seconds=10)
HOUR = 3600.0


def failure(kind: FailureKind = FailureKind.OVERLOADED, retry_after: float | None = None) -> Failure:
    return Failure(kind=kind, message="", retry_after_seconds=retry_after)


@pytest.mark.parametrize("kind", FailureKind)
def test_only_what_time_can_mend_is_asked_again(kind):
    again = retry_pause(failure(kind), 1, 0.5, HOUR, POLICY) is not None
    assert again is (REMEDIES[kind] is Remedy.BACK_OFF)


def test_pauses_double_up_to_the_longest():
    assert [retry_pause(failure(), n, 0.0, HOUR, POLICY) for n in range(1, 6)] == [0.5, 1, 2, 4, 5]


def test_the_last_try_is_the_last():
    assert retry_pause(failure(), 5, 0.0, HOUR, POLICY) is not None
    assert retry_pause(failure(), 6, 0.0, HOUR, POLICY) is None


def test_a_huge_count_of_tries_is_no_overflow():
    assert retry_pause(failure(), 10**6, 0.0, HOUR, RetryPolicy(tries=10**7)) == 60


@given(draw=st.floats(0, 1, exclude_max=True), attempt=st.integers(1, 5))
def test_a_draw_spreads_a_pause_over_the_upper_half_of_its_window(draw, attempt):
    window = min(10.0, 2.0 ** (attempt - 1))
    seconds = retry_pause(failure(), attempt, draw, HOUR, POLICY)
    assert seconds is not None
    assert window / 2 <= seconds <= window


@given(
    asked=st.floats(0, 1e9),
    left=st.floats(0, 1e5),
    draw=st.floats(0, 1, exclude_max=True),
    attempt=st.integers(1, 6),
)
def test_an_endpoint_is_not_asked_before_its_time_nor_waited_for_beyond_the_deadline(
    asked, left, draw, attempt
):
    seconds = retry_pause(failure(FailureKind.RATE, asked), attempt, draw, left, POLICY)
    assert seconds is None or asked <= seconds < left


def test_an_endpoint_that_asks_for_hours_is_given_up_where_minutes_are_left():
    assert retry_pause(failure(FailureKind.RATE, 2 * HOUR), 1, 0.5, 600, POLICY) is None
    assert retry_pause(failure(FailureKind.RATE, 2 * HOUR), 1, 0.0, 3 * HOUR, POLICY) == 2 * HOUR
