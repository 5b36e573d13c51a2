"""Turns and places: nobody is crowded out, nobody saves up, and the order is first come, first served."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from daemon.fair_share import FairShare, RunSlots


def serve_turns(share: FairShare, seconds: dict[str, float], turns: int) -> Counter[str]:
    """Serve one slot for some turns; return the time that each run had."""
    had: Counter[str] = Counter()
    for _ in range(turns):
        run, charge = share.charge_next(seconds)
        share.settle_charge(run, charge, seconds[run])
        had[run] += seconds[run]
    return had


def test_equal_runs_alternate():
    share = FairShare()
    order = []
    for _ in range(6):
        run, charge = share.charge_next("abc")
        share.settle_charge(run, charge, 2.0)
        order.append(run)
    assert sorted(order[:3]) == sorted(order[3:]) == ["a", "b", "c"]


@given(st.lists(st.floats(0.01, 50), min_size=2, max_size=5))
def test_time_is_shared_however_long_effects_last(lengths):
    seconds = {str(number): length for number, length in enumerate(lengths)}
    had = serve_turns(FairShare(), seconds, 4000)
    longest = max(lengths)
    assert max(had.values()) - min(had.values()) <= 8 * longest


def test_several_slots_go_to_several_runs_before_anything_has_ended():
    share = FairShare()
    assert Counter(share.charge_next("ab")[0] for _ in range(6)) == {"a": 3, "b": 3}


def test_who_comes_later_neither_waits_for_what_others_had_nor_catches_up():
    share = FairShare()
    serve_turns(share, {"old": 1.0}, 100)
    had = serve_turns(share, {"old": 1.0, "new": 1.0}, 20)
    assert abs(had["old"] - had["new"]) <= 2


def test_who_was_away_has_saved_nothing_up():
    share = FairShare()
    serve_turns(share, {"a": 1.0, "b": 1.0}, 10)
    serve_turns(share, {"a": 1.0}, 100)
    had = serve_turns(share, {"a": 1.0, "b": 1.0}, 20)
    assert abs(had["a"] - had["b"]) <= 2


def test_what_did_not_start_is_not_charged():
    share = FairShare()
    for _ in range(50):
        run, charge = share.charge_next("a")
        share.settle_charge(run, charge, 0.0)
    had = serve_turns(share, {"a": 1.0, "b": 1.0}, 10)
    assert had == {"a": 5.0, "b": 5.0}


def test_of_a_run_that_has_ended_nothing_is_kept():
    share = FairShare()
    run, charge = share.charge_next("a")
    share.settle_charge(run, charge, 5.0)
    share.forget("a")
    assert (share._had, share._lasting) == ({}, {})


def test_places_go_to_who_came_first():
    places = RunSlots(2)
    assert [places.take_slot(run) for run in "abcd"] == [True, True, False, False]
    assert places.take_slot("a")
    assert places.next_waiting() == ()
    places.release_slot("a")
    assert places.next_waiting() == ("c",)
    assert not places.take_slot("e")
    assert places.take_slot("c")
    places.release_slot("b")
    assert places.next_waiting() == ("d",)


def test_who_gives_up_waiting_is_not_waited_for():
    places = RunSlots(1)
    assert [places.take_slot(run) for run in "abc"] == [True, False, False]
    places.release_slot("b")
    places.release_slot("a")
    assert places.next_waiting() == ("c",)
    assert places.take_slot("c")


def test_more_places_are_dealt_when_the_limit_rises():
    places = RunSlots(1)
    assert [places.take_slot(run) for run in "abc"] == [True, False, False]
    places.limit = 3
    assert places.next_waiting() == ("b", "c")
