"""The planner: one change to a kernel, with a prediction of what it brings, out of profile, memory and menu.

All plans of a kernel in a round share their prompt but for its end: there the menu has gaps of its own, the
counters an order of their own, and the use that is to be made of the menu goes by the plan's number; of what
was learnt each plan is told a part of its own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Annotated

from pydantic import AfterValidator, Field, JsonValue

from agent_core.effects import LearningContext, PlanRequest
from agent_core.inventions import FROM
from agent_core.prompting import Kind, Prompts, builtin
from agent_core.roles import PlanAnswer, ReadBlob
from agent_core.roles.asking import Ask
from agent_core.roles.llm import memory, profiles, techniques, telling
from agent_core.roles.llm.blocks import AnswerFault, last_json
from agent_core.roles.llm.fitting import Items, Shed
from agent_core.roles.llm.questions import Question, answered
from agent_core.roles.llm.quoting import fenced, line
from state.model import METRICS, Candidate, EffectKey, Frozen, LearntTechnique, Plan, Prediction
from targets.registry import load_target

ORDER = (
    Shed("attempts", 8),
    Shed("experiences", 4),
    Shed("reflections", 6),
    Shed("interface", 1),
    Shed("examples", 1),
    Shed("attempts", 2),
    Shed("profile", 24),
    Shed("interface", 0),
    Shed("examples", 0),
    Shed("reflections", 0),
    Shed("experiences", 0),
    Shed("attempts", 0),
    Shed("profile", 3),
    Shed("menu", 3),
)
"""What goes first when the prompt is too large, down to how many: problem, reference and kernel stay."""

APPROACHES = ("apply", "inspired", "apply", "different")
"""How plan 0, 1, 2, ... of a kernel is to use the menu, over and over, by the names of the prompts' texts."""

MOST_SPEEDUP = 1000.0
_COUNTER = re.compile(r"[a-z][a-z0-9_]{0,63}")


@dataclass(frozen=True, slots=True)
class PlannerOptions:
    """What a planner is shown: `metrics` of the profile; menu and memory, of which so much is left out."""

    metrics: tuple[str, ...] = METRICS
    dropout_percent: float = 70.0
    memory_dropout_percent: float = 50.0
    least: int = 3
    """Techniques that stay on the menu, and experiences that stay in the memory, whatever is drawn."""


Short = Annotated[str, Field(min_length=1, max_length=400), AfterValidator(line)]
Long = Annotated[str, Field(min_length=1, max_length=2000), AfterValidator(lambda text: line(text, 2000))]


class _Invented(Frozen):
    title: Short
    description: Short


class _Reply(Frozen):
    """The block that a planner's answer ends with."""

    technique: Annotated[str, Field(min_length=1, max_length=80)]
    site: Short
    title: Short
    bottleneck: Short
    steps: Annotated[tuple[Long, ...], Field(min_length=1, max_length=20)]
    prediction: Prediction
    risk: Annotated[str, Field(max_length=1000), AfterValidator(line)]
    invented: _Invented | None = None


async def plan(request: PlanRequest, read: ReadBlob, ask: Ask, options: PlannerOptions) -> PlanAnswer:
    """Return one plan.

    Raises:
        RoleError: what the model failed with, `no_room`, or the fault of its second answer.
    """
    profile = telling.profile_of(request.parent, read)
    context = _context(request, read)
    told = [one.id for one in _experiences(request, context, options)]
    elsewhere = {one.technique: one for one in context.techniques}
    question = Question("planner", lambda prompts: _values(request, read, options, prompts), ORDER)
    ids = techniques.known(builtin(), request.target)

    def check(reply: _Reply) -> _Reply:
        _check_prediction(reply.prediction, profiles.names(profile) if profile else None)
        technique = techniques.accepted(reply.technique, ids)
        if technique not in {*ids, *context.credits, *elsewhere} and reply.invented is None:
            raise AnswerFault("unknown_technique", f"{technique} is new: say under `invented` what it is")
        return reply.model_copy(update={"technique": technique})

    reply = await answered(ask, question, lambda answer: last_json(answer, _Reply, check))
    return PlanAnswer(_plan(reply, elsewhere.get(reply.technique), told))


