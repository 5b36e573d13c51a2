"""Spreads a run's caps over its rounds: how many kernels, plans and implementations a round asks models for.

What an implementation costs, with its share of plans, repairs and lessons, is known from the run itself. Its
first round shows it: few plans, each carried out before the next one is bought. Every later round may spend
a part of what is left of each cap, a larger one while the best kernel is far from its bound. Where that does
not pay for all that the settings want, second implementations go first, then plans, then kernels; plans go
first where second implementations have brought more for what they cost.

All of it follows from the state in which a round starts, and is logged with the round's slots.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import log
from typing import NamedTuple

from state.call_fold import role_record_name
from state.fold import RunState
from state.model import ModelRecord, Role, RunConfig, SlotAssignment
from state.run_state import FIRST_IMPLEMENTATIONS, FURTHER_IMPLEMENTATIONS

PROBING_PLANS = 3
"""Plans for each kernel while nothing is known about their cost."""
LEAST_PLANS = 3
"""A round has fewer kernels before it has fewer plans than this for each."""
LEAST_PART, MOST_PART = 1 / 8, 1 / 3
"""The part of what is left that a round may spend: with the best kernel at its bound, and at the start."""
LEAST_EVIDENCE = 8
"""Second implementations that must have been made before their gain counts."""
LAST_PART = 0.8
"""The most that a round may spend, also the last one: costs are an estimate."""


class Breadth(NamedTuple):
    """How much a round asks for: kernels to improve, plans for each, implementations of each plan."""

    kernels: int
    plans: int
    implementations: int

    @property
    def attempts(self) -> int:
        return self.kernels * self.plans * self.implementations


def fit_slots(state: RunState, config: RunConfig, slots: Sequence[SlotAssignment]) -> list[SlotAssignment]:
    """Return the slots of the next round, those of models with as many plans as the caps pay for."""
    asking = [slot for slot in slots if slot.model is not None and slot.plans]
    if not asking or not is_limited(config):
        return [*slots]
    wanted = Breadth(len(asking), asking[0].plans, asking[0].implementations)
    payable = count_payable_attempts(state, config)
    if payable is None:
        breadth = Breadth(wanted.kernels, min(wanted.plans, PROBING_PLANS), 1)
    else:
        breadth = fit_breadth(wanted, payable, plans_first=is_implementing_worth_more(state))
    kept = {slot.slot for slot in asking[: breadth.kernels]}
    return [_fit_slot(slot, breadth, is_kept=slot.slot in kept) if slot in asking else slot for slot in slots]


def _fit_slot(slot: SlotAssignment, breadth: Breadth, *, is_kept: bool) -> SlotAssignment:
    plans = breadth.plans if is_kept else 0
    return slot.model_copy(update={"plans": plans, "implementations": breadth.implementations})


def is_limited(config: RunConfig) -> bool:
    """Return whether rounds are fitted to the caps."""
    has_cap = config.cap_usd > 0 or config.cap_tokens is not None or config.cap_calls is not None
    return config.llm.scale_to_cap and has_cap


def is_probing(state: RunState) -> bool:
    """Return whether the run's first plans show what one costs: each is carried out before the next."""
    return is_limited(state.config) and not _count_attempts(state)


def can_pay_another(state: RunState, plans: int) -> bool:
    """Return whether the caps have room for one more plan, if each of `plans` so far cost the same."""
    return all(spent + spent / plans <= cap for cap, spent in _capped_amounts(state, state.config))


def count_payable_attempts(state: RunState, config: RunConfig) -> float | None:
    """Return how many implementations the next round may pay for; None if none was paid for yet."""
    attempts = _count_attempts(state)
    if not attempts:
        return None
    part = _round_part(state, config)
    found = [
        part * max(0.0, cap - spent) * attempts / spent
        for cap, spent in _capped_amounts(state, config)
        if spent > 0
    ]
    return min(found, default=float("inf"))


def is_implementing_worth_more(state: RunState) -> bool:
    """Return whether second implementations have gained more for what they cost than further plans.

    A plan costs its planner's answers and one implementation, a second implementation its executor's answers
    alone. What a second one gained is what it gained beyond the first.
    """
    first, further = (
        state.roles.get(name, ModelRecord()) for name in (FIRST_IMPLEMENTATIONS, FURTHER_IMPLEMENTATIONS)
    )
    if further.attempts < LEAST_EVIDENCE or not first.attempts:
        return False
    planning, implementing = (_role_cost(state, role) for role in (Role.PLANNER, Role.EXECUTOR))
    each = implementing / (first.attempts + further.attempts)
    plan_cost, plan_gain = planning / first.attempts + each, first.log_gain / first.attempts
    return further.log_gain / further.attempts * plan_cost > plan_gain * each


