"""The day's budget: what all runs took since midnight UTC, and what is under way may take.

It is of calls to models, of time on devices, and of the time in which runs are under way. What is reserved
counts on the day on which it was. A clock that goes back does not bring an earlier day back.
"""

from __future__ import annotations

from pydantic import Field

from state.events import BudgetWarned, DayReserved, DaySettled
from state.model import Amount, FrozenModel, Resource


class BudgetHold(FrozenModel):
    """What is reserved for one call under way, and on which day."""

    date: str
    amount: Amount


class DayBudget(FrozenModel):
    """One day: what was spent on it, and all that is held, also of calls that began on an earlier one.

    `apply_day_warned` are the marks that were warned of on it, in percent of a cap.
    """

    date: str
    spent: Amount = Field(default_factory=Amount)
    held: dict[str, BudgetHold] = Field(default_factory=dict)
    warned: dict[Resource, int] = Field(default_factory=dict)

    @property
    def reserved_amount(self) -> Amount:
        """What is held of this day's budget."""
        return sum((one.amount for one in self.held.values() if one.date == self.date), Amount())

    def for_date(self, date: str) -> DayBudget:
        """Return the day as it is on `date`: a new one when that is later."""
        return self if date <= self.date else DayBudget(date=date, held=self.held)


def apply_day_reserved(day: DayBudget, event: DayReserved) -> DayBudget:
    """Return the day with a call under way."""
    now = day.for_date(event.day)
    hold = BudgetHold(date=now.date, amount=event.amount)
    return now.model_copy(update={"held": {**now.held, event.call: hold}})


def apply_day_warned(day: DayBudget | None, event: BudgetWarned) -> DayBudget | None:
    """Return the day on which this mark of a cap is not warned of again."""
    if day is None:
        return day
    return day.model_copy(update={"warned": {**day.warned, event.resource: event.percent}})


def apply_day_settled(day: DayBudget | None, event: DaySettled) -> DayBudget | None:
    """Return the day after a call; one that nobody reserved, as after a repair, changes nothing."""
    hold = day.held.get(event.call) if day is not None else None
    if day is None or hold is None:
        return day
    rest = {name: one for name, one in day.held.items() if name != event.call}
    spent = day.spent + event.amount if hold.date == day.date else day.spent
    return day.model_copy(update={"held": rest, "spent": spent})
