"""The system fold: the state that all runs share.

This is commands, the configuration, the day's budget, circuit breakers, and what runs learnt. Like the run
fold it is pure and total. The state keeps only commands without an answer, so it stays small however long the
log is; answers are read from the log.
"""

from __future__ import annotations

import hashlib
from typing import Any

from pydantic import Field, JsonValue

from state.day_budget import DayBudget, apply_day_reserved, apply_day_settled, apply_day_warned
from state.events import (
    BreakerClosed,
    BreakerOpened,
    BudgetWarned,
    CommandCompleted,
    CommandReceived,
    CommandRejected,
    ConfigChanged,
    ConfigRefused,
    DayReserved,
    DaySettled,
    DeviceCalibrated,
    EffectProgressed,
    Event,
    ExperiencesForgotten,
    ExperiencesLearnt,
    LogRewritten,
    ModelTraitsLearnt,
    SequenceLearnt,
    TechniquesLearnt,
)
from state.fold import IllegalEvent
from state.learning import add_experiences, add_techniques, retain_strongest
from state.model import (
    Digest,
    FrozenModel,
    LearntExperience,
    LearntSequence,
    LearntTechnique,
    LearntTraits,
    canonical_json,
)


class PendingCommand(FrozenModel):
    """A command that was received and has no answer yet."""

    verb: str
    payload: Digest


class SystemState(FrozenModel):
    """What all runs share.

    `pending` are the commands without an answer, in order of arrival. `config` is the last accepted
    configuration; `prompts` is the version of the prompts for new runs, None if nobody edited any; `refused`
    says what was wrong with a later change of either.

    `sequences` are sequences of ended runs that paid, in the order in which they were learnt. `experiences`
    come from runs and from files, those from files last. The numbers of both are bounded. `techniques` are
    those that models invented.

    `day` is what runs took of the day's budget. `breakers` says why an endpoint is not called for a while.
    `traits` are what was learnt of models, by ENDPOINT/MODEL.
    """

    pending: dict[str, PendingCommand] = Field(default_factory=dict)
    answered: int = 0
    config: JsonValue = None
    prompts: Digest | None = None
    refused: str | None = None
    sequences: tuple[LearntSequence, ...] = ()
    experiences: tuple[LearntExperience, ...] = ()
    techniques: tuple[LearntTechnique, ...] = ()
    day: DayBudget | None = None
    breakers: dict[str, str] = Field(default_factory=dict)
    traits: dict[str, LearntTraits] = Field(default_factory=dict)


def apply_system_event(state: SystemState | None, event: Event) -> SystemState:
    """Return the state after `event`.

    Raises:
        IllegalEvent: the event answers a command that is not pending, repeats a command, or belongs to a run.
    """
    state = state or SystemState()
    match event:
        case CommandReceived() if event.id in state.pending:
            raise IllegalEvent(f"command {event.id} was received already")
        case CommandReceived():
            entry = PendingCommand(verb=event.verb, payload=event.payload)
            return state.model_copy(update={"pending": {**state.pending, event.id: entry}})
        case CommandCompleted() | CommandRejected():
            if event.id not in state.pending:
                raise IllegalEvent(f"{type(event).__name__}: command {event.id} does not wait for an answer")
            rest = {id_: entry for id_, entry in state.pending.items() if id_ != event.id}
            return state.model_copy(update={"pending": rest, "answered": state.answered + 1})
        case ConfigChanged():
            taken = {"config": event.config, "prompts": event.prompts or state.prompts, "refused": None}
            return state.model_copy(update=taken)
        case ConfigRefused():
            return state.model_copy(update={"refused": event.error.message})
        case SequenceLearnt() | ExperiencesLearnt() | ExperiencesForgotten() | TechniquesLearnt():
            return state.model_copy(update=_apply_learning(state, event))
        case DayReserved() | DaySettled() | BudgetWarned():
            return state.model_copy(update={"day": _apply_day(state.day, event)})
        case BreakerOpened() | BreakerClosed():
            return state.model_copy(update={"breakers": _apply_breaker(state, event)})
        case ModelTraitsLearnt():
            learnt = LearntTraits(address=event.address, day=event.day, traits=event.traits)
            return state.model_copy(update={"traits": {**state.traits, event.model: learnt}})
        case LogRewritten() | DeviceCalibrated() | EffectProgressed():
            return state
        case _:
            raise IllegalEvent(f"{type(event).__name__} does not belong in the system stream")


def _apply_learning(
    state: SystemState, event: SequenceLearnt | ExperiencesLearnt | ExperiencesForgotten | TechniquesLearnt
) -> dict[str, Any]:
    match event:
        case SequenceLearnt():
            return {"sequences": retain_strongest(state.sequences, event.sequence)}
        case TechniquesLearnt():
            return {"techniques": add_techniques(state.techniques, event.techniques)}
        case ExperiencesLearnt():
            return {"experiences": add_experiences(state.experiences, event.experiences)}
        case ExperiencesForgotten():
            return {"experiences": tuple(one for one in state.experiences if one.id not in event.ids)}


def _apply_day(day: DayBudget | None, event: DayReserved | DaySettled | BudgetWarned) -> DayBudget | None:
    match event:
        case DayReserved():
            return apply_day_reserved(day or DayBudget(date=event.day), event)
        case DaySettled():
            return apply_day_settled(day, event)
        case BudgetWarned():
            return apply_day_warned(day, event)


def _apply_breaker(state: SystemState, event: BreakerOpened | BreakerClosed) -> dict[str, str]:
    rest = {name: why for name, why in state.breakers.items() if name != event.name}
    return rest | ({event.name: event.error.message} if isinstance(event, BreakerOpened) else {})


def dump_semantic(state: SystemState) -> dict[str, Any]:
    """Return the state as JSON-like data, without unset fields, so that hashes of older logs match."""
    unset = {name for name in _ONLY_IF_SET if not getattr(state, name)}
    return state.model_dump(mode="json", exclude=unset)


def state_hash(state: SystemState) -> str:
    """Return the SHA-256 of the state, in hexadecimal."""
    return hashlib.sha256(canonical_json(dump_semantic(state))).hexdigest()


_ONLY_IF_SET = ("prompts", "sequences", "experiences", "techniques", "day", "breakers", "traits")