def _role_cost(state: RunState, role: Role) -> float:
    """Return the cost of a role's answers: in dollars, or in tokens if any price is unknown."""
    asked = {name: one for name, one in state.roles.items() if one.answers}
    has_prices = all(one.usd is not None for one in asked.values())
    own = [one for name, one in asked.items() if name.startswith(role_record_name(role, ""))]
    return sum((one.usd or 0.0) if has_prices else one.tokens for one in own)


def fit_breadth(wanted: Breadth, payable: float, *, plans_first: bool = False) -> Breadth:
    """Return what a round may ask for, with at most `payable` attempts, but always one.

    With `plans_first`, plans go before second implementations do.
    """
    kernels, plans, implementations = wanted
    if wanted.attempts <= payable:
        return wanted
    least = min(plans, LEAST_PLANS)
    if plans_first:
        plans = _limit(plans, payable / (kernels * implementations), least=least)
    implementations = _limit(implementations, payable / (kernels * plans), least=1)
    plans = _limit(plans, payable / (kernels * implementations), least=least)
    kernels = _limit(kernels, payable / (plans * implementations), least=1)
    return Breadth(kernels, _limit(plans, payable / (kernels * implementations), least=1), implementations)


def _limit(wanted: int, payable: float, *, least: int) -> int:
    return max(least, int(min(wanted, payable)))


def _count_attempts(state: RunState) -> int:
    return sum(one.attempts for one in state.models.values())


def _round_part(state: RunState, config: RunConfig) -> float:
    """Return which part of what is left of the caps the next round may spend."""
    assert state.initial is not None
    assert state.best is not None
    bound = state.bounds.tight_ms
    whole = log(state.initial.latency_ms / bound) if state.initial.latency_ms > bound else 0.0
    left = log(state.best.latency_ms / bound) if state.best.latency_ms > bound else 0.0
    distance = min(1.0, left / whole) if whole else 0.0
    return _part_of_rest(distance, config.search.rounds - state.round)


def _part_of_rest(distance: float, rounds: int) -> float:
    """Return which part of what is left a round may spend, with `rounds` left, this one included.

    `distance` is how far the best kernel is from its bound: 1 as the initial one, 0 at the bound.
    """
    return min(LAST_PART, max(1 / max(1, rounds), LEAST_PART + (MOST_PART - LEAST_PART) * distance))


def foresee_breadths(config: RunConfig, *, plan_usd: float, attempt_usd: float) -> list[Breadth]:
    """Return what each round will ask for until the cap is spent, if all plans cost the same, and attempts.

    `attempt_usd` is without the plan. That no kernel gets faster is assumed: then rounds spend most, and the
    cap is spent soonest.
    """
    search, cap = config.search, config.cap_usd
    if cap < plan_usd + attempt_usd:
        return []
    affordable = int(cap / (plan_usd + attempt_usd))
    found = [Breadth(1, min(search.plans, PROBING_PLANS, affordable), 1)]
    wanted = Breadth(search.beam, search.plans, search.implementations)
    for rounds in range(search.rounds - 1, 0, -1):
        attempts = sum(one.attempts for one in found)
        spent = plan_usd * sum(one.kernels * one.plans for one in found) + attempt_usd * attempts
        if cap - spent < plan_usd + attempt_usd:
            break
        breadth = fit_breadth(wanted, _part_of_rest(1.0, rounds) * (cap - spent) * attempts / spent)
        if breadth.kernels * breadth.plans * plan_usd + breadth.attempts * attempt_usd > cap - spent:
            breadth = fit_breadth(wanted, (cap - spent) / (plan_usd + attempt_usd))  # the cap cuts it short
        found.append(breadth)
    return found


def _capped_amounts(state: RunState, config: RunConfig) -> Iterator[tuple[float, float]]:
    """Yield each cap on what models cost, and what is spent of it."""
    spent = state.spent_amount
    if config.cap_usd > 0:
        yield config.cap_usd, spent.usd
    if config.cap_tokens is not None:
        yield config.cap_tokens, spent.tokens
    if config.cap_calls is not None:
        yield config.cap_calls, spent.calls
