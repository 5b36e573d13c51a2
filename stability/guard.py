"""The divergence guard: how long an explorer lineage may be slower than what it left, and when it goes back.

Every lineage has a **checkpoint**: the fastest of its kernels that beat the one before beyond noise (for
a lineage that has just begun, the checkpoint of the lineage it left). An explorer lineage is reverted to
it when its newest kernel is slower than `slack_ratio` times the checkpoint, or when `depth` rounds in a
row brought no gain. Elite lineages are never reverted: their kernels are in the beam on merit.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from state.events import KernelReverted
from state.model import Candidate, Checkpoint


class Divergence(StrEnum):
    """Why a lineage goes back to its checkpoint."""

    SLOWER = "slower"
    DEPTH = "depth"


@dataclass(frozen=True, slots=True)
class Ruling:
    """The guard's word on one lineage after a round: its checkpoint now, and the revert if there is one."""

    checkpoint: Checkpoint
    revert: KernelReverted | None = None


def beats(candidate: Candidate, other: Candidate) -> bool:
    """Return whether `candidate` is faster than `other` beyond noise: their intervals do not overlap.

    Half the width of an interval is `Benchmark.noise_ratio` of its latency, which is 0 for predictions.
    """
    slowest = candidate.latency_ms * (1 + candidate.benchmark.noise_ratio)
    return slowest < other.latency_ms * (1 - other.benchmark.noise_ratio)


def alike(candidate: Candidate, other: Candidate) -> bool:
    """Return whether noise hides any difference between the two latencies."""
    return not beats(candidate, other) and not beats(other, candidate)


def tolerates(mark: Checkpoint, candidate: Candidate, *, slack_ratio: float) -> bool:
    """Return whether `candidate` is at most `slack_ratio` times as slow as the checkpoint."""
    return candidate.latency_ms <= slack_ratio * mark.candidate.latency_ms


def watch(mark: Checkpoint, newest: Candidate, *, slack_ratio: float, depth: int) -> Ruling:
    """Rule on an explorer lineage whose newest kernel is `newest`, once a round."""
    if beats(newest, mark.candidate):
        return Ruling(Checkpoint(lineage=mark.lineage, candidate=newest))
    deeper = mark.model_copy(update={"depth": mark.depth + 1})
    if not tolerates(mark, newest, slack_ratio=slack_ratio):
        return Ruling(deeper, _revert(mark, newest, Divergence.SLOWER))
    if deeper.depth >= depth:
        return Ruling(deeper, _revert(mark, newest, Divergence.DEPTH))
    return Ruling(deeper)


def _revert(mark: Checkpoint, newest: Candidate, why: Divergence) -> KernelReverted:
    return KernelReverted(
        lineage=mark.lineage, dropped=newest.id, restored=mark.candidate.id, reason=why.value
    )
