"""The gate of an endpoint, and waiting at it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_core.providers.completion import RateLimits
from agent_core.providers.failures import Failure, FailureKind
from agent_core.providers.limits import (
    LONGEST_CLOSED_SECONDS,
    RateGate,
    RateLimiter,
    TurnTimeout,
    apply_limits,
    enter_gate,
    leave_gate,
    narrow_gate,
    open_gate,
    seconds_until_entry,
    widen_gate,
)

NOW = 1000.0


def failure(kind: FailureKind = FailureKind.RATE, retry_after: float | None = None) -> Failure:
    return Failure(kind=kind, message="", retry_after_seconds=retry_after)


def test_so_many_may_be_inside_and_then_one_has_to_leave():
    state = open_gate(2)
    for _ in range(2):
        assert seconds_until_entry(state, NOW, 10) == 0
        state = enter_gate(state, NOW, 10)
    assert seconds_until_entry(state, NOW, 10) is None
    assert seconds_until_entry(leave_gate(state), NOW, 10) == 0


def test_a_refusal_closes_the_gate_until_the_endpoints_time():
    state = narrow_gate(open_gate(8), NOW, failure(retry_after=30))
    assert seconds_until_entry(state, NOW, 10) == 30
    assert seconds_until_entry(state, NOW + 29, 10) == 1
    assert seconds_until_entry(state, NOW + 30, 10) == 0


def test_hours_are_not_waited_at_a_gate():
    state = narrow_gate(open_gate(8), NOW, failure(retry_after=7200))
    assert seconds_until_entry(state, NOW, 10) == LONGEST_CLOSED_SECONDS


def test_a_shorter_word_does_not_open_what_a_longer_one_closed():
    state = narrow_gate(narrow_gate(open_gate(8), NOW, failure(retry_after=30)), NOW, failure(retry_after=1))
    assert seconds_until_entry(state, NOW, 10) == 30


def test_refusals_halve_the_width_and_answers_widen_it_again():
    state = open_gate(8)
    widths = []
    for _ in range(5):
        state = narrow_gate(state, NOW, failure(FailureKind.OVERLOADED))
        widths.append(state.width)
    assert widths == [4, 2, 1, 1, 1]
    for _ in range(100):
        state = widen_gate(state)
    assert state.width == 8


@pytest.mark.parametrize("kind", sorted({*FailureKind} - {FailureKind.RATE, FailureKind.OVERLOADED}))
def test_other_failures_slow_nobody(kind):
    assert narrow_gate(open_gate(8), NOW, failure(kind, retry_after=99)) == open_gate(8)


def test_a_bucket_of_requests_fills_up_evenly():
    limits = RateLimits(requests=0, requests_limit=10, requests_reset_seconds=20)
    state = apply_limits(open_gate(8), NOW, limits)
    assert seconds_until_entry(state, NOW, 1) == pytest.approx(2)
    assert seconds_until_entry(state, NOW + 2, 1) == 0
    state = enter_gate(state, NOW + 2, 1)
    assert seconds_until_entry(state, NOW + 2, 1) == pytest.approx(2)
    assert seconds_until_entry(state, NOW + 21, 1) == 0


def test_a_bucket_of_tokens_is_taken_from_by_size():
    limits = RateLimits(tokens=500, tokens_limit=1000, tokens_reset_seconds=50)
    state = apply_limits(open_gate(8), NOW, limits)
    assert seconds_until_entry(state, NOW, 500) == 0
    assert seconds_until_entry(state, NOW, 600) == pytest.approx(10)
    state = enter_gate(state, NOW, 400)
    assert seconds_until_entry(state, NOW, 100) == 0
    assert seconds_until_entry(state, NOW, 200) > 0


def test_a_question_larger_than_the_bucket_goes_when_it_is_full():
    limits = RateLimits(tokens=0, tokens_limit=1000, tokens_reset_seconds=50)
    state = apply_limits(open_gate(8), NOW, limits)
    assert seconds_until_entry(state, NOW, 10**6) == pytest.approx(50)
    assert seconds_until_entry(state, NOW + 50, 10**6) == 0


def test_without_a_limit_what_is_left_decides_until_the_reset():
    state = apply_limits(open_gate(8), NOW, RateLimits(requests=0, requests_reset_seconds=5))
    assert seconds_until_entry(state, NOW, 1) == pytest.approx(5)
    assert seconds_until_entry(state, NOW + 5, 1) == 0


def test_half_a_word_about_limits_is_none():
    state = apply_limits(open_gate(8), NOW, RateLimits(requests=0, tokens_reset_seconds=5))
    assert state == open_gate(8)


def test_what_was_said_of_the_one_does_not_forget_the_other():
    first = apply_limits(
        open_gate(8), NOW, RateLimits(requests=3, requests_limit=9, requests_reset_seconds=60)
    )
    both = apply_limits(first, NOW, RateLimits(tokens=3, tokens_limit=9, tokens_reset_seconds=60))
    assert both.requests == first.requests
    assert both.tokens is not None


COUNT = st.none() | st.integers(0, 10_000)
SPAN = st.none() | st.floats(0, 10_000)


@given(
    said=st.builds(
        RateLimits,
        requests=COUNT,
        requests_limit=COUNT,
        requests_reset_seconds=SPAN,
        tokens=COUNT,
        tokens_limit=COUNT,
        tokens_reset_seconds=SPAN,
    ),
    sizes=st.lists(st.integers(1, 20_000), max_size=5),
    later=st.floats(0, 10_000),
)
def test_whoever_waits_as_told_may_enter(said, sizes, later):
    state, now = apply_limits(open_gate(100), NOW, said), NOW + later
    for size in sizes:
        seconds = seconds_until_entry(state, now, size)
        assert seconds is not None
        assert seconds >= 0
        now += seconds + 1e-6 * max(1.0, seconds)
        assert seconds_until_entry(state, now, size) == pytest.approx(0, abs=1e-3)
        state = enter_gate(state, now, size)


@given(st.lists(st.sampled_from(["enter", "leave", "answer", "refuse"])))
def test_never_more_inside_than_may_be(steps):
    state: RateGate = open_gate(3)
    moves: dict[str, Callable[[RateGate], RateGate]] = {
        "enter": lambda s: enter_gate(s, NOW, 1) if seconds_until_entry(s, NOW, 1) == 0 else s,
        "leave": leave_gate,
        "answer": widen_gate,
        "refuse": lambda s: narrow_gate(s, NOW, failure()),
    }
    for step in steps:
        state = moves[step](state)
        assert 0 <= state.inside <= 3
        assert 1 <= state.width <= 3


class Clock:
    """Time that goes only when it is told to."""

    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> float:
        return self.now


async def visit(
    limiter: RateLimiter, name: str, log: list[str], leave: asyncio.Event, tokens: int = 1
) -> None:
    async with limiter.take_turn(tokens, wait_seconds=60):
        log.append(name)
        await leave.wait()


async def wait_for_tasks() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_turns_come_in_the_order_of_asking():
    limiter, log = RateLimiter(1), []
    events = [asyncio.Event() for _ in range(4)]
    visits = [asyncio.create_task(visit(limiter, str(i), log, e)) for i, e in enumerate(events)]
    for i, event in enumerate(events):
        await wait_for_tasks()
        assert log == [str(j) for j in range(i + 1)]
        event.set()
    await asyncio.gather(*visits)
    assert limiter.gate.inside == 0


async def test_a_wait_that_is_known_to_be_too_long_is_refused_at_once():
    limiter = RateLimiter(1, clock=Clock())
    limiter.record_failure(failure(retry_after=120))
    with pytest.raises(TurnTimeout, match="120 s") as caught:
        async with limiter.take_turn(1, wait_seconds=60):
            pytest.fail("the gate is closed")
    assert caught.value.seconds == 120


async def test_a_wait_for_somebody_who_does_not_leave_ends_too():
    limiter, log, stay = RateLimiter(1), [], asyncio.Event()
    first = asyncio.create_task(visit(limiter, "first", log, stay))
    await wait_for_tasks()
    with pytest.raises(TurnTimeout):
        async with limiter.take_turn(1, wait_seconds=0.01):
            pytest.fail("somebody is inside")
    stay.set()
    await first
    async with limiter.take_turn(1, wait_seconds=1):
        log.append("second")
    assert log == ["first", "second"]


async def test_news_wake_who_waits():
    clock = Clock()
    limiter, log, leave = RateLimiter(1, clock=clock), [], asyncio.Event()
    leave.set()
    limiter.observe(RateLimits(requests=0, requests_limit=1, requests_reset_seconds=50))
    waiting = asyncio.create_task(visit(limiter, "in", log, leave))
    await wait_for_tasks()
    assert log == []
    clock.now += 50
    limiter.record_answer()
    await waiting
    assert log == ["in"]


async def test_a_turn_is_given_back_when_its_question_fails_or_is_cancelled():
    limiter = RateLimiter(1)
    with pytest.raises(KeyError):
        async with limiter.take_turn(1, wait_seconds=1):
            raise KeyError
    inside = asyncio.create_task(visit(limiter, "a", [], asyncio.Event()))
    waits = asyncio.create_task(visit(limiter, "b", [], asyncio.Event()))
    await wait_for_tasks()
    for task in (waits, inside):
        task.cancel()
    await asyncio.gather(inside, waits, return_exceptions=True)
    async with limiter.take_turn(1, wait_seconds=1):
        assert limiter.gate.inside == 1
    assert limiter.gate.inside == 0


async def test_a_timeout_of_the_question_itself_is_not_taken_for_a_missing_turn():
    limiter = RateLimiter(1)
    with pytest.raises(TimeoutError):
        async with limiter.take_turn(1, wait_seconds=1):
            raise TimeoutError
