"""How folds keep what runs learnt: a few of each kind in the system state, and those given to a run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from state.events import ExperiencesGiven, SequencesGiven, TechniquesGiven
from state.model import LearntExperience, LearntSequence, LearntTechnique
from state.run_state import IllegalEvent, RunState, evolve, require_live

SEQUENCES_PER_KIND = 4
"""Sequences kept for one target and set of operators: those with the largest gains."""
MAX_SEQUENCES = 64
"""Sequences kept in all: the last learnt."""

EXPERIENCES_PER_KIND = 8
"""Experiences of runs kept for one target and set of operators: the strongest."""
MAX_EXPERIENCES = 48
"""Experiences of runs kept in all: the last learnt."""
MAX_IMPORTED = 32
"""Experiences of files kept in all, independent of what runs learn: the last imported."""

TECHNIQUES_PER_KIND = 16
"""Invented techniques kept for one target and set of operators: those with the largest gain per try."""

Learnt = TypeVar("Learnt", bound=LearntSequence | LearntExperience | LearntTechnique)


def retain_strongest(
    known: Iterable[Learnt], new: Learnt, *, of_a_kind: int = SEQUENCES_PER_KIND, most: int = MAX_SEQUENCES
) -> tuple[Learnt, ...]:
    """Return what is kept once `new` is learnt, in order of learning.

    In the same setting, only the strongest is kept, among equals the first; of one kind, at most `of_a_kind`
    are kept, by the same rule. The setting of a sequence is its tags and arguments, of an experience its
    tags, sign and technique, of a technique its tags and id.
    """
    known = tuple(known)
    twin = next((one for one in known if one.retention_key == new.retention_key), None)
    if twin is not None and twin.strength >= new.strength:
        return known
    kept: list[Learnt] = [one for one in known if one is not twin]
    rivals: list[Learnt] = [one for one in kept if _retention_kind(one) == _retention_kind(new)]
    if len(rivals) == of_a_kind:
        rivals.append(new)
        least = min(reversed(rivals), key=lambda one: one.strength)
        if least is new:
            return known
        kept.remove(least)
    return (*kept, new)[-most:]


def add_experiences(
    known: Iterable[LearntExperience], new: Iterable[LearntExperience]
) -> tuple[LearntExperience, ...]:
    """Return the experiences kept once `new` are learnt; those of runs first, then those of files.

    A person chose the imported ones, so nothing that a run learns displaces them. Known experiences are not
    added again.
    """
    pools: dict[bool, tuple[LearntExperience, ...]] = {False: (), True: ()}
    for one in known:
        pools[one.imported] += (one,)
    for one in new:
        if any(one.id == other.id for other in pools[not one.imported]):
            continue
        of_a_kind = MAX_IMPORTED + 1 if one.imported else EXPERIENCES_PER_KIND
        most = MAX_IMPORTED if one.imported else MAX_EXPERIENCES
        pools[one.imported] = retain_strongest(pools[one.imported], one, of_a_kind=of_a_kind, most=most)
    return (*pools[False], *pools[True])


def add_techniques(
    known: Iterable[LearntTechnique], new: Iterable[LearntTechnique]
) -> tuple[LearntTechnique, ...]:
    """Return the techniques kept once `new` are learnt, in order of learning."""
    kept = tuple(known)
    for one in new:
        kept = retain_strongest(kept, one, of_a_kind=TECHNIQUES_PER_KIND)
    return kept


def _retention_kind(one: LearntSequence | LearntExperience | LearntTechnique) -> tuple[str, tuple[str, ...]]:
    return one.tags.target, one.tags.operators


def apply_prior_learning(
    state: RunState, event: SequencesGiven | ExperiencesGiven | TechniquesGiven
) -> RunState:
    """Return the state of a run with what others learnt, from its next round on."""
    require_live(state, event)
    if state.in_round or event.round != state.round + 1:
        raise IllegalEvent(f"{type(event).__name__}({event.round}) after round {state.round} began")
    match event:
        case SequencesGiven():
            return evolve(state, sequences=event.sequences)
        case ExperiencesGiven():
            return evolve(state, experiences=event.experiences)
        case TechniquesGiven():
            return evolve(state, techniques=event.techniques)
