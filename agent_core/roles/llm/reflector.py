"""The reflector: the grade by arithmetic, as for every attempt, and a model's word on why it came so.

Where no kernel came of a plan there is nothing that hardware could teach, and no model is asked.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from agent_core.effects import ReflectRequest
from agent_core.roles import ReadBlob, ReflectionAnswer
from agent_core.roles.asking import Ask
from agent_core.roles.llm import profiles, telling
from agent_core.roles.llm.blocks import last_json
from agent_core.roles.llm.fitting import Items, Shed
from agent_core.roles.llm.questions import Question, answered
from agent_core.roles.llm.quoting import fenced, line
from agent_core.roles.mechanical import reflection_of
from state.model import METRICS, Evaluation, Frozen, Reflection

ORDER = (Shed("profile", 0),)
"""What goes when the prompt is too large: plan, prediction, outcome and grade stay."""


class _Reply(Frozen):
    """The block that a reflector's answer ends with."""

    lesson: Annotated[str, Field(min_length=1, max_length=1200), AfterValidator(lambda text: line(text, 600))]


async def reflect(request: ReflectRequest, read: ReadBlob, ask: Ask) -> ReflectionAnswer:
    """Return the graded note, its lesson a model's where there is a verdict to explain.

    Raises:
        RoleError: what the model failed with, `no_room`, or the fault of its second answer.
    """
    graded = reflection_of(request)
    if request.evaluation is None:
        return ReflectionAnswer(graded)
    question = Question("reflector", lambda _: _values(request, graded, read), ORDER)
    reply = await answered(ask, question, lambda answer: last_json(answer, _Reply, lambda one: one))
    return ReflectionAnswer(graded.model_copy(update={"lesson": reply.lesson}))


def _values(request: ReflectRequest, graded: Reflection, read: ReadBlob) -> Mapping[str, str | Items]:
    before = telling.profile_of(request.parent, read)
    counters = profiles.counters(before)
    pieces = tuple(f"{name} = {counters[name]:.6g}" for name in METRICS if name in counters)
    return {
        "plan": telling.plan(request.plan),
        "prediction": telling.prediction(request.plan),
        "outcome": _outcome(request, before, read),
        "grade": f"{graded.grade.value}; by arithmetic: {line(graded.lesson)}",
        "profile": Items(pieces, profiles.NONE, show=lambda left: fenced("\n".join(left), "text")),
    }


def _outcome(request: ReflectRequest, before: Mapping[str, Any], read: ReadBlob) -> str:
    found = request.evaluation
    assert found is not None
    told = [f"- verdict: {found.verdict.value}"]
    if found.benchmark:
        told += [
            f"- latency before: {telling.latency(request.parent.benchmark)}",
            f"- latency after: {telling.latency(found.benchmark)}",
            f"- bottleneck before: {request.parent.bottleneck or 'unknown'}",
            f"- bottleneck after: {found.bottleneck or 'unknown'}",
        ]
    if request.error:
        told.append(f"- error: {line(request.error.code)}: {line(request.error.message, 1000)}")
    return "\n".join(["", *told, *_moved(request, found, before, read)])


def _moved(
    request: ReflectRequest, found: Evaluation, before: Mapping[str, Any], read: ReadBlob
) -> list[str]:
    """Return how the counter that the prediction named has moved, where both profiles have it."""
    name, old = request.plan.prediction.counter, profiles.counters(before)
    if name is None or found.profile is None:
        return []
    new = profiles.counters(telling.profile_at(found.profile, read))
    if name not in old or name not in new:
        return []
    return [f"- {line(name)}: {old[name]:.6g} before, {new[name]:.6g} after"]
