"""Budgets of a run and of a day: what is left of each resource, what a call may still take, when to warn.

All of it is arithmetic on folds: what is spent, what is held for calls under way, and the caps. A call is
let through only where spent, held and its own ceiling are within every cap together, so that what is spent
never exceeds one, whatever becomes of the calls under way. Where only what is held stands in the way, it may
be freed: then a call waits, else there is no room for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from state.day_budget import DayBudget
from state.events import BudgetShort, BudgetWarned
from state.fold import RunState
from state.model import Amount, Resource, RunConfig, round_usd

WARNING_PERCENTS = (50, 80)
"""The shares of a cap that are warned of, in percent."""

DAILY_RESOURCES = frozenset(
    {
        Resource.DAY_USD,
        Resource.DAY_TOKENS,
        Resource.DAY_CALLS,
        Resource.DAY_SECONDS,
        Resource.DAY_DEVICE_SECONDS,
    }
)
"""What there is again on the next day."""

DEVICE_RESOURCES = frozenset({Resource.DEVICE_SECONDS, Resource.DAY_DEVICE_SECONDS})
"""What evaluations take of, and no calls."""

NO_AMOUNT = Amount()


@dataclass(frozen=True, slots=True)
class DayCaps:
    """What all runs may take on one day (UTC): calls, time under way, time on devices; None is no cap."""

    usd: float | None = None
    tokens: int | None = None
    calls: int | None = None
    seconds: float | None = None
    device_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class BudgetAccount:
    """One resource: its cap, what is spent and held of it, and what is wanted of it now."""

    resource: Resource
    cap: float
    spent: float
    held: float = 0.0
    wanted: float = 0.0

    @property
    def has_room(self) -> bool:
        """Whether what is wanted is there."""
        return round_usd(self.spent + self.held + self.wanted) <= self.cap

    @property
    def may_have_room(self) -> bool:
        """Whether it would be there if nothing were taken of what is held."""
        return round_usd(self.spent + self.wanted) <= self.cap

    @property
    def remaining(self) -> float:
        """What is neither spent nor held."""
        return max(0.0, round_usd(self.cap - self.spent - self.held))

    @property
    def used_percent(self) -> float:
        """How much of the cap is spent or held; all of it where the cap is 0.

        Of time on devices it is what is spent: evaluations hold far more of it than they take.
        """
        taken = self.spent if self.resource in DEVICE_RESOURCES else self.spent + self.held
        return 100.0 * taken / self.cap if self.cap else 100.0

    def make_shortage_event(self) -> BudgetShort:
        """Return the event that says so."""
        return BudgetShort(resource=self.resource, cap=self.cap, left=self.remaining, wanted=self.wanted)


def run_accounts(
    state: RunState,
    config: RunConfig,
    wanted: Amount = NO_AMOUNT,
    *,
    age_seconds: float = 0.0,
    device_held: float = 0.0,
) -> tuple[BudgetAccount, ...]:
    """Return the accounts of a run. There is one in dollars always: without a cap nothing may be spent.

    `age_seconds` is how long ago the run began, `device_held` the seconds that its evaluations hold.
    """
    spent, held = state.spent_amount, state.reserved_amount
    found = [
        BudgetAccount(Resource.USD, config.cap_usd, spent.usd, held.usd, wanted.usd),
        _capped_account(Resource.TOKENS, config.cap_tokens, spent.tokens, held.tokens, wanted.tokens),
        _capped_account(Resource.CALLS, config.cap_calls, spent.calls, held.calls, wanted.calls),
        _capped_account(Resource.SECONDS, config.cap_seconds, age_seconds),
        _capped_account(
            Resource.DEVICE_SECONDS, config.cap_device_seconds, state.device_seconds, device_held
        ),
    ]
    return tuple(one for one in found if one is not None)


def day_accounts(
    day: DayBudget | None, caps: DayCaps, wanted: Amount = NO_AMOUNT
) -> tuple[BudgetAccount, ...]:
    """Return the accounts of a day, None as `day` where nothing was taken of it."""
    spent, held = (day.spent, day.reserved_amount) if day is not None else (Amount(), Amount())
    found = [
        _capped_account(Resource.DAY_USD, caps.usd, spent.usd, held.usd, wanted.usd),
        _capped_account(Resource.DAY_TOKENS, caps.tokens, spent.tokens, held.tokens, wanted.tokens),
        _capped_account(Resource.DAY_CALLS, caps.calls, spent.calls, held.calls, wanted.calls),
        _capped_account(Resource.DAY_SECONDS, caps.seconds, spent.seconds, held.seconds, wanted.seconds),
        _capped_account(
            Resource.DAY_DEVICE_SECONDS,
            caps.device_seconds,
            spent.device_seconds,
            held.device_seconds,
            wanted.device_seconds,
        ),
    ]
    return tuple(one for one in found if one is not None)


def _capped_account(
    resource: Resource, cap: float | None, spent: float, held: float = 0.0, wanted: float = 0.0
) -> BudgetAccount | None:
    return None if cap is None else BudgetAccount(resource, cap, spent, held, wanted)


_TIME_RESOURCES = frozenset({Resource.SECONDS, Resource.DEVICE_SECONDS})
"""What calls wait for without taking any of it: it is used up when it is reached."""


def find_short_account(found: Iterable[BudgetAccount]) -> BudgetAccount | None:
    """Return the account that has no room for what is wanted; of several one that will not have any first."""
    short = [one for one in found if not one.has_room or _is_used_up(one)]
    return min(short, key=lambda one: one.may_have_room and not _is_used_up(one), default=None)


def may_free_room(account: BudgetAccount) -> bool:
    """Return whether calls under way may leave room in an account that has none now."""
    return account.may_have_room and account.held > 0 and not _is_used_up(account)


def _is_used_up(account: BudgetAccount) -> bool:
    return account.resource in _TIME_RESOURCES and account.spent >= account.cap


def run_warnings(state: RunState, found: Iterable[BudgetAccount]) -> Iterator[BudgetWarned]:
    """Yield the marks that were passed and not warned of yet, the highest of each account."""
    yield from mark_warnings(state.warned, found)


def mark_warnings(warned: Mapping[Resource, int], found: Iterable[BudgetAccount]) -> Iterator[BudgetWarned]:
    """Yield the highest mark that each account has passed and that was not warned of yet."""
    for one in found:
        mark = max((mark for mark in WARNING_PERCENTS if one.cap and one.used_percent >= mark), default=0)
        if mark > warned.get(one.resource, 0):
            yield BudgetWarned(resource=one.resource, percent=mark, cap=one.cap)


def find_end_reason(state: RunState, config: RunConfig) -> str | None:
    """Say which budget a run ends for, between two rounds; None where there is room for another.

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
