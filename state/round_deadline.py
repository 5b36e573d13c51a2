"""Round deadlines: what was in flight when the deadline passed, and where its outcomes go.

At its deadline, a round closes with its results so far. A kernel that was being made or judged then is late:
its outcomes are recorded as they arrive, and it competes in the round that is current when its verdict
arrives. A plan that arrives late is dropped.
"""

from __future__ import annotations

from typing import Any

from state.events import (
    EffectEnded,
    EvaluationCompleted,
    EvaluationFailed,
    KernelProposed,
    PlanProposed,
    RoundDeadlinePassed,
    effect_key,
)
from state.model import (
    EffectKey,
    Role,
)
from state.run_state import IllegalEvent, LateCandidate, RunState, evolve, is_by_person, require_live


def apply_deadline_passed(state: RunState, event: RoundDeadlinePassed) -> RunState:
    """Close the round to further results; kernels in flight become late candidates, all else is lost."""
    require_live(state, event)
    if not state.is_joinable or event.round != state.round:
        raise IllegalEvent(f"RoundDeadlinePassed({event.round}) in round {state.round}")
    late = {str(place): _make_late_candidate(state, place) for place in sorted(_unjudged_places(state))}
    return evolve(state, expired=True, late=state.late | late)


def _unjudged_places(state: RunState) -> set[EffectKey]:
    """Return the executor keys of the round's kernels that are being made or judged, or wait for it."""
    begun = {
        key.for_role(Role.EXECUTOR) for key in map(EffectKey.parse, state.open) if key.role in _KERNEL_ROLES
    }
    made = {effect_key(one) for one in state.outcomes.values() if isinstance(one, KernelProposed)}
    waiting = {key for key in made if str(key.for_role(Role.EVALUATOR)) not in state.outcomes}
    return {key for key in begun | waiting if key.round == state.round}


def _make_late_candidate(state: RunState, place: EffectKey) -> LateCandidate:
    """Return a late candidate; a person's kernel, which has no slot, gets the fastest parent of the round."""
    parents = {slot.slot: state.parents[slot.parent] for slot in state.slots}
    fastest = min(state.parents.values(), key=lambda parent: parent.latency_ms)
    planned = state.outcomes.get(str(place._replace(implementation=0, repair=0, role=Role.PLANNER)))
    made = state.outcomes.get(str(place))
    return LateCandidate(
        parent=parents.get(place.slot, fastest),
        slot=state.slot_of(place),
        plan=planned.plan if isinstance(planned, PlanProposed) else None,
        kernel=made if isinstance(made, KernelProposed) else None,
    )


_KERNEL_ROLES = frozenset({Role.EXECUTOR, Role.EVALUATOR})
_PROPOSING_ROLES = frozenset({Role.PREDICTOR, Role.PLANNER, *_KERNEL_ROLES})


def route_outcome(state: RunState, event: EffectEnded) -> dict[str, Any]:
    """Return the state changes for an outcome: it joins the round, a late candidate, or is dropped."""
    key = effect_key(event)
    place = str(key.for_role(Role.EXECUTOR)) if state.late else ""
    known = state.late.get(place)
    if known is not None and key.role in _KERNEL_ROLES:
        rest = {name: one for name, one in state.late.items() if name != place}
        told = _update_late_candidate(state, known, event)
        return {"late": rest if told is None else {**rest, place: told}}
    if (
        state.is_round_over(key)
        and key.role in _PROPOSING_ROLES
        and not is_by_person(event)
        and not state.rejudge
    ):
        return {}
    return {"outcomes": {**state.outcomes, event.key: event}}


def _update_late_candidate(state: RunState, known: LateCandidate, event: EffectEnded) -> LateCandidate | None:
    """Return a late candidate after its kernel or verdict arrived; None if it has no kernel after all."""
    if isinstance(event, KernelProposed):
        return known.model_copy(update={"kernel": event})
    if isinstance(event, EvaluationCompleted | EvaluationFailed):
        return known.model_copy(
            update={"judged": event, "competes_in": state.round + (not state.is_joinable)}
        )
    return None
