"""Tallies a run's questions to models while you watch it: answers, failures, kernels.

If all questions of a run fail, the run still completes, with its initial kernel. That is no success, so
the person who started it is told why.
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
    """The results of a run's LLM planners; for a fork, since it began.

    `failed` counts failed attempts by kind of failure; `last` is the message of the latest. `kernels`
    counts kernels that came from answers; `unmade` counts plans and kernels that failed, by error.
    """

    answered: int = 0
    kernels: int = 0
    failed: Counter[str] = field(default_factory=Counter)
    unmade: Counter[str] = field(default_factory=Counter)
    last: str = ""

    def add(self, state: RunState, event: Event) -> None:
        """Count an event of the run; `state` already includes it."""
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
        """Return why no question led to a kernel; None if one did, or if nothing failed."""
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
    """Return whether the planner of the effect's slot asks models."""
    slot = state.slot_of(effect_key(event))
    return slot is not None and is_llm_proposer(slot.planner)
