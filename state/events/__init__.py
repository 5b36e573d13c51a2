"""The events: everything that can happen, in the past tense.

Each event is a frozen model that names its own `version` and its `family`; what it is registered in follows
from that. A change of its shape raises the version (`state.upcast` says when it also needs an upcaster);
stored rows are never rewritten. Events hold facts only. Large text (kernel sources, prompts, profiles,
requests) is a blob, named here by its digest.

An **effect** is two events: `...Started` (which names the blob of the whole request) and one terminal
outcome. `idempotency_key` derives the key under which a log accepts such an event only once, which makes a
second outcome impossible.
"""

# A module's events are all exported from here, so a new one cannot be forgotten.
# ruff: noqa: F403, F405

from __future__ import annotations

from typing import Any, get_args

from state.events.base import *
from state.events.call import *
from state.events.command import *
from state.events.decision import *
from state.events.effect import *
from state.events.learning import *
from state.events.run import *
from state.events.safety import *
from state.events.session import *
from state.model import EffectKey

EVENT_TYPES: dict[str, type[Event]] = {cls.__name__: cls for cls in list_event_types(Event)}
"""All events by the name of their type."""

FAMILIES: dict[str, tuple[str, ...]] = {
    family: tuple(name for name, cls in EVENT_TYPES.items() if cls.family == family)
    for family in get_args(Family)
}
"""Event types by family, as `agentctl tail --type` uses them."""


def idempotency_key(event: Event) -> str | None:
    """Return the key under which a run's log accepts `event` only once, or None if repeats are legal.

    Commands are unique by file id, starts of effects by delivery. All outcomes of an effect share one key, so
    a second outcome cannot be stored; the same holds for the attempts of a call.
    """
    match event:
        case EffectStarted(key=key, delivery=delivery):
            return f"{key}#start{delivery}"
        case EffectEnded(key=key):
            return f"{key}#outcome"
        case CallStarted(key=key, call=call, attempt=attempt):
            return f"{key}#call{call}.{attempt}"
        case CallEnded(key=key, call=call, attempt=attempt):
            return f"{key}#call{call}.{attempt}#outcome"
        case DayReserved(call=named) | DaySettled(call=named):
            return f"{named}#{type(event).__name__}"
        case CommandReceived(id=id_):
            return f"{id_}#received"
        case CommandCompleted(id=id_) | CommandRejected(id=id_):
            return f"{id_}#answer"
        case (
            RoundStarted(round=round_)
            | RoundDeadlinePassed(round=round_)
            | BeamSelected(round=round_)
            | RoundCompleted(round=round_)
            | SequencesGiven(round=round_)
            | ExperiencesGiven(round=round_)
            | TechniquesGiven(round=round_)
        ):
            return f"r{round_}#{type(event).__name__}"
        case RunCreated() | RunForked():
            return "created"
        case KernelRefuted(candidate=candidate):
            return f"{candidate}#refuted"
        case ProfileRecorded(key=key):
            return f"{key}#profile"
        case _:
            return _progress_key(event) if isinstance(event, EffectProgressed) else event.once_key


def _progress_key(event: EffectProgressed) -> str:
    return f"{progress_prefix(event.run, event.key)}{event.part}"


def progress_prefix(run: str, key: str) -> str:
    """Return how the idempotency keys of an effect's `EffectProgressed` events begin; a number follows."""
    return f"{run}/{key}#part"


def effect_key(event: Any) -> EffectKey:
    """Return the parsed key of an effect's event."""
    return EffectKey.parse(event.key)
