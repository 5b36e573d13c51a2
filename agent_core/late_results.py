"""Late kernels: in flight when their round's deadline passed, they compete once they are judged.

A round does not wait for them. Only a run that would end first lets its late kernels arrive, and gives them a
round of their own.
"""

from __future__ import annotations

from agent_core.effects import Effect
from agent_core.requests import make_evaluation_request
from state.fold import RunState
from state.model import EffectKey, Level, Role


def pending_evaluations(state: RunState) -> list[Effect]:
    """Return the evaluations of late kernels that were not started yet, in key order."""
    found = []
    for place in sorted(map(EffectKey.parse, state.late)):
        late, key = state.late[str(place)], place.for_role(Role.EVALUATOR)
        if late.kernel is not None and late.judged is None and str(key) not in state.open:
            kernel = late.kernel
            request = make_evaluation_request(
                state, key, kernel.source, kernel.author, level=Level.SLICES, parent=late.parent
            )
            found.append(Effect(key, request))
    return found


def has_ready_kernels(state: RunState) -> bool:
    """Return whether all late kernels are judged, with at least one that has not competed yet."""
    return not state.open and any(late.judged is not None for late in state.late.values())
