"""Counts the outcomes of effects, for people."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from state.events import (
    EffectEnded,
    EvaluationCompleted,
    Event,
    ExecutionFailed,
    KernelProposed,
    PredictionBatch,
    effect_key,
)
from state.model import (
    Role,
    is_simplification,
)
from state.run_state import RunTally


def count_outcome(tally: RunTally, event: EffectEnded) -> RunTally:
    """Return the counts after an outcome."""
    return _TALLIES.get(type(event), _same_tally)(tally, event)


def _same_tally(tally: RunTally, event: Any) -> RunTally:
    return tally


def _count_proposed(tally: RunTally, event: KernelProposed) -> RunTally:
    return tally._replace(proposed=tally.proposed + 1)


def _count_unproposed(tally: RunTally, event: ExecutionFailed) -> RunTally:
    """Count a kernel that was not made; that a winner cannot be simplified is no failure."""
    return tally if is_simplification(effect_key(event)) else tally._replace(failed=tally.failed + 1)


def _count_evaluated(tally: RunTally, event: EvaluationCompleted) -> RunTally:
    """Count a verdict; a kernel that is judged again counts once as evaluated, and once as failed."""
    first = effect_key(event).role is Role.EVALUATOR
    failed = tally.failed + (not event.evaluation.is_correct)
    return tally._replace(evaluated=tally.evaluated + first, failed=failed)


def _count_predicted(tally: RunTally, event: PredictionBatch) -> RunTally:
    return tally._replace(predicted=tally.predicted + event.predicted)


_TALLIES: dict[type[Event], Callable[[RunTally, Any], RunTally]] = {
    KernelProposed: _count_proposed,
    ExecutionFailed: _count_unproposed,
    EvaluationCompleted: _count_evaluated,
    PredictionBatch: _count_predicted,
}
