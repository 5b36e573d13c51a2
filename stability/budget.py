"""Budgets of a run and of a day: what is left of each resource, whether a call fits, when to warn.

All of it is arithmetic on the states: what is spent, what is held for calls in flight, and the caps. A call
is allowed only if spent, held and its own upper limit together are within every cap, so spending never
exceeds a cap, whatever happens to the calls in flight. If only held amounts are in the way, they may be freed
and the call waits; otherwise there is no room for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from state.day_budget import DayBudget
from state.events import BudgetShort, BudgetWarned
from state.fold import RunState
from state.model import Amount, Resource, RunConfig, round_usd

WARNING_PERCENTS = (50, 80)
"""The percentages of a cap at which a warning is given."""

DAILY_RESOURCES = frozenset(
    {
        Resource.DAY_USD,
        Resource.DAY_TOKENS,
        Resource.DAY_CALLS,
        Resource.DAY_SECONDS,
        Resource.DAY_DEVICE_SECONDS,
    }
)
"""Resources that are available again on the next day."""

DEVICE_RESOURCES = frozenset({Resource.DEVICE_SECONDS, Resource.DAY_DEVICE_SECONDS})
"""Resources that evaluations use, and calls do not."""

NO_AMOUNT = Amount()


@dataclass(frozen=True, slots=True)
class DayCaps:
    """What all runs may use on one day (UTC): calls, time in progress, time on devices; None is no cap."""

    usd: float | None = None
    tokens: int | None = None
    calls: int | None = None
    seconds: float | None = None
    device_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class BudgetAccount:
    """One resource: its cap, what is spent and held of it, and what is wanted now."""

    resource: Resource
    cap: float
    spent: float
    held: float = 0.0
    wanted: float = 0.0

    @property
    def has_room(self) -> bool:
        """Whether the wanted amount is available."""
        return round_usd(self.spent + self.held + self.wanted) <= self.cap

    @property
    def may_have_room(self) -> bool:
        """Whether the wanted amount would be available if all held amounts were freed."""
        return round_usd(self.spent + self.wanted) <= self.cap

    @property
    def remaining(self) -> float:
        """What is neither spent nor held."""
        return max(0.0, round_usd(self.cap - self.spent - self.held))

    @property
    def used_percent(self) -> float:
        """The percentage of the cap that is spent or held; 100 if the cap is 0.

        For time on devices, only what is spent counts: evaluations hold far more of it than they use.
        """
        taken = self.spent if self.resource in DEVICE_RESOURCES else self.spent + self.held
        return 100.0 * taken / self.cap if self.cap else 100.0

    def make_shortage_event(self) -> BudgetShort:
        """Return the event that records the shortage."""
        return BudgetShort(resource=self.resource, cap=self.cap, left=self.remaining, wanted=self.wanted)


def run_accounts(
    state: RunState,
    config: RunConfig,
    wanted: Amount = NO_AMOUNT,
    *,
    age_seconds: float = 0.0,
    device_held: float = 0.0,
) -> tuple[BudgetAccount, ...]:
    """Return the accounts of a run. The one in dollars always exists: without a cap nothing may be spent.

    `age_seconds` is the time since the run began, `device_held` the seconds that its evaluations hold.
    """
    spent, held = state.spent_amount, state.reserved_amount
    found = [
        BudgetAccount(Resource.USD, config.cap_usd, spent.usd, held.usd, wanted.usd),
        _capped_account(
            Resource.TOKENS, config.cap_tokens, spent.tokens, held=held.tokens, wanted=wanted.tokens
        ),
        _capped_account(Resource.CALLS, config.cap_calls, spent.calls, held=held.calls, wanted=wanted.calls),
        _capped_account(Resource.SECONDS, config.cap_seconds, age_seconds),
        _capped_account(
            Resource.DEVICE_SECONDS, config.cap_device_seconds, state.device_seconds, held=device_held
        ),
    ]
    return tuple(one for one in found if one is not None)


def day_accounts(
    day: DayBudget | None, caps: DayCaps, wanted: Amount = NO_AMOUNT
) -> tuple[BudgetAccount, ...]:
    """Return the accounts of a day; `day` is None if nothing was used of it."""
    spent, held = (day.spent, day.reserved_amount) if day is not None else (Amount(), Amount())
    found = [
        _capped_account(Resource.DAY_USD, caps.usd, spent.usd, held=held.usd, wanted=wanted.usd),
        _capped_account(
            Resource.DAY_TOKENS, caps.tokens, spent.tokens, held=held.tokens, wanted=wanted.tokens
        ),
        _capped_account(Resource.DAY_CALLS, caps.calls, spent.calls, held=held.calls, wanted=wanted.calls),
        _capped_account(
            Resource.DAY_SECONDS, caps.seconds, spent.seconds, held=held.seconds, wanted=wanted.seconds
        ),
        _capped_account(
            Resource.DAY_DEVICE_SECONDS,
            caps.device_seconds,
            spent.device_seconds,
            held=held.device_seconds,
            wanted=wanted.device_seconds,
        ),
    ]
    return tuple(one for one in found if one is not None)


def _capped_account(
    resource: Resource, cap: float | None, spent: float, *, held: float = 0.0, wanted: float = 0.0
) -> BudgetAccount | None:
    return None if cap is None else BudgetAccount(resource, cap, spent, held, wanted)


_TIME_RESOURCES = frozenset({Resource.SECONDS, Resource.DEVICE_SECONDS})
"""Resources that block calls without being used by them, once they are used up."""


def find_short_account(found: Iterable[BudgetAccount]) -> BudgetAccount | None:
    """Return an account without room for what is wanted; first one that will not have room later either."""
    short = [one for one in found if not one.has_room or _is_used_up(one)]
    return min(short, key=lambda one: one.may_have_room and not _is_used_up(one), default=None)


def may_free_room(account: BudgetAccount) -> bool:
    """Return whether calls in flight may free room in an account that has none now."""
    return account.may_have_room and account.held > 0 and not _is_used_up(account)


def _is_used_up(account: BudgetAccount) -> bool:
    return account.resource in _TIME_RESOURCES and account.spent >= account.cap


def run_warnings(state: RunState, found: Iterable[BudgetAccount]) -> Iterator[BudgetWarned]:
    """Yield the warning marks that were newly passed, the highest of each account."""
    yield from mark_warnings(state.warned, found)


def mark_warnings(warned: Mapping[Resource, int], found: Iterable[BudgetAccount]) -> Iterator[BudgetWarned]:
    """Yield the highest newly passed mark of each account."""
    for one in found:
        mark = max((mark for mark in WARNING_PERCENTS if one.cap and one.used_percent >= mark), default=0)
        if mark > warned.get(one.resource, 0):
            yield BudgetWarned(resource=one.resource, percent=mark, cap=one.cap)


def find_end_reason(state: RunState, config: RunConfig) -> str | None:
    """Return which budget ends a run between two rounds; None if there is room for another round.

    A cap that was too low for a call counts until it is raised.
    """
    for one in run_accounts(state, config):
        refused = state.short.get(one.resource)
        if refused is not None and one.cap <= refused:
            return (
                f"no room for another call: {_describe_spending(one)}"
                if one.resource in _CALL_RESOURCES
                else _describe_spending(one)
            )
        if one.spent > 0 and one.spent >= one.cap:
            return _describe_spending(one)
    return None


_CALL_RESOURCES = frozenset({Resource.USD, Resource.TOKENS, Resource.CALLS})

_SPENDING_TEXTS = {
    Resource.USD: "spent ${:.2f} of ${:.2f}",
    Resource.TOKENS: "{:.0f} of {:.0f} tokens",
    Resource.CALLS: "{:.0f} of {:.0f} calls",
    Resource.SECONDS: "the run has had its {1:.0f} s",
    Resource.DEVICE_SECONDS: "devices were used for {:.0f} of {:.0f} s",
}


def _describe_spending(one: BudgetAccount) -> str:
    return _SPENDING_TEXTS[one.resource].format(one.spent, one.cap)
