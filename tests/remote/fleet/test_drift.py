"""Which hosts' times compare: the arithmetic of the calibration kernel."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remote.fleet.drift import describe_disagreement, deviates, drift_ratios, reference_ms

ALL = frozenset("abcdef")


def test_of_three_or_more_the_median_is_the_measure():
    assert reference_ms({"a": [1.08], "b": [1.1], "c": [9.0]}) == 1.1
    found = drift_ratios({"a": [1.08], "b": [1.1], "c": [2.2]}, good=ALL)
    assert found["c"] == pytest.approx(2.0)


@pytest.mark.parametrize(
    "readings",
    [
        {"a": [1.0, 1.5], "b": [1.2, 1.21]},
        {"a": [1.0], "b": [1.06]},
        {"a": [1.0], "b": [1.0], "c": [2.0], "d": [2.0]},
        {"a": [1.0], "b": [2.0], "c": [3.0]},
    ],
)
def test_without_a_majority_there_is_no_measure(readings):
    assert reference_ms(readings) is None
    assert drift_ratios(readings, good=ALL) == {}


def test_two_that_agree_are_the_measure():
    assert drift_ratios({"a": [1.0, 1.5], "b": [1.2, 1.49]}, good=ALL) == {
        "a": pytest.approx(1.5 / 1.49),
        "b": 1.0,
    }


def test_what_is_told_of_a_disagreement_has_each_ones_own_history():
    said = describe_disagreement({"a": [1.0, 1.5], "b": [1.2, 1.2]}, ALL & {"a", "b"}, "a")
    assert "it takes 1.5 ms, 1.50 times its first reading" in said
    assert "b 1.2 ms, 1.00 times its first reading" in said


def test_one_alone_is_compared_with_itself():
    assert drift_ratios({"a": [1.0, 1.01, 1.3]}, good=ALL) == {"a": pytest.approx(1.3)}


def test_hosts_in_quarantine_are_measured_and_measure_nothing():
    found = drift_ratios({"a": [1.0], "b": [1.0], "c": [3.0], "d": [3.0], "e": [3.0]}, good=frozenset("ab"))
    assert found == {"a": 1.0, "b": 1.0, "c": 3.0, "d": 3.0, "e": 3.0}


def test_without_readings_there_is_nothing_to_compare():
    assert drift_ratios({"a": [], "b": []}, good=ALL) == {}
    with pytest.raises(ValueError, match="no host has timed"):
        reference_ms({"a": []})


@given(
    scale=st.floats(0.01, 100),
    noise=st.lists(st.floats(0.99, 1.01), min_size=3, max_size=9),
    slow=st.floats(1.2, 5),
)
def test_among_steady_hosts_the_slow_one_alone_deviates(scale, noise, slow):
    readings = {f"h{number}": [scale * factor] for number, factor in enumerate(noise)}
    readings["slow"] = [scale * slow]
    found = drift_ratios(readings, good=frozenset(readings))
    assert [host for host, ratio in found.items() if deviates(ratio)] == ["slow"]
