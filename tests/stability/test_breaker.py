"""The breaker of an endpoint."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stability.breaker import CLOSED, Breaker, BreakerPolicy, admit, answered, failed, withdrawn

POLICY = BreakerPolicy(failures=3, pause_seconds=10, longest_seconds=60, probe_seconds=5)


def broken(times: int, now: float = 100.0) -> Breaker:
    state = CLOSED
    for _ in range(times):
        state = failed(state, now, POLICY)
    return state


def probing(state: Breaker) -> Breaker:
    assert state.until is not None
    state, wait = admit(state, state.until, POLICY)
    assert wait == 0
    return state


def test_a_closed_breaker_lets_everybody_through():
    assert admit(CLOSED, 0, POLICY) == (CLOSED, 0)
    assert admit(broken(2), 0, POLICY)[1] == 0


def test_failures_in_a_row_open_it_for_a_while():
    state = broken(3)
    assert state.until == 110
    assert admit(state, 104, POLICY) == (state, 6)


def test_an_answer_in_between_begins_the_row_anew():
    state = answered(broken(2))
    assert failed(failed(state, 0, POLICY), 0, POLICY).until is None


def test_one_question_probes_when_the_pause_is_over_and_the_others_wait():
    state = probing(broken(3))
    assert admit(state, 111, POLICY) == (state, 4)


def test_a_probe_that_is_answered_closes_it():
    assert answered(probing(broken(3))) == CLOSED


def test_probes_that_fail_double_the_pause_up_to_the_longest():
    state, pauses = broken(3), []
    for _ in range(4):
        state = probing(state)
        assert state.until is not None
        now = state.until - POLICY.probe_seconds
        state = failed(state, now, POLICY)
        assert state.until is not None
        pauses.append(state.until - now)
    assert pauses == [20, 40, 60, 60]


def test_a_probe_that_told_nothing_leaves_the_place_to_another():
    state = withdrawn(probing(broken(3)))
    assert admit(state, 110, POLICY)[1] == 0
    assert withdrawn(CLOSED) == CLOSED
    assert withdrawn(broken(3)) == broken(3)


def test_a_probe_that_is_never_heard_of_again_keeps_nobody_out():
    state = probing(broken(3))
    assert admit(state, 114.9, POLICY)[1] > 0
    assert admit(state, 115, POLICY)[1] == 0


def test_questions_that_were_under_way_when_it_opened_say_nothing_new():
    state = broken(3)
    assert failed(state, 105, POLICY) == state


def test_an_endpoint_that_asks_for_longer_is_given_longer_but_not_hours():
    twice = broken(2)
    assert failed(twice, 0, POLICY, retry_after_seconds=30).until == 30
    assert failed(twice, 0, POLICY, retry_after_seconds=7200).until == 60
    assert failed(twice, 0, POLICY, retry_after_seconds=1).until == 10


def test_it_reads_back_as_it_was_written():
    state = probing(broken(3))
    assert Breaker.model_validate_json(state.model_dump_json()) == state


@given(st.lists(st.tuples(st.sampled_from(["ask", "answer", "fail", "withdraw"]), st.floats(0, 100))))
def test_whatever_happens_it_opens_again_sooner_or_later(steps):
    state, now, inside = CLOSED, 0.0, 0
    for step, seconds in steps:
        now += seconds
        if step == "ask":
            state, wait = admit(state, now, POLICY)
            assert 0 <= wait <= max(POLICY.longest_seconds, POLICY.probe_seconds)
            inside += wait == 0
        elif inside:
            inside -= 1
            state = {
                "answer": lambda s=state: answered(s),
                "fail": lambda s=state, t=now: failed(s, t, POLICY),
                "withdraw": lambda s=state: withdrawn(s),
            }[step]()
    for _ in range(inside):
        state = withdrawn(state)
    state, wait = admit(state, now, POLICY)
    assert wait == 0 or admit(state, now + wait, POLICY)[1] == 0
