"""The optimisation memory: which pairs of kernels become a round's experiences.

This is Algorithm 2 of the AccelOpt paper. The round's correct kernels are grouped by (candidate, plan); a
speed-up is relative to the candidate c that the plan improves. If the group's largest speed-up exceeds
`t_pos`, (c, fastest) is a positive pair; else if it is below 1 / `t_neg`, (slowest, c) is a negative pair.
Pairs are sorted by strength, ties by slot. Half of TopK (rounded down) is for positive pairs, the rest of
TopK for negative ones. Duplicates and kernels without a plan are in no group. An uncertain predicted gain
counts as no gain.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from agent_core.round_view import TimedCandidate
from stability import divergence_guard
from state.model import Candidate, EffectKey, Experience, ExperienceKind, Plan, Role, SearchConfig


@dataclass(frozen=True, slots=True)
class KernelPair:
    """A slow and a fast kernel of one group. `key` is the summarizer's, at the new kernel's slot."""

    key: EffectKey
    kind: ExperienceKind
    slow: Candidate
    fast: Candidate
    plan: Plan

    @property
    def strength(self) -> float:
        """How many times faster the fast kernel is: the speed-up, or the slow-down that a plan caused."""
        return self.slow.latency_ms / self.fast.latency_ms


def curate_pairs(found: Iterable[TimedCandidate], *, search: SearchConfig) -> tuple[KernelPair, ...]:
    """Return the pairs to summarise, positive ones first, strongest first; `found` is in slot order."""
    if search.experiences == 0:
        return ()
    pairs = [pair for group in _group_by_plan(found) if (pair := _select_pair(group, search)) is not None]
    positive = _sort_by_strength(pairs, ExperienceKind.POSITIVE)[: search.top_k // 2]
    negative = _sort_by_strength(pairs, ExperienceKind.NEGATIVE)[: search.top_k - len(positive)]
    return (*positive, *negative)


def append_experiences(
    memory: Sequence[Experience], new: Iterable[Experience | None], *, limit: int
) -> tuple[Experience, ...]:
    """Return the queue with `new` added, oldest first; None ("no optimisation found") adds nothing."""
    queue = (*memory, *(experience for experience in new if experience is not None))
    return queue[max(0, len(queue) - limit) :]


def forget_candidates(memory: Iterable[Experience], candidates: frozenset[str]) -> tuple[Experience, ...]:
    """Return the queue without experiences that cite any of `candidates`."""
    return tuple(experience for experience in memory if candidates.isdisjoint(experience.cites))


def _group_by_plan(found: Iterable[TimedCandidate]) -> list[list[TimedCandidate]]:
    planned = (sample for sample in found if sample.plan is not None)
    return [list(group) for _, group in groupby(planned, key=lambda one: (one.key.slot, one.key.plan))]


def _select_pair(group: list[TimedCandidate], search: SearchConfig) -> KernelPair | None:
    fastest = min(group, key=lambda one: _counted_ms(one, search))
    slowest = max(group, key=lambda one: one.candidate.latency_ms)
    best = fastest.parent.latency_ms / _counted_ms(fastest, search)
    if best > search.t_pos:
        return _make_pair(fastest, ExperienceKind.POSITIVE, slow=fastest.parent, fast=fastest.candidate)
    if best < 1 / search.t_neg:
        return _make_pair(slowest, ExperienceKind.NEGATIVE, slow=slowest.candidate, fast=slowest.parent)
    return None


def _counted_ms(sample: TimedCandidate, search: SearchConfig) -> float:
    """Return the latency to count: the parent's if the gain is uncertain."""
    sure = search.confidence_percent
    doubtful = divergence_guard.is_doubtful_gain(sample.candidate, sample.parent, confidence_percent=sure)
    return (sample.parent if doubtful else sample.candidate).latency_ms


def _make_pair(
    sample: TimedCandidate, kind: ExperienceKind, *, slow: Candidate, fast: Candidate
) -> KernelPair:
    assert sample.plan is not None
    return KernelPair(sample.key.for_role(Role.SUMMARIZER), kind, slow, fast, sample.plan)


def _sort_by_strength(pairs: Iterable[KernelPair], kind: ExperienceKind) -> list[KernelPair]:
    return sorted((pair for pair in pairs if pair.kind is kind), key=lambda pair: -pair.strength)
