"""The breaker of an endpoint."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stability.breaker import (
    CLOSED_BREAKER,
    BreakerPolicy,
    CircuitBreaker,
    admit_request,
    record_answer,
    record_failure,
    record_withdrawal,
)

POLICY = BreakerPolicy(failures=3, pause_seconds=10, longest_seconds=60, probe_seconds=5)


def broken(times: int, now: float = 100.0) -> CircuitBreaker:
    state = CLOSED_BREAKER
    for _ in range(times):
        state = record_failure(state, now, POLICY)
    return state


def probing(state: CircuitBreaker) -> CircuitBreaker:
    assert state.until is not None
    state, wait = admit_request(state, state.until, POLICY)
    assert wait == 0
    return state


def test_a_closed_breaker_lets_everybody_through():
    assert admit_request(CLOSED_BREAKER, 0, POLICY) == (CLOSED_BREAKER, 0)
    assert admit_request(broken(2), 0, POLICY)[1] == 0


def test_failures_in_a_row_open_it_for_a_while():
    state = broken(3)
    assert state.until == 110
    assert admit_request(state, 104, POLICY) == (state, 6)


def test_an_answer_in_between_begins_the_row_anew():
    state = record_answer(broken(2))
    assert record_failure(record_failure(state, 0, POLICY), 0, POLICY).until is None


def test_one_question_probes_when_the_pause_is_over_and_the_others_wait():
    state = probing(broken(3))
    assert admit_request(state, 111, POLICY) == (state, 4)


def test_a_probe_that_is_answered_closes_it():
    assert record_answer(probing(broken(3))) == CLOSED_BREAKER


def test_probes_that_fail_double_the_pause_up_to_the_longest():
    state, pauses = broken(3), []
    for _ in range(4):
        state = probing(state)
        assert state.until is not None
        now = state.until - POLICY.probe_seconds
        state = record_failure(state, now, POLICY)
        assert state.until is not None
        pauses.append(state.until - now)
    assert pauses == [20, 40, 60, 60]


def test_a_probe_that_told_nothing_leaves_the_place_to_another():
    state = record_withdrawal(probing(broken(3)))
    assert admit_request(state, 110, POLICY)[1] == 0
    assert record_withdrawal(CLOSED_BREAKER) == CLOSED_BREAKER
    assert record_withdrawal(broken(3)) == broken(3)


def test_a_probe_that_is_never_heard_of_again_keeps_nobody_out():
    state = probing(broken(3))
    assert admit_request(state, 114.9, POLICY)[1] > 0
    assert admit_request(state, 115, POLICY)[1] == 0


def test_questions_that_were_under_way_when_it_opened_say_nothing_new():
    state = broken(3)
    assert record_failure(state, 105, POLICY) == state


def test_an_endpoint_that_asks_for_longer_is_given_longer_but_not_hours():
    twice = broken(2)
    assert record_failure(twice, 0, POLICY, retry_after_seconds=30).until == 30
    assert record_failure(twice, 0, POLICY, retry_after_seconds=7200).until == 60
    assert record_failure(twice, 0, POLICY, retry_after_seconds=1).until == 10


def test_it_reads_back_as_it_was_written():
    state = probing(broken(3))
    assert CircuitBreaker.model_validate_json(state.model_dump_json()) == state


@given(st.lists(st.tuples(st.sampled_from(["ask", "answer", "fail", "withdraw"]), st.floats(0, 100))))
def test_whatever_happens_it_opens_again_sooner_or_later(steps):
    state, now, inside = CLOSED_BREAKER, 0.0, 0
    for step, seconds in steps:
        now += seconds
        if step == "ask":
            state, wait = admit_request(state, now, POLICY)
            assert 0 <= wait <= max(POLICY.longest_seconds, POLICY.probe_seconds)
            inside += wait == 0
        elif inside:
            inside -= 1
            state = {
                "answer": lambda s=state: record_answer(s),
                "fail": lambda s=state, t=now: record_failure(s, t, POLICY),
                "withdraw": lambda s=state: record_withdrawal(s),
            }[step]()
    for _ in range(inside):
        state = record_withdrawal(state)
    state, wait = admit_request(state, now, POLICY)
    assert wait == 0 or admit_request(state, now + wait, POLICY)[1] == 0
