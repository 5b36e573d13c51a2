"""Closes a round: one record says which kernels are kept, discarded or reverted, and the next beam."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from agent_core import beam, strategies
from agent_core.effects import Record
from agent_core.round_view import (
    CandidateSlot,
    KernelAttempt,
    TimedCandidate,
    find_duplicates,
    timed_candidates,
)
from agent_core.stop import is_last_round
from stability import divergence_guard
from state.events import BeamSelected, Event, GuardCheckpointed, KernelDiscarded, KernelKept
from state.fold import RunState
from state.model import (
    PREFILTERED,
    BeamEntry,
    Digest,
)


@dataclass(frozen=True, slots=True)
class RoundSelection:
    """The kernels that competed in a round, those that could not and why, and the selected beam."""

    found: tuple[TimedCandidate, ...]
    copies: dict[str, str]
    doubts: dict[str, KernelDiscarded]
    selection: beam.BeamSelection


def select_round(
    state: RunState, places: Iterable[CandidateSlot], *, without: frozenset[Digest] = frozenset()
) -> RoundSelection:
    """Select the next beam from the round's kernels, except those whose code is in `without`.

    If the run ends with this round because its time is over, only the fastest kernel competes, and only if it
    is faster than the best: each kernel of the beam has to be compared on whole outputs, and nobody will
    improve the others.
    """
    found = tuple(one for one in timed_candidates(state, places) if one.candidate.code not in without)
    copies = find_duplicates(state, found)
    doubts = {sample.candidate.id: doubt for sample in found if (doubt := _uncertain_gain(state, sample))}
    out = copies.keys() | doubts.keys()
    fresh = [one.candidate for one in found if one.candidate.id not in out]
    if is_last_round(state):
        fastest = sorted(fresh, key=lambda one: one.latency_ms)[:1]
        fresh = [one for one in fastest if state.best is None or one.latency_ms < state.best.latency_ms]
    return RoundSelection(found, copies, doubts, strategies.select_survivors(state, fresh))


def record_selection(state: RunState, places: Sequence[CandidateSlot]) -> Record:
    """Return one record of all that the round decides, in slot order. Every slot is settled by now."""
    round_ = select_round(state, places)
    selection = round_.selection
    return Record(
        (
            *_kernel_decisions(places, round_),
            *selection.reverts,
            *(GuardCheckpointed(checkpoint=mark) for mark in selection.checkpoints),
            BeamSelected(round=state.round, beam=selection.beam),
        )
    )


def _uncertain_gain(state: RunState, sample: TimedCandidate) -> KernelDiscarded | None:
    """Return the discarding of a kernel whose predicted gain is uncertain, else None.

    Such a kernel counts as neutral. The kernel that it may not beat is in the beam already, and it is no
    explorer either, because the two may be equally fast.
    """
    sure = state.config.search.confidence_percent
    one = sample.candidate
    for rival in [sample.parent] if state.best is None else [sample.parent, state.best]:
        if divergence_guard.is_doubtful_gain(one, rival, confidence_percent=sure):
            share = one.benchmark.wins_percent(rival.benchmark)
            return KernelDiscarded(candidate=one.id, reason="uncertain", against=rival.id, wins_percent=share)
    return None


def _kernel_decisions(places: Iterable[CandidateSlot], round_: RoundSelection) -> Iterator[Event]:
    """Yield one event for each kernel of the round: kept, or discarded with the reason."""
    by_key = {sample.key: sample for sample in round_.found}
    kept = {entry.candidate.id: entry for entry in round_.selection.beam}
    tries = sorted(
        (tried for place in places for tried in place.tries if tried.kernel), key=lambda one: one.key
    )
    for tried in tries:
        name = tried.key.candidate_id
        if tried.key not in by_key:
            yield _discard_failed(tried)
        elif name in round_.copies:
            yield KernelDiscarded(candidate=name, reason="duplicate", duplicate_of=round_.copies[name])
        elif name in round_.doubts:
            yield round_.doubts[name]
        else:
            yield _keep_or_discard(by_key[tried.key], kept.get(name))


def _discard_failed(tried: KernelAttempt) -> KernelDiscarded:
    name = tried.key.candidate_id
    if tried.infrastructure or tried.evaluation is None:
        return KernelDiscarded(candidate=name, reason="infrastructure")
    if tried.is_held_back:
        return KernelDiscarded(candidate=name, reason=PREFILTERED)
    verdict = tried.evaluation.verdict
    return KernelDiscarded(
        candidate=name, reason="refuted" if tried.refuted else verdict.value, verdict=verdict
    )


def _keep_or_discard(sample: TimedCandidate, entry: BeamEntry | None) -> Event:
    speedup = sample.parent.latency_ms / sample.candidate.latency_ms
    if entry is not None:
        return KernelKept(candidate=entry.candidate, role=entry.role, speedup=speedup)
    return KernelDiscarded(candidate=sample.candidate.id, reason="not_selected" if speedup > 1 else "slower")
