"""Rounds with a deadline: what was in flight when it passed, and where its outcomes go.

A round that has taken long enough closes with what is there. A kernel that was being made or judged then is
late: its outcomes are recorded as they arrive, and it competes in the round that is under way when its
verdict is there. A plan that comes late leads nowhere.
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
from state.run import IllegalEvent, Late, RunState, by_person, evolve, require_live


def deadline_passed(state: RunState, event: RoundDeadlinePassed) -> RunState:
    """From here on the round's results are what they are; a kernel in flight is late, all else is lost."""
    require_live(state, event)
    if not state.joinable or event.round != state.round:
        raise IllegalEvent(f"RoundDeadlinePassed({event.round}) in round {state.round}")
    found = (_late(state, EffectKey.parse(key)) for key in sorted(state.open))
    return evolve(state, expired=True, late=state.late | dict(one for one in found if one is not None))


def _late(state: RunState, key: EffectKey) -> tuple[str, Late] | None:
    """Return the place of an effect of the round that makes or judges a kernel, None for any other."""
    parents = {slot.slot: state.parents[slot.parent] for slot in state.slots}
    place = key.for_role(Role.EXECUTOR)
    planned = state.outcomes.get(str(key._replace(implementation=0, repair=0, role=Role.PLANNER)))
    if key.round != state.round or key.role not in _KERNEL or not isinstance(planned, PlanProposed):
        return None
    made = state.outcomes.get(str(place))
    kernel = made if isinstance(made, KernelProposed) else None
    return str(place), Late(parent=parents[key.slot], plan=planned.plan, kernel=kernel)


_KERNEL = frozenset({Role.EXECUTOR, Role.EVALUATOR})
_PROPOSING = frozenset({Role.PLANNER, *_KERNEL})


def taken(state: RunState, event: EffectEnded) -> dict[str, Any]:
    """Return where an outcome goes: among the round's, to its late place, or nowhere: its round is over."""
    key = effect_key(event)
    place = str(key.for_role(Role.EXECUTOR))
    known = state.late.get(place)
    if known is not None and key.role in _KERNEL:
        rest = {name: one for name, one in state.late.items() if name != place}
        told = _told_late(state, known, event)
        return {"late": rest if told is None else {**rest, place: told}}
    over = key.round < state.round or (state.expired and key.round == state.round)
    if over and key.role in _PROPOSING and not by_person(event) and not state.rejudge:
        return {}
    return {"outcomes": {**state.outcomes, event.key: event}}


def _told_late(state: RunState, known: Late, event: EffectEnded) -> Late | None:
    """Return a late place after its kernel or verdict arrived; None after it was found to have no kernel."""
    if isinstance(event, KernelProposed):
        return known.model_copy(update={"kernel": event})
    if isinstance(event, EvaluationCompleted | EvaluationFailed):
        return known.model_copy(update={"judged": event, "competes_in": state.round + (not state.joinable)})
    return None
