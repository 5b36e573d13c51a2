"""Verification: who would enter the beam, or be a checkpoint, is judged on whole outputs before.

As it is proposed, a kernel is judged on tiles of its outputs. When all places of a round are terminal, those
that selection would let the state hold are judged again, at `VERIFICATION_LEVEL`. Who fails is out, as are
all kernels of its code, and selection is done again without them, until all whom it chooses stand. The
verdicts on one selection are all waited for before the next is made, so that who is verified does not depend
on the order in which verdicts arrive. A refuted kernel is not repaired: its place was terminal.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from agent_core.effects import Effect
from agent_core.requests import evaluate_at_level
from agent_core.round_selection import select_round
from agent_core.round_view import CandidateSlot, KernelAttempt, executor_key, refusal_error
from state.events import EvaluationCompleted, EvaluationFailed
from state.fold import RunState
from state.model import Candidate, Digest, EffectKey, Level, Role

VERIFICATION_LEVEL = Level.ONE_SEED

EvaluationOutcome = EvaluationCompleted | EvaluationFailed


def verification_effects(state: RunState, places: Sequence[CandidateSlot]) -> list[Effect] | None:
    """Return the verifications to start, in key order; None when selection stands.

    `places` are as the survey has them, all terminal.
    """
    out: frozenset[Digest] = frozenset()
    while True:
        entrants = _unverified_entrants(state, places, out)
        verdicts = {key: _verifier_outcome(state, key) for key in entrants}
        if None in verdicts.values():
            missing = sorted(key for key, verdict in verdicts.items() if verdict is None)
            due = [key for key in missing if str(key) not in state.open]
            return [evaluate_at_level(state, key, entrants[key], VERIFICATION_LEVEL) for key in due]
        fallen = {
            entrants[key].code for key, verdict in verdicts.items() if verdict and not _is_verified(verdict)
        }
        if not fallen:
            return None
        out |= fallen


def settle_slots(state: RunState, places: Iterable[CandidateSlot]) -> tuple[CandidateSlot, ...]:
    """Return the places as verification leaves them: who was refuted is refused, for the later reason."""
    chosen = tuple(places)
    verdicts = {
        tried.evaluation.code: verdict
        for place in chosen
        for tried in place.tries
        if tried.evaluation and (verdict := _verifier_outcome(state, tried.key.for_role(Role.VERIFIER)))
    }
    return tuple(
        replace(place, tries=tuple(_settle_attempt(tried, verdicts) for tried in place.tries))
        for place in chosen
    )


def _unverified_entrants(
    state: RunState, places: Sequence[CandidateSlot], out: frozenset[Digest]
) -> dict[EffectKey, Candidate]:
    """Return the round's kernels that selection lets the state hold and that were compared too little."""
    round_ = select_round(state, places, without=out)
    fresh = {sample.candidate.id for sample in round_.found}
    held = {
        one.id: one
        for one in round_.selection.held_candidates
        if one.id in fresh and not one.level.covers(VERIFICATION_LEVEL)
    }
    return {executor_key(name).for_role(Role.VERIFIER): one for name, one in held.items()}


def _verifier_outcome(state: RunState, key: EffectKey) -> EvaluationOutcome | None:
    found = state.outcomes.get(str(key))
    assert found is None or isinstance(found, EvaluationCompleted | EvaluationFailed)
    return found


def _is_verified(verdict: EvaluationOutcome) -> bool:
    return isinstance(verdict, EvaluationCompleted) and refusal_error(verdict.evaluation) is None


def _settle_attempt(tried: KernelAttempt, verdicts: dict[Digest, EvaluationOutcome]) -> KernelAttempt:
    if tried.evaluation is None or tried.error is not None:
        return tried
    verdict = verdicts.get(tried.evaluation.code)
    match verdict:
        case None:
            return tried
        case EvaluationFailed():
            return replace(tried, error=verdict.error, infrastructure=True)
        case EvaluationCompleted() if (error := refusal_error(verdict.evaluation)) is not None:
            return replace(tried, evaluation=verdict.evaluation, error=error, refuted=True)
        case EvaluationCompleted():
            level = verdict.evaluation.level
            return replace(tried, evaluation=tried.evaluation.model_copy(update={"level": level}))