def _plan(reply: _Reply, elsewhere: LearntTechnique | None, told: Sequence[str]) -> Plan:
    """Return an answer as a plan; `told` are the experiences that its planner was shown, by their ids."""
    detail: dict[str, JsonValue] = {
        "steps": list(reply.steps),
        "bottleneck": reply.bottleneck,
        "risk": reply.risk,
    }
    if told:
        detail["told"] = list(told)
    if elsewhere is not None:  # whoever carries it out is to know what it is, and its credit whose it is
        about = {"title": elsewhere.title, "description": elsewhere.description, FROM: elsewhere.place}
        detail["invented"] = {**about}
    elif reply.invented is not None:
        detail["invented"] = reply.invented.model_dump()
    said = reply.prediction
    return Plan(
        technique=reply.technique,
        site=line(reply.site, 200),
        title=line(reply.title, 200),
        prediction=said.model_copy(update={"reason": line(said.reason, 1000)}),
        detail=detail,
    )


def _check_prediction(said: Prediction, counters: frozenset[str] | None) -> None:
    if not 1 / MOST_SPEEDUP <= said.speedup <= MOST_SPEEDUP:
        raise AnswerFault("bad_prediction", f"prediction.speedup: {said.speedup:g} is no speed-up to expect")
    if said.counter is None:
        return
    there = _COUNTER.fullmatch(said.counter) if counters is None else said.counter in counters
    if not there:
        text = f"prediction.counter: the profile has no {line(said.counter, 80)!r}; name one that is there"
        raise AnswerFault("bad_prediction", text)


def _context(request: PlanRequest, read: ReadBlob) -> LearningContext:
    return LearningContext.model_validate_json(read(request.context))


def _values(
    request: PlanRequest, read: ReadBlob, options: PlannerOptions, prompts: Prompts
) -> Mapping[str, str | Items]:
    context = _context(request, read)
    source = telling.source_of(request.parent, read)
    told = telling.problem(request.problem, request.size, read)
    key = EffectKey.parse(request.key)
    ids = techniques.known(prompts, request.target)
    profile = telling.profile_of(request.parent, read)
    approaches = {one.name: one.text for one in prompts.sections(Kind.APPROACH, request.target)}
    menu = techniques.offered(ids, context, options.dropout_percent, options.least, _chance(request, "menu"))
    return {
        **told,
        **telling.sections(prompts, request.target, source, *told.values()),
        "experiences": memory.experiences(_experiences(request, context, options)),
        "reflections": memory.reflections(context, request.parent.bottleneck, key.round),
        "attempts": memory.attempts(context, request.parent.id),
        "kernel": fenced(source, load_target(request.target).language.fence),
        "standing": standing(request),
        "profile": profiles.shown(profile, source, options.metrics, _chance(request, "profile")),
        "approach": approaches.get(APPROACHES[key.plan % len(APPROACHES)], ""),
        "menu": menu,
        "place": f"plan {key.plan + 1} of {request.plans}",
    }


def _experiences(
    request: PlanRequest, context: LearningContext, options: PlannerOptions
) -> Sequence[memory.Told]:
    """Return what one plan is told of what was learnt: some of it, drawn, so that not all plans are alike."""
    chance = _chance(request, "memory")
    return memory.drawn(memory.told(context), options.memory_dropout_percent, options.least, chance)


def _chance(request: PlanRequest, what: str) -> Random:
    """Return draws that follow from the request alone, apart for each use."""
    return Random(f"{request.draw}|{what}")  # noqa: S311 - a search, no secret


def standing(request: PlanRequest) -> str:
    """Return where a kernel stands: its latency, the best one, its share of the bounds, its bottleneck."""
    parent, bounds = request.parent, request.bounds
    shares = (("roofline", bounds.plain_ms), ("device's own rates", bounds.tight_ms))
    return "\n".join(
        [
            f"- latency: {telling.latency(parent.benchmark)}",
            f"- best so far in this run: {request.best_ms:.6g} ms",
            *(
                f"- bound by the {name}: {ms:.6g} ms, of which this kernel reaches"
                f" {100 * ms / parent.latency_ms:.1f} %"
                for name, ms in shares
            ),
            f"- bottleneck: {parent.bottleneck or 'unknown'}",
            f"- made by: {_origin(parent)}",
        ]
    )


def _origin(parent: Candidate) -> str:
    return (
        f"{line(parent.technique)}: {line(parent.title)}" if parent.technique else line(parent.title) or "?"
    )
