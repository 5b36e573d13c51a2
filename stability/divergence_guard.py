"""The divergence guard: how long an explorer lineage may be slower than what it left, and when it goes back.

Every lineage has a **checkpoint**: the fastest of its kernels that beat the one before beyond doubt (for
a lineage that has just begun, the checkpoint of the lineage it left). An explorer lineage is reverted to
it when its newest kernel is slower than `slack_ratio` times the checkpoint, or when `depth` rounds in a
row brought no gain; from there it begins anew. Elite lineages are never reverted: their kernels are in
the beam on merit.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from state.events import KernelReverted
from state.model import Candidate, Checkpoint


class DivergenceReason(StrEnum):
    """Why a lineage goes back to its checkpoint."""

    SLOWER = "slower"
    DEPTH = "depth"


@dataclass(frozen=True, slots=True)
class GuardDecision:
    """The guard's word on one lineage after a round: its checkpoint now, and the revert if there is one."""

    checkpoint: Checkpoint
    revert: KernelReverted | None = None


def gain_survives(candidate: Candidate, other: Candidate, *, confidence_percent: float) -> bool:
    """Return whether a predicted gain holds in enough of the draws that both predictions have.

    A draw moves what the model is not sure of, the same way for both: a gain that lives on the exact values
    of those constants is the model's error, not the kernel's merit. Without common draws nothing speaks
    against a gain.
    """
    share = candidate.benchmark.wins_percent(other.benchmark)
    return share is None or share >= confidence_percent


def is_doubtful_gain(candidate: Candidate, other: Candidate, *, confidence_percent: float) -> bool:
    """Return whether `candidate` is predicted faster and the gain does not survive: it counts as no gain."""
    faster = candidate.latency_ms < other.latency_ms
    return faster and not gain_survives(candidate, other, confidence_percent=confidence_percent)


def is_clearly_faster(candidate: Candidate, other: Candidate, *, confidence_percent: float) -> bool:
    """Return whether `candidate` is faster than `other` beyond noise and beyond what the model is unsure of.

    Their latencies are further apart than both `Benchmark.noise_ratio` say: half the width of a measured
    interval, the model's resolution of a predicted one. And a predicted gain `gain_survives`.
    """
    slowest = candidate.latency_ms * (1 + candidate.benchmark.noise_ratio)
    clear = slowest < other.latency_ms * (1 - other.benchmark.noise_ratio)
    return clear and gain_survives(candidate, other, confidence_percent=confidence_percent)


def are_indistinguishable(candidate: Candidate, other: Candidate, *, confidence_percent: float) -> bool:
    """Return whether noise or doubt hides any difference between the two latencies."""
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
    """Rule on an explorer lineage whose newest kernel is `newest`, once a round."""
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
