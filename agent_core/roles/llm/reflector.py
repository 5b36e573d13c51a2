"""The reflector: grades an attempt by arithmetic, and asks a model why it turned out that way.

If a plan led to no kernel, the hardware can teach nothing, and no model is asked.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from agent_core.effects import ReflectRequest
from agent_core.roles import ReadBlob, ReflectionAnswer
from agent_core.roles.ask_protocol import AskModel
from agent_core.roles.llm import profiles, prompt_values
from agent_core.roles.llm.answer_forms import make_answer_schema
from agent_core.roles.llm.blocks import last_json
from agent_core.roles.llm.fitting import PromptItems, ShedStep
from agent_core.roles.llm.own_words import require_own_words
from agent_core.roles.llm.questions import Question, ask_question
from agent_core.roles.llm.quoting import fence_text, single_line
from agent_core.roles.mechanical import reflection_of
from state.model import Evaluation, FrozenModel, Reflection
from targets.registry import load_target

SHED_ORDER = (ShedStep("profile", 0),)
"""What is dropped if the prompt is too large; plan, prediction, outcome and grade stay."""


class _ReflectorReply(FrozenModel):
    """The block that a reflector's answer ends with."""

    lesson: Annotated[
        str, Field(min_length=1, max_length=1200), AfterValidator(lambda text: single_line(text, 600))
    ]


async def reflect_on_attempt(request: ReflectRequest, read: ReadBlob, ask: AskModel) -> ReflectionAnswer:
    """Return the graded note; if there is a verdict to explain, a model writes its lesson.

    Raises:
        RoleError: the model's failure, `no_room`, or the fault of the model's second answer.
    """
    graded = reflection_of(request)
    if request.evaluation is None:
        return ReflectionAnswer(graded)
    question = Question(
        "reflector",
        lambda _: _prompt_values(request, graded, read),
        SHED_ORDER,
        make_answer_schema("lesson", _ReflectorReply),
    )
    reply = await ask_question(
        ask,
        question,
        lambda answer: last_json(answer, _ReflectorReply, lambda one: require_own_words(one, "reflector")),
    )
    return ReflectionAnswer(graded.model_copy(update={"lesson": reply.lesson}))


def _prompt_values(
    request: ReflectRequest, graded: Reflection, read: ReadBlob
) -> Mapping[str, str | PromptItems]:
    before = prompt_values.profile_of(request.parent, read)
    counters = profiles.profile_counters(before)
    assert request.evaluation is not None
    known = load_target(request.evaluation.target).profile.counters
    pieces = tuple(
        f"{name} = {profiles.format_number(counters[name])}" for name in known if counters.get(name)
    )
    return {
        "plan": prompt_values.describe_plan(request.plan),
        "prediction": prompt_values.describe_prediction(request.plan),
        "outcome": _describe_outcome(request, before, read),
        "grade": f"{graded.grade.value}; by arithmetic: {single_line(graded.lesson)}",
        "profile": PromptItems(
            pieces, profiles.NO_PROFILE, show=lambda left: fence_text("\n".join(left), "text")
        ),
    }


def _describe_outcome(request: ReflectRequest, before: Mapping[str, Any], read: ReadBlob) -> str:
    found = request.evaluation
    assert found is not None
    told = [f"- verdict: {found.verdict.value}"]
    if found.benchmark:
        told += [
            f"- latency before: {prompt_values.format_latency(request.parent.benchmark)}",
            f"- latency after: {prompt_values.format_latency(found.benchmark)}",
            f"- bottleneck before: {request.parent.bottleneck or 'unknown'}",
            f"- bottleneck after: {found.bottleneck or 'unknown'}",
        ]
    if request.error:
        told.append(f"- error: {single_line(request.error.code)}: {single_line(request.error.message, 1000)}")
    return "\n".join(["", *told, *_counter_change(request, found, before, read=read)])


def _counter_change(
    request: ReflectRequest, found: Evaluation, before: Mapping[str, Any], *, read: ReadBlob
) -> list[str]:
    """Return the change of the counter that the prediction named, if both profiles have it."""
    name, old = request.plan.prediction.counter, profiles.profile_counters(before)
    if name is None or found.profile is None:
        return []
    new = profiles.profile_counters(prompt_values.profile_at(found.profile, read))
    if name not in old or name not in new:
        return []
    return [f"- {single_line(name)}: {old[name]:.6g} before, {new[name]:.6g} after"]
