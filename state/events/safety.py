"""Events of circuit breakers, which leave a failing endpoint alone for a while."""

from __future__ import annotations

from typing import Literal

from state.events.base import Event
from state.model import ErrorInfo


class BreakerOpened(Event):
    family = "safety"
    type: Literal["BreakerOpened"] = "BreakerOpened"
    name: str
    error: ErrorInfo


class BreakerClosed(Event):
    family = "safety"
    type: Literal["BreakerClosed"] = "BreakerClosed"
    name: str
