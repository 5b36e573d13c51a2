"""The executor: writes the kernel of a plan, whole or as edits of the parent kernel."""

from __future__ import annotations

from collections.abc import Mapping

from agent_core.effects import ImplementRequest
from agent_core.prompting import FileKind, PromptSet, builtin_prompts
from agent_core.roles import KernelAnswer, ReadBlob
from agent_core.roles.ask_protocol import AskModel
from agent_core.roles.llm import blocks, edits, prompt_values, techniques
from agent_core.roles.llm.fitting import PromptItems, ShedStep
from agent_core.roles.llm.questions import Question, ask_question
from agent_core.roles.llm.quoting import fence_text, single_line
from state.model import EffectKey
from targets.base import Language
from targets.registry import load_target

SHED_ORDER = (
    ShedStep("interface", 1),
    ShedStep("examples", 1),
    ShedStep("examples", 0),
    ShedStep("interface", 0),
)
"""What is dropped first if the prompt is too large; problem, reference, plan and kernel stay."""

MOST_NOTE = 200


async def implement_plan(request: ImplementRequest, read: ReadBlob, ask: AskModel) -> KernelAnswer:
    """Return the kernel of a plan.

    Raises:
        RoleError: the model's failure, `no_room`, or the fault of the model's second answer.
    """
    source = prompt_values.source_of(request.parent, read)
    question = Question(
        "executor", lambda room: _prompt_values(request, read, source, prompts=room.prompts), SHED_ORDER
    )
    language = load_target(request.target).language
    wanted = blocks.kernel_names(source, language)
    made, said = await ask_question(
        ask, question, lambda answer: extract_kernel(answer, wanted, source, language)
    )
    return KernelAnswer(made, said or single_line(request.plan.title, MOST_NOTE))


def extract_kernel(answer: str, wanted: frozenset[str], source: str, language: Language) -> tuple[str, str]:
    """Return the kernel in an answer and the line that describes it; edits are applied to `source`.

    Raises:
        AnswerFault: there is no kernel, or it is `source` again (`nothing_changed`).
    """
    made = blocks.last_kernel(answer, wanted, lambda text: edits.apply_edits(text, source), language)
    if made.strip() == source.strip():
        raise blocks.AnswerFault("nothing_changed", "the kernel in the answer is the one that you were given")
    return made, single_line(blocks.preface_line(answer), MOST_NOTE)


def _prompt_values(
    request: ImplementRequest, read: ReadBlob, source: str, *, prompts: PromptSet
) -> Mapping[str, str | PromptItems]:
    told = prompt_values.describe_problem(request.problem, request.size, read)
    number = EffectKey.parse(request.key).implementation
    language = load_target(request.target).language
    variations = [one.text for one in prompts.list_sections(FileKind.VARIATION, request.target)]
    return {
        **told,
        **prompt_values.select_sections(prompts, request.target, source, *told.values()),
        "plan": prompt_values.describe_plan(request.plan),
        "technique": describe_plan_technique(request),
        "kernel": fence_text(source, language.fence),
        "variation": variations[number % len(variations)] if variations else "",
        "function": prompt_values.describe_functions(blocks.kernel_names(source, language)),
    }


def describe_plan_technique(request: ImplementRequest) -> str:
    """Return a description of the plan's technique."""
    ids = techniques.techniques_by_id(builtin_prompts(), request.target)
    return techniques.describe_technique(
        request.plan.technique, prompt_values.plan_details(request.plan), ids
    )
