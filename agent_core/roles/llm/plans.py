"""Plans as models write them: their shape, what they may name, and the plan that is kept of one.

A planner answers with one, or ends its session with several.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated

from pydantic import AfterValidator, Field, JsonValue

from agent_core.inventions import ORIGIN_FIELD
from agent_core.roles.llm.blocks import AnswerFault
from agent_core.roles.llm.quoting import single_line
from agent_core.roles.llm.techniques import accept_technique
from state.model import FrozenModel, LearntTechnique, Plan, Prediction

MOST_SPEEDUP = 1000.0
_COUNTER = re.compile(r"[a-z][a-z0-9_]{0,63}")

ShortText = Annotated[str, Field(min_length=1, max_length=400), AfterValidator(single_line)]
LongText = Annotated[
    str, Field(min_length=1, max_length=2000), AfterValidator(lambda text: single_line(text, 2000))
]


class InventedTechnique(FrozenModel):
    """What a model says of a technique that it invents."""

    title: ShortText
    description: ShortText


class PlanReply(FrozenModel):
    """A plan as a model writes it; its `reasoning` comes before what follows from it."""

    reasoning: Annotated[str, Field(max_length=8000)] = ""
    technique: Annotated[str, Field(min_length=1, max_length=80)]
    site: ShortText
    title: ShortText
    bottleneck: ShortText
    steps: Annotated[tuple[LongText, ...], Field(min_length=1, max_length=20)]
    prediction: Prediction
    risk: Annotated[str, Field(max_length=1000), AfterValidator(single_line)]
    invented: InventedTechnique | None = None


@dataclass(frozen=True, slots=True)
class PlanRules:
    """What a plan may name: techniques of the menu, those of this run and of others, the profile's counters.

    Without `counters` there is no profile. A session may submit up to `most` plans.
    """

    techniques: frozenset[str]
    tried: frozenset[str] = frozenset()
    elsewhere: Mapping[str, LearntTechnique] = field(default_factory=dict)
    counters: frozenset[str] | None = None
    most: int = 1


def check_plan(reply: PlanReply, rules: PlanRules) -> PlanReply:
    """Return a plan under the id by which its technique is known.

    Raises:
        AnswerFault: `bad_prediction` or `unknown_technique`.
    """
    _check_prediction(reply.prediction, rules.counters)
    technique = accept_technique(reply.technique, rules.techniques)
    if technique not in {*rules.techniques, *rules.tried, *rules.elsewhere} and reply.invented is None:
        raise AnswerFault("unknown_technique", f"{technique} is new: say under `invented` what it is")
    return reply.model_copy(update={"technique": technique})


def build_plan(reply: PlanReply, rules: PlanRules, told: Sequence[str] = ()) -> Plan:
    """Return a checked plan as it is kept; `told` are the ids of the experiences that the planner saw."""
    detail: dict[str, JsonValue] = {
        "steps": list(reply.steps),
        "bottleneck": reply.bottleneck,
        "risk": reply.risk,
    }
    if told:
        detail["told"] = list(told)
    elsewhere = rules.elsewhere.get(reply.technique)
    if elsewhere is not None:  # so that the executor knows the technique and its inventor gets the credit
        about = {
            "title": elsewhere.title,
            "description": elsewhere.description,
            ORIGIN_FIELD: elsewhere.event_id,
        }
        detail["invented"] = {**about}
    elif reply.invented is not None:
        detail["invented"] = reply.invented.model_dump()
    said = reply.prediction
    return Plan(
        technique=reply.technique,
        site=single_line(reply.site, 200),
        title=single_line(reply.title, 200),
        prediction=said.model_copy(update={"reason": single_line(said.reason, 1000)}),
        detail=detail,
    )


def _check_prediction(said: Prediction, counters: frozenset[str] | None) -> None:
    if not 1 / MOST_SPEEDUP <= said.speedup <= MOST_SPEEDUP:
        raise AnswerFault("bad_prediction", f"prediction.speedup: {said.speedup:g} is no speed-up to expect")
    if said.counter is None:
        return
    there = _COUNTER.fullmatch(said.counter) if counters is None else said.counter in counters
    if not there:
        counter = single_line(said.counter, 80)
        text = f"prediction.counter: the profile has no {counter!r}; name one that is there"
        raise AnswerFault("bad_prediction", text)
