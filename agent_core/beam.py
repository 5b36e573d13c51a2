"""Beam selection: which kernels the next round improves.

The beam has B slots. B-X of them (at least one) are **elite**: the fastest kernels. Ties go to kernels
already in the beam, then to the lowest slot, so the fastest kernel is never lost. X are **explorers**:
correct kernels that are slower than the elites but built differently. They are followed for a while because
their descendants may be faster. A slot without a qualified explorer goes to the next elite.

A **lineage** is a line of descent that is followed and dropped as a whole. A kernel is in its parent's
lineage, with one exception: a kernel that enters the beam as an explorer from an elite parent begins its own
lineage, named after itself. An explorer lineage continues with its fastest new kernel of the round, even if
that is slower than the last one (keeping the old one would only ask the same question again), or with the old
one if there is no new one. Its first checkpoint is the checkpoint, after the round, of the lineage it left. A
lineage succeeds when one of its kernels becomes an elite. When it diverges, the guard reverts it: its kernels
leave the beam and its checkpoint competes again.

An explorer is **built differently** from a kernel of the beam if the difference of their latencies exceeds
noise and the model's uncertainty, and if the two are not the same technique applied to the same parent. Its
code must also be new to the run: codes of remembered attempts were explored already.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from stability import divergence_guard
from state.events import KernelReverted
from state.model import BeamEntry, BeamRole, Candidate, Checkpoint, Digest, SearchConfig


@dataclass(frozen=True, slots=True)
class BeamSelection:
    """The next beam (elites by latency, then explorers) and the guard's checkpoints and reverts."""

    beam: tuple[BeamEntry, ...]
    checkpoints: tuple[Checkpoint, ...]
    reverts: tuple[KernelReverted, ...]

    @property
    def held_candidates(self) -> tuple[Candidate, ...]:
        """The kernels that the state holds after this selection."""
        return (*(one.candidate for one in self.beam), *(mark.candidate for mark in self.checkpoints))


@dataclass(frozen=True, slots=True)
class _WatchedLineage:
    """An explorer lineage after the round: its newest kernel and the guard's decision."""

    newest: Candidate
    ruling: divergence_guard.GuardDecision


def select_beam(
    beam: Sequence[BeamEntry],
    fresh: Sequence[Candidate],
    *,
    checkpoints: Mapping[str, Checkpoint],
    tried: frozenset[Digest],
    search: SearchConfig,
) -> BeamSelection:
    """Select the next beam from the old one and the round's correct kernels, `fresh`.

    `fresh` is in slot order, without duplicates. `checkpoints` has one for each lineage of the beam. `tried`
    are the codes that earlier rounds produced.
    """
    pool = [*(entry.candidate for entry in beam), *fresh]
    elites = _sort_by_latency(pool)[: max(1, search.beam - search.explorers)]
    advanced = {lineage: _advance_checkpoint(mark, fresh, search) for lineage, mark in checkpoints.items()}
    unseen = [one for one in fresh if one.code not in tried]
    watched = tuple(_watch_lineages(beam, unseen, elites, checkpoints=checkpoints, search=search))
    lost = {one.newest.lineage for one in watched if one.ruling.revert}
    explorers = [one.newest for one in watched if not one.ruling.revert]
    explorers = explorers[: search.beam - len(elites)]
    followed = {entry.candidate.lineage for entry in beam if entry.role is BeamRole.EXPLORER}
    others = [one for one in unseen if one.lineage not in followed]
    explorers += _begin_lineages(others, elites, explorers, checkpoints=advanced, search=search)
    restored = [one.ruling.checkpoint.candidate for one in watched if one.ruling.revert]
    standing = [one for one in pool if one.lineage not in lost]
    elites += _fill_slots(_sort_by_latency([*standing, *restored]), [*elites, *explorers], search.beam)
    entries = (
        *_beam_entries(_sort_by_latency(elites), BeamRole.ELITE),
        *_beam_entries(explorers, BeamRole.EXPLORER),
    )
    ruled = {one.newest.lineage: one.ruling.checkpoint for one in watched}
    marks = _lineage_checkpoints(entries, fresh, {**advanced, **ruled})
    changed = tuple(mark for mark in marks if checkpoints.get(mark.lineage) != mark)
    return BeamSelection(entries, changed, tuple(one.ruling.revert for one in watched if one.ruling.revert))


def select_exactly(
    chosen: Iterable[Candidate],
    fresh: Sequence[Candidate],
    *,
    checkpoints: Mapping[str, Checkpoint],
    search: SearchConfig,
) -> BeamSelection:
    """Select exactly `chosen`, for strategies with their own selection: no explorers, no reverts."""
    entries = tuple(_beam_entries(_sort_by_latency(chosen), BeamRole.ELITE))
    advanced = {lineage: _advance_checkpoint(mark, fresh, search) for lineage, mark in checkpoints.items()}
    marks = _lineage_checkpoints(entries, fresh, advanced)
    return BeamSelection(entries, tuple(mark for mark in marks if checkpoints.get(mark.lineage) != mark), ())


