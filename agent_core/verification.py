"""Verification: kernels that would enter the beam or become a checkpoint are first judged on whole outputs.

A proposed kernel is at first judged only on tiles of its outputs. When all candidate slots of a round are
terminal, the kernels that the selection would keep are judged again, at `VERIFICATION_LEVEL`. If one fails,
it and all kernels with its code are out, and the selection is repeated until every chosen kernel passes.

All verdicts on one selection are awaited before the next selection, so the order in which verdicts arrive
does not matter. A refuted kernel is not repaired: its slot is terminal already.
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
    """Return the verifications to start, in key order; None once the selection is final.

    `places` are the round's candidate slots, all terminal.
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
    """Return the candidate slots with refuted kernels marked as refused, with the verification's reason."""
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
    """Return the kernels that the selection would keep without a check at VERIFICATION_LEVEL."""
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
