"""Learnt sequences in the folds: the few of each kind that the system keeps, and what a run is given."""

from __future__ import annotations

from collections.abc import Iterable

from state.events import SequencesGiven
from state.model import LearntSequence
from state.run import IllegalEvent, RunState, evolve, require_live

OF_A_KIND = 4
"""Sequences kept for one target and set of operators: those that gained most."""
MOST = 64
"""Sequences kept in all: those that were learnt last."""


def remembered(known: Iterable[LearntSequence], new: LearntSequence) -> tuple[LearntSequence, ...]:
    """Return what is kept once `new` is learnt, in the order in which it was.

    Of sequences for the same arguments and with the same tags only the one that gained most is kept, of equal
    ones the first; so it is with more of a kind than `OF_A_KIND`.
    """
    known = tuple(known)
    twin = next((one for one in known if (one.tags, one.arguments) == (new.tags, new.arguments)), None)
    if twin is not None and twin.speedup >= new.speedup:
        return known
    kept = [one for one in known if one is not twin]
    rivals = [one for one in kept if _kind(one) == _kind(new)]
    if len(rivals) == OF_A_KIND:
        least = min(reversed((*rivals, new)), key=lambda one: one.speedup)
        if least is new:
            return known
        kept.remove(least)
    return (*kept, new)[-MOST:]


def _kind(one: LearntSequence) -> tuple[str, tuple[str, ...]]:
    return one.tags.target, one.tags.operators


def given(state: RunState, event: SequencesGiven) -> RunState:
    """Return the state of a run that may try sequences of others first, from its next round on."""
    require_live(state, event)
    if state.in_round or event.round != state.round + 1:
        raise IllegalEvent(f"SequencesGiven({event.round}) after round {state.round} began")
    return evolve(state, sequences=event.sequences)
