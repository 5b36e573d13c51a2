"""Latencies follow from the samples of a round that is steady, and from nothing else that a host says."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remote.ssh.measure import (
    BadSamplesError,
    TimingProtocol,
    check_samples,
    is_steady,
    spread_ratio,
    summarise_samples,
)

PROTOCOL = TimingProtocol(spread_ratio=0.04)


@given(st.lists(st.floats(1e-3, 1e3), min_size=10, max_size=10))
def test_a_latency_lies_among_its_samples(samples):
    found = summarise_samples(check_samples(samples, PROTOCOL, ran_s=1e6))
    assert found.lo_ms <= found.latency_ms <= found.hi_ms
    assert not found.predicted
    assert is_steady(samples, PROTOCOL) == (found.hi_ms - found.lo_ms < 0.04 * found.latency_ms)


def test_a_round_with_one_sample_far_off_is_not_steady():
    assert is_steady([1.0] * 9 + [1.03], PROTOCOL)
    assert not is_steady([1.0] * 9 + [1.05], PROTOCOL)
    assert spread_ratio([1.0] * 9 + [1.05]) == pytest.approx(0.05)


@pytest.mark.parametrize(
    ("samples", "why"),
    [
        ([1.0] * 9, "as many"),
        ([1.0] * 11, "as many"),
        ("0123456789", "positive"),
        ([1.0] * 9 + [0.0], "positive"),
        ([1.0] * 9 + [-1.0], "positive"),
        ([1.0] * 9 + [float("nan")], "positive"),
        ([1.0] * 9 + ["1.0"], "positive"),
        ([1000.0] * 10, "took"),
        (None, "as many"),
        ({"samples": 1.0}, "as many"),
    ],
    ids=range(10),
)
def test_samples_that_cannot_be_any_are_refused(samples, why):
    with pytest.raises(BadSamplesError, match=why):
        check_samples(samples, PROTOCOL, ran_s=9.9)
