"""The day's budget: what all runs used since midnight UTC, and what is reserved for work in flight.

It covers calls to models, time on devices, and the time in which runs are in progress. A reservation counts
for the day on which it was made. A clock that goes back does not bring an earlier day back.
"""

from __future__ import annotations

from pydantic import Field

from state.events import BudgetWarned, DayReserved, DaySettled
from state.model import Amount, FrozenModel, Resource


class BudgetHold(FrozenModel):
    """What is reserved for one call in flight, and for which day."""

    date: str
    amount: Amount


class DayBudget(FrozenModel):
    """One day: what was spent on it, and all reservations, including those from earlier days.

    `warned` holds the highest mark of each cap, in percent, for which a warning was given on this day.
    """

    date: str
    spent: Amount = Field(default_factory=Amount)
    held: dict[str, BudgetHold] = Field(default_factory=dict)
    warned: dict[Resource, int] = Field(default_factory=dict)

    @property
    def reserved_amount(self) -> Amount:
        """What is reserved of this day's budget."""
        return sum((one.amount for one in self.held.values() if one.date == self.date), Amount())

    def for_date(self, date: str) -> DayBudget:
        """Return the budget for `date`: a new day if that is later."""
        return self if date <= self.date else DayBudget(date=date, held=self.held)


def apply_day_reserved(day: DayBudget, event: DayReserved) -> DayBudget:
    """Return the day with a reservation for a call in flight."""
    now = day.for_date(event.day)
    hold = BudgetHold(date=now.date, amount=event.amount)
    return now.model_copy(update={"held": {**now.held, event.call: hold}})


def apply_day_warned(day: DayBudget | None, event: BudgetWarned) -> DayBudget | None:
    """Return the day with the warning recorded, so that it is not given again for this mark."""
    if day is None:
        return day
    return day.model_copy(update={"warned": {**day.warned, event.resource: event.percent}})


def apply_day_settled(day: DayBudget | None, event: DaySettled) -> DayBudget | None:
    """Return the day after a call was settled; without a reservation (after a repair), it is the same."""
    hold = day.held.get(event.call) if day is not None else None
    if day is None or hold is None:
        return day
    rest = {name: one for name, one in day.held.items() if name != event.call}
    spent = day.spent + event.amount if hold.date == day.date else day.spent
    return day.model_copy(update={"held": rest, "spent": spent})
