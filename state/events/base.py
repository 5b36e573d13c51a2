"""Base classes of events: all have a version and a family, and events of effects also have a key."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Literal

from pydantic import Field

from state.model import Digest, FrozenModel, Key, Usage

Family = Literal[
    "run", "command", "log", "round", "plan", "execution", "evaluation", "decision", "learning", "safety",
    "call",
]  # fmt: skip


class Event(FrozenModel):
    """Base of all events.

    `version` is the version of the payload's shape, `family` the group that `agentctl tail --type` knows it
    by. A class with a field `type` is an event; others are bases of events.
    """

    version: ClassVar[int] = 1
    family: ClassVar[Family]

    @property
    def once_key(self) -> str | None:
        """The key under which a log takes this event only once; None if repeats are legal.

        `idempotency_key` knows the keys of older events.
        """
        return None


class EffectStarted(Event):
    """An effect was admitted. `delivery` counts starts of the same effect; it rises after a crash."""

    key: Key
    request: Digest
    delivery: int = Field(default=1, ge=1)
    reserved_usd: float = Field(default=0.0, ge=0, allow_inf_nan=False)


class EffectEnded(Event):
    """Base of all terminal outcomes."""

    key: Key
    usage: Usage = Field(default_factory=Usage)


def list_event_types(base: type[Event]) -> Iterator[type[Event]]:
    """Yield the events among the subclasses of `base`, in the order of their definition."""
    for cls in base.__subclasses__():
        if "type" in cls.model_fields:
            yield cls
        yield from list_event_types(cls)