def remove_candidate(
    wrong: Candidate,
    beam: Iterable[BeamEntry],
    checkpoints: Mapping[str, Checkpoint],
    *,
    best: Candidate | None,
) -> tuple[tuple[BeamEntry, ...], tuple[Checkpoint, ...]]:
    """Return beam and checkpoints without the kernel `wrong`, and with `best` unless it is None.

    A lineage whose checkpoint was `wrong` restarts from its fastest kernel in the beam.
    """
    entries = [entry for entry in beam if entry.candidate.id != wrong.id]
    if best is not None and all(entry.candidate.id != best.id for entry in entries):
        entries.insert(0, BeamEntry(candidate=best, role=BeamRole.ELITE))
    alive: dict[str, Checkpoint] = {}
    for one in _sort_by_latency(entry.candidate for entry in entries):
        mark = checkpoints.get(one.lineage)
        if mark is None or mark.candidate.id == wrong.id:
            mark = Checkpoint(lineage=one.lineage, candidate=one)
        alive.setdefault(one.lineage, mark)
    return tuple(entries), tuple(alive.values())


def _sort_by_latency(candidates: Iterable[Candidate]) -> list[Candidate]:
    return sorted(candidates, key=lambda one: one.latency_ms)


def _watch_lineages(
    beam: Sequence[BeamEntry],
    unseen: Sequence[Candidate],
    elites: Sequence[Candidate],
    *,
    checkpoints: Mapping[str, Checkpoint],
    search: SearchConfig,
) -> Iterator[_WatchedLineage]:
    """Apply the guard to each explorer lineage of the beam that has no elite."""
    arrived = {one.lineage for one in elites}
    for entry in beam:
        lineage = entry.candidate.lineage
        if entry.role is BeamRole.EXPLORER and lineage not in arrived:
            offspring = _sort_by_latency(one for one in unseen if one.lineage == lineage)
            newest = offspring[0] if offspring else entry.candidate
            ruling = divergence_guard.check_divergence(
                checkpoints[lineage],
                newest,
                slack_ratio=search.explorer_slack_ratio,
                depth=search.explorer_depth,
                confidence_percent=search.confidence_percent,
            )
            yield _WatchedLineage(newest, ruling)


def _begin_lineages(
    unseen: Sequence[Candidate],
    elites: Sequence[Candidate],
    explorers: Sequence[Candidate],
    *,
    checkpoints: Mapping[str, Checkpoint],
    search: SearchConfig,
) -> list[Candidate]:
    """Begin lineages in the free explorer slots: first techniques that the beam lacks, then the fastest."""
    begun: list[Candidate] = []
    known = {one.technique for one in (*elites, *explorers)}
    for one in sorted(unseen, key=lambda one: (one.technique in known, one.latency_ms)):
        if len(elites) + len(explorers) + len(begun) >= search.beam:
            break
        mark = checkpoints[one.lineage]
        near = divergence_guard.is_within_slack(mark, one, slack_ratio=search.explorer_slack_ratio)
        if near and all(_is_distinct(one, other, search) for other in (*elites, *explorers, *begun)):
            begun.append(one.model_copy(update={"lineage": one.id}))
    return begun


def _is_distinct(one: Candidate, other: Candidate, search: SearchConfig) -> bool:
    same_move = (one.parent, one.technique) == (other.parent, other.technique)
    return not same_move and not divergence_guard.are_indistinguishable(
        one, other, confidence_percent=search.confidence_percent
    )


def _fill_slots(ranked: Iterable[Candidate], taken: Sequence[Candidate], size: int) -> list[Candidate]:
    codes = {one.code for one in taken}
    added: list[Candidate] = []
    for one in ranked:
        if len(taken) + len(added) < size and one.code not in codes:
            codes.add(one.code)
            added.append(one)
    return added


def _beam_entries(candidates: Iterable[Candidate], role: BeamRole) -> Iterator[BeamEntry]:
    return (BeamEntry(candidate=one, role=role) for one in candidates)


def _lineage_checkpoints(
    entries: Iterable[BeamEntry], fresh: Iterable[Candidate], checkpoints: Mapping[str, Checkpoint]
) -> Iterator[Checkpoint]:
    """Yield the checkpoint of each lineage of the new beam; a lineage without one is new or restored."""
    left = {one.id: checkpoints[one.lineage].candidate for one in fresh}
    seen: set[str] = set()
    for entry in entries:
        one = entry.candidate
        if one.lineage not in seen:
            seen.add(one.lineage)
            known = checkpoints.get(one.lineage)
            yield known or Checkpoint(lineage=one.lineage, candidate=left.get(one.lineage, one))


def _advance_checkpoint(mark: Checkpoint, fresh: Iterable[Candidate], search: SearchConfig) -> Checkpoint:
    """Return the checkpoint after the round: the lineage's fastest new kernel if it is a clear gain."""
    offspring = _sort_by_latency(one for one in fresh if one.lineage == mark.lineage)
    sure = search.confidence_percent
    if offspring and divergence_guard.is_clearly_faster(
        offspring[0], mark.candidate, confidence_percent=sure
    ):
        return Checkpoint(lineage=mark.lineage, candidate=offspring[0])
    return mark
