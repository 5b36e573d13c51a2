"""The divergence guard: noise, slack and depth."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stability import divergence_guard
from state.model import RESOLUTION_RATIO, Checkpoint
from tests.support.path_kernels import make_candidate

latencies = st.floats(min_value=1e-3, max_value=1e3)
SURE = {"confidence_percent": 90.0}
noises = st.one_of(st.none(), st.floats(min_value=0, max_value=0.3))


def mark(latency_ms: float, depth: int = 0) -> Checkpoint:
    return Checkpoint(lineage="L", candidate=make_candidate("old", latency_ms), depth=depth)


@pytest.mark.parametrize(("latency_ms", "wins"), [(0.994, True), (0.996, False), (0.9999, False)])
def test_predicted_gains_below_what_the_model_resolves_are_none(latency_ms, wins):
    new, old = make_candidate("a", latency_ms), make_candidate("b", 1.0)
    assert divergence_guard.is_clearly_faster(new, old, **SURE) is wins
    assert divergence_guard.are_indistinguishable(new, old, **SURE) is not wins


@pytest.mark.parametrize(
    ("latency_ms", "draws_ms", "doubt"),
    [(0.9, (0.9, 1.1), True), (0.9, (0.9, 0.9), False), (1.1, (0.9, 1.1), False), (0.9, (), False)],
)
def test_doubt_is_about_predicted_gains(latency_ms, draws_ms, doubt):
    new, old = (
        make_candidate("a", latency_ms, draws_ms=draws_ms),
        make_candidate("b", 1.0, draws_ms=(1.0, 1.0)),
    )
    assert divergence_guard.is_doubtful_gain(new, old, **SURE) is doubt


@pytest.mark.parametrize(
    ("draws_ms", "wins"),
    [
        ((0.9,) * 10, True),
        ((0.9,) * 9 + (1.1,), True),  # nine draws of ten
        ((0.9,) * 8 + (1.1,) * 2, False),
        ((0.9,) * 5 + (1.0,) * 5, True),  # draws that do not tell them apart say nothing
        ((0.9,) * 3 + (1.0,) * 6 + (1.1,), False),  # three of four
        ((0.9951,) * 10, False),  # in none are they told apart
        ((0.9, 1.1), False),  # compared on the draws that both have
        ((0.9,), True),
        ((), True),  # nothing speaks against it
    ],
)
def test_a_predicted_gain_must_hold_in_the_draws(draws_ms, wins):
    new, old = make_candidate("a", 0.9, draws_ms=draws_ms), make_candidate("b", 1.0, draws_ms=(1.0,) * 10)
    assert divergence_guard.is_clearly_faster(new, old, **SURE) is wins
    assert divergence_guard.are_indistinguishable(new, old, **SURE) is not wins
    assert not divergence_guard.is_clearly_faster(old, new, **SURE)


def test_without_confidence_any_predicted_gain_counts():
    new, old = make_candidate("a", 0.9, draws_ms=(1.1,)), make_candidate("b", 1.0, draws_ms=(1.0,))
    assert divergence_guard.is_clearly_faster(new, old, confidence_percent=0.0)


@pytest.mark.parametrize(
    ("latency_ms", "wins"),
    [(0.95, False), (0.91, False), (0.90, True), (0.5, True), (1.05, False)],
)
def test_a_measured_gain_must_clear_both_intervals(latency_ms, wins):
    new, old = make_candidate("a", latency_ms, noise=0.05), make_candidate("b", 1.0, noise=0.05)
    assert divergence_guard.is_clearly_faster(new, old, **SURE) is wins


@given(latencies, latencies, noises, noises)
def test_two_kernels_are_alike_or_one_of_them_beats_the_other(one, other, noise, other_noise):
    a, b = make_candidate("a", one, noise=noise), make_candidate("b", other, noise=other_noise)
    assert [
        divergence_guard.is_clearly_faster(a, b, **SURE),
        divergence_guard.is_clearly_faster(b, a, **SURE),
        divergence_guard.are_indistinguishable(a, b, **SURE),
    ].count(True) == 1


@given(latencies, noises)
def test_nothing_beats_itself(latency_ms, noise):
    same = make_candidate("a", latency_ms, noise=noise)
    assert not divergence_guard.is_clearly_faster(same, same, **SURE)


def test_a_gain_moves_the_checkpoint_and_forgets_the_depth():
    newest = make_candidate("new", 0.8)
    ruling = divergence_guard.check_divergence(mark(1.0, depth=2), newest, slack_ratio=1.5, depth=3, **SURE)
    assert ruling == divergence_guard.GuardDecision(Checkpoint(lineage="L", candidate=newest, depth=0))


@pytest.mark.parametrize(
    ("latency_ms", "depth", "reason"),
    [
        (1.5, 0, None),  # exactly the slack
        (1.501, 0, "slower"),
        (1.2, 1, None),
        (1.2, 2, "depth"),  # the third round without gain
        (1.6, 2, "slower"),  # both hold: the kernel itself is named first
        (1.0, 0, None),  # as fast as the checkpoint is no gain
    ],
)
def test_a_lineage_is_reverted_when_too_slow_or_too_long_without_gain(latency_ms, depth, reason):
    ruling = divergence_guard.check_divergence(
        mark(1.0, depth), make_candidate("new", latency_ms), slack_ratio=1.5, depth=3, **SURE
    )
    assert ruling.checkpoint == mark(1.0, 0 if reason else depth + 1)  # what was reverted begins anew
    if reason is None:
        assert ruling.revert is None
    else:
        assert ruling.revert is not None
        assert (ruling.revert.reason, ruling.revert.dropped, ruling.revert.restored) == (reason, "new", "old")


HALF = RESOLUTION_RATIO / 2


@given(st.lists(latencies, min_size=1, max_size=12), st.integers(min_value=1, max_value=4))
def test_no_lineage_outlives_its_depth_without_a_gain(walk, depth):
    current = mark(1.0)
    idle = 0
    for latency_ms in walk:
        ruling = divergence_guard.check_divergence(
            current, make_candidate("n", latency_ms), slack_ratio=2.0, depth=depth, **SURE
        )
        # Predicted: what the model does not resolve is no gain.
        gained = latency_ms * (1 + HALF) < current.candidate.latency_ms * (1 - HALF)
        idle = 0 if gained else idle + 1
        expected = not gained and (idle >= depth or latency_ms > 2.0 * current.candidate.latency_ms)
        assert (ruling.revert is not None) is expected
        if ruling.revert:
            return
        current = ruling.checkpoint
        assert current.depth == idle
