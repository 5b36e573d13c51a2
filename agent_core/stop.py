"""Stop rules: whether a run ends between two rounds, and why. The first rule that applies gives the reason.

A run also ends when its initial kernel is refused, which `decide` handles, and after a round in which nothing
was judged, which the round's own record says.
"""

from __future__ import annotations

from collections.abc import Callable

from stability import budget
from state.fold import RunState
from state.model import Resource, RunConfig, RunEnding, StopReason

StopRule = Callable[[RunState, RunConfig], str | None]
"""Returns why the run ends, None if it goes on."""

_ROUNDING_PERCENT = 1e-9
"""A latency that is on the bound may differ from it by the rounding of sums."""


def find_ending(state: RunState, config: RunConfig) -> RunEnding | None:
    """Return why the run ends, or None if another round is due.

    `config` is what the next round would use, with settings that were changed meanwhile.
    """
    if state.best is None:
        return RunEnding(reason=StopReason.INITIAL_REJECTED, detail="no kernel stood the audit")
    if state.idle is not None and (refused := budget.find_end_reason(state, config)) is not None:
        return RunEnding(reason=StopReason.BUDGET, detail=refused)  # nobody could propose: no budget
    if state.idle is not None and not state.short:
        return state.idle
    for reason, rule in _RULES:
        detail = rule(state, config)
        if detail is not None:
            return RunEnding(reason=reason, detail=detail)
    return None


def is_last_round(state: RunState) -> bool:
    """Return whether the round was closed by its deadline, or began after it, and is the last.

    What time remains then goes to the fastest kernel, which is the run's result.
    """
    config = state.pending_config or state.config
    return (state.expired or _is_time_short(state)) and budget.find_end_reason(state, config) is not None


def is_time_over(state: RunState, config: RunConfig) -> bool:
    """Return whether the run has had its time, and only time is short."""
    return _is_time_short(state) and budget.find_end_reason(state, config) is not None


def _is_time_short(state: RunState) -> bool:
    return state.short.keys() == {Resource.SECONDS}


def _target_reached_detail(state: RunState, config: RunConfig) -> str | None:
    assert state.initial is not None
    assert state.best is not None
    wanted, wanted_ms = config.search.target_speedup, config.search.target_ms
    reached = state.initial.latency_ms / state.best.latency_ms
    if wanted is not None and reached >= wanted:
        return f"speed-up {reached:.3f} reached the target of {wanted:g}"
    if wanted_ms is not None and state.best.latency_ms <= wanted_ms:
        return f"{state.best.latency_ms:.4g} ms reached the target of {wanted_ms:.4g} ms"
    return None


def _near_bound_detail(state: RunState, config: RunConfig) -> str | None:
    assert state.best is not None
    above = 100 * (state.best.latency_ms / state.bounds.tight_ms - 1)
    if above > config.search.within_percent:
        return None
    if above < -_ROUNDING_PERCENT:  # a measured latency: rates are nominal until somebody measures them
        return f"{-above:.1f} % below the model bound, which says that its rates are too low"
    return f"{max(0.0, above):.1f} % above the model bound, {config.search.within_percent:g} % is near enough"


def _plateau_detail(state: RunState, config: RunConfig) -> str | None:
    """Return a detail if the last clear gain is `plateau_rounds` old.

    The guard's checkpoints move only for gains beyond noise, so the fastest one shows when the last gain was.
    """
    marks = [(mark.candidate.latency_ms, mark.candidate.round) for mark in state.checkpoints.values()]
    idle = state.round - min(marks)[1] if marks else 0
    if idle < config.search.plateau_rounds:
        return None
    return f"{idle} rounds without a gain beyond noise"


def _rounds_detail(state: RunState, config: RunConfig) -> str | None:
    return f"{state.round} rounds" if state.round >= config.search.rounds else None


_RULES: tuple[tuple[StopReason, StopRule], ...] = (
    (StopReason.TARGET, _target_reached_detail),
    (StopReason.NEAR_BOUND, _near_bound_detail),
    (StopReason.BUDGET, budget.find_end_reason),
    (StopReason.ROUNDS, _rounds_detail),
    (StopReason.PLATEAU, _plateau_detail),
)
