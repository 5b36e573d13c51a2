"""The divergence guard: how long an explorer lineage may be slower than its origin, and when it is reverted.

Every lineage has a **checkpoint**: its fastest kernel that clearly beat the previous checkpoint (for a new
lineage, the checkpoint of the lineage it left). An explorer lineage is reverted to its checkpoint when its
newest kernel is slower than `slack_ratio` times the checkpoint, or when `depth` rounds in a row brought no
gain; it then starts again from there. Elite lineages are never reverted: their kernels are in the beam
because they are fast.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from state.events import KernelReverted
from state.model import Candidate, Checkpoint


class DivergenceReason(StrEnum):
    """Why a lineage is reverted to its checkpoint."""

    SLOWER = "slower"
    DEPTH = "depth"


@dataclass(frozen=True, slots=True)
class GuardDecision:
    """The guard's decision on one lineage after a round: its checkpoint, and the revert if there is one."""

    checkpoint: Checkpoint
    revert: KernelReverted | None = None


def gain_survives(candidate: Candidate, other: Candidate, *, confidence_percent: float) -> bool:
    """Return whether a predicted gain is sure enough (`Benchmark.wins_percent`).

    A draw changes the model's uncertain constants, in the same way for both kernels. A gain that depends on
    the exact values of those constants is the model's error, not the kernel's merit; neither is one so small
    that measured pairs were often in the other order. Without common draws, nothing speaks against a gain.
    """
    share = candidate.benchmark.wins_percent(other.benchmark)
    return share is None or share >= confidence_percent


def is_doubtful_gain(candidate: Candidate, other: Candidate, *, confidence_percent: float) -> bool:
    """Return whether `candidate` is predicted faster but the gain does not survive; it counts as no gain."""
    faster = candidate.latency_ms < other.latency_ms
    return faster and not gain_survives(candidate, other, confidence_percent=confidence_percent)


def is_clearly_faster(candidate: Candidate, other: Candidate, *, confidence_percent: float) -> bool:
    """Return whether `candidate` is faster than `other` beyond noise and the model's uncertainty.

    Their latencies must differ by more than both `Benchmark.noise_ratio`: half the width of a measured
    interval, or the model's resolution of a predicted one. A predicted gain must also pass `gain_survives`.
    """
    slowest = candidate.latency_ms * (1 + candidate.benchmark.noise_ratio)
    clear = slowest < other.latency_ms * (1 - other.benchmark.noise_ratio)
    return clear and gain_survives(candidate, other, confidence_percent=confidence_percent)


def are_indistinguishable(candidate: Candidate, other: Candidate, *, confidence_percent: float) -> bool:
    """Return whether noise or uncertainty hides any difference between the two latencies."""
    return not any(
        is_clearly_faster(one, two, confidence_percent=confidence_percent)
        for one, two in ((candidate, other), (other, candidate))
    )


def is_within_slack(mark: Checkpoint, candidate: Candidate, *, slack_ratio: float) -> bool:
    """Return whether `candidate` is at most `slack_ratio` times as slow as the checkpoint."""
    return candidate.latency_ms <= slack_ratio * mark.candidate.latency_ms


def check_divergence(
    mark: Checkpoint, newest: Candidate, *, slack_ratio: float, depth: int, confidence_percent: float
) -> GuardDecision:
    """Decide, once a round, on an explorer lineage whose newest kernel is `newest`."""
    if is_clearly_faster(newest, mark.candidate, confidence_percent=confidence_percent):
        return GuardDecision(Checkpoint(lineage=mark.lineage, candidate=newest))
    deeper = mark.model_copy(update={"depth": mark.depth + 1})
    again = mark.model_copy(update={"depth": 0})
    if not is_within_slack(mark, newest, slack_ratio=slack_ratio):
        return GuardDecision(again, _make_revert(mark, newest, DivergenceReason.SLOWER))
    if deeper.depth >= depth:
        return GuardDecision(again, _make_revert(mark, newest, DivergenceReason.DEPTH))
    return GuardDecision(deeper)


def _make_revert(mark: Checkpoint, newest: Candidate, why: DivergenceReason) -> KernelReverted:
    return KernelReverted(
        lineage=mark.lineage, dropped=newest.id, restored=mark.candidate.id, reason=why.value
    )
