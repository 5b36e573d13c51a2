"""Which hosts' times compare: the arithmetic of the calibration kernel."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remote.fleet.drift import deviates, ratios, reference_ms

ALL = frozenset("abcdef")


def test_of_three_or_more_the_median_is_the_measure():
    assert reference_ms({"a": [1.0], "b": [1.1], "c": [9.0]}) == 1.1
    found = ratios({"a": [1.0], "b": [1.1], "c": [2.2]}, good=ALL)
    assert found["c"] == pytest.approx(2.0)


def test_of_two_the_one_that_moved_least_is_the_measure():
    assert ratios({"a": [1.0, 1.5], "b": [1.2, 1.21]}, good=ALL)["a"] == pytest.approx(1.5 / 1.21)
    first = ratios({"a": [1.0], "b": [1.2]}, good=ALL)
    assert (first["a"], first["b"]) == (1.0, pytest.approx(1.2))


def test_one_alone_is_compared_with_itself():
    assert ratios({"a": [1.0, 1.01, 1.3]}, good=ALL) == {"a": pytest.approx(1.3)}


def test_hosts_in_quarantine_are_measured_and_measure_nothing():
    found = ratios({"a": [1.0], "b": [1.0], "c": [3.0], "d": [3.0], "e": [3.0]}, good=frozenset("ab"))
    assert found == {"a": 1.0, "b": 1.0, "c": 3.0, "d": 3.0, "e": 3.0}


def test_without_readings_there_is_nothing_to_compare():
    assert ratios({"a": [], "b": []}, good=ALL) == {}
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
    found = ratios(readings, good=frozenset(readings))
    assert [host for host, ratio in found.items() if deviates(ratio)] == ["slow"]
