"""What came of a run's questions to models, as it is watched: answers, failures, kernels.

A run whose planners ask models and whose questions all fail ends in good order, with the kernel that it began
with. That is no success, and whoever started it is told why.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from agent_core.proposers import is_llm_proposer
from state.events import (
    CallCompleted,
    CallFailed,
    Event,
    ExecutionFailed,
    KernelProposed,
    PlanFailed,
    effect_key,
)
from state.fold import RunState


@dataclass(slots=True)
class CallTally:
    """What a run's planners that ask models came to; of a fork, since it began.

    `failed` are attempts at an answer by kind of failure, `last` is what the last of them said. `kernels`
    came of answers, `unmade` are the plans and kernels that did not, by what they failed with.
    """

    answered: int = 0
    kernels: int = 0
    failed: Counter[str] = field(default_factory=Counter)
    unmade: Counter[str] = field(default_factory=Counter)
    last: str = ""

    def add(self, state: RunState, event: Event) -> None:
        """Take in an event of the run, which `state` has taken in."""
        match event:
            case CallCompleted():
                self.answered += 1
            case CallFailed(kind=kind, error=error):
                self.failed[kind] += 1
                self.last = error.message
            case KernelProposed():
                self.kernels += _is_model_effect(state, event)
            case PlanFailed(error=error) | ExecutionFailed(error=error):
                self.unmade[f"{error.code}: {error.message}"] += _is_model_effect(state, event)

    def failure_reason(self) -> str | None:
        """Say why the questions came to nothing; None where a kernel came of one, or none failed."""
        if self.kernels or not self.unmade.total():
            return None
        from agent_core.roles.llm.quoting import single_line  # much comes with it, and few runs end like this

        why, times = self.unmade.most_common(1)[0]
        share = f"{times} of {self.unmade.total()} proposals"
        if self.answered:
            return f"no answer of a model became a kernel: {single_line(why)} ({share})"
        failed = ", ".join(f"{number} {kind}" for kind, number in self.failed.most_common())
        last = f"; attempts that failed: {failed}; the last: {single_line(self.last)}" if failed else ""
        return f"no question to a model was answered: {single_line(why)} ({share}){last}"


def _is_model_effect(state: RunState, event: KernelProposed | PlanFailed | ExecutionFailed) -> bool:
    """Whether the one who answers in the effect's slot asks models."""
    slot = state.slot_of(effect_key(event))
    return slot is not None and is_llm_proposer(slot.planner)
