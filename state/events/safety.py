"""Events that keep a run within its limits: budgets, circuit breakers, device leases."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from state.events.base import Event
from state.model import ErrorInfo, Key


class BudgetReserved(Event):
    type: Literal["BudgetReserved"] = "BudgetReserved"
    key: Key
    amount_usd: float = Field(ge=0, allow_inf_nan=False)


class BudgetSpent(Event):
    """Money was spent without an outcome: a call lost in a crash, charged at its full reservation."""

    type: Literal["BudgetSpent"] = "BudgetSpent"
    key: Key
    amount_usd: float = Field(ge=0, allow_inf_nan=False)
    reason: str


class BreakerOpened(Event):
    type: Literal["BreakerOpened"] = "BreakerOpened"
    name: str
    error: ErrorInfo


class BreakerClosed(Event):
    type: Literal["BreakerClosed"] = "BreakerClosed"
    name: str


class DeviceLeased(Event):
    type: Literal["DeviceLeased"] = "DeviceLeased"
    key: Key
    device: str


class DeviceReleased(Event):
    type: Literal["DeviceReleased"] = "DeviceReleased"
    key: Key
    device: str
