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


class Divergence(StrEnum):
    """Why a lineage goes back to its checkpoint."""

    SLOWER = "slower"
    DEPTH = "depth"


@dataclass(frozen=True, slots=True)
class Ruling:
    """The guard's word on one lineage after a round: its checkpoint now, and the revert if there is one."""

    checkpoint: Checkpoint
    revert: KernelReverted | None = None


def survives(candidate: Candidate, other: Candidate, *, confidence_percent: float) -> bool:
    """Return whether a predicted gain holds in enough of the draws that both predictions have.

    A draw moves what the model is not sure of, the same way for both: a gain that lives on the exact values
    of those constants is the model's error, not the kernel's merit. Without common draws nothing speaks
    against a gain.
    """
    share = candidate.benchmark.wins_percent(other.benchmark)
    return share is None or share >= confidence_percent


def doubtful(candidate: Candidate, other: Candidate, *, confidence_percent: float) -> bool:
    """Return whether `candidate` is predicted faster and the gain does not survive: it counts as no gain."""
    faster = candidate.latency_ms < other.latency_ms
    return faster and not survives(candidate, other, confidence_percent=confidence_percent)


def beats(candidate: Candidate, other: Candidate, *, confidence_percent: float) -> bool:
    """Return whether `candidate` is faster than `other` beyond noise and beyond what the model is unsure of.

    Their latencies are further apart than both `Benchmark.noise_ratio` say: half the width of a measured
    interval, the model's resolution of a predicted one. And a predicted gain `survives`.
    """
    slowest = candidate.latency_ms * (1 + candidate.benchmark.noise_ratio)
    clear = slowest < other.latency_ms * (1 - other.benchmark.noise_ratio)
    return clear and survives(candidate, other, confidence_percent=confidence_percent)


def alike(candidate: Candidate, other: Candidate, *, confidence_percent: float) -> bool:
    """Return whether noise or doubt hides any difference between the two latencies."""
    return not any(
        beats(one, two, confidence_percent=confidence_percent)
        for one, two in ((candidate, other), (other, candidate))
    )


def tolerates(mark: Checkpoint, candidate: Candidate, *, slack_ratio: float) -> bool:
    """Return whether `candidate` is at most `slack_ratio` times as slow as the checkpoint."""
    return candidate.latency_ms <= slack_ratio * mark.candidate.latency_ms


def watch(
    mark: Checkpoint, newest: Candidate, *, slack_ratio: float, depth: int, confidence_percent: float
) -> Ruling:
    """Rule on an explorer lineage whose newest kernel is `newest`, once a round."""
    if beats(newest, mark.candidate, confidence_percent=confidence_percent):
        return Ruling(Checkpoint(lineage=mark.lineage, candidate=newest))
    deeper = mark.model_copy(update={"depth": mark.depth + 1})
    again = mark.model_copy(update={"depth": 0})
    if not tolerates(mark, newest, slack_ratio=slack_ratio):
        return Ruling(again, _revert(mark, newest, Divergence.SLOWER))
    if deeper.depth >= depth:
        return Ruling(again, _revert(mark, newest, Divergence.DEPTH))
    return Ruling(deeper)


def _revert(mark: Checkpoint, newest: Candidate, why: Divergence) -> KernelReverted:
    return KernelReverted(
        lineage=mark.lineage, dropped=newest.id, restored=mark.candidate.id, reason=why.value
    )
