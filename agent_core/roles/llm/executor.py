"""The executor: the kernel of a plan, written whole or as edits of the kernel that it starts from."""

from __future__ import annotations

from collections.abc import Mapping

from agent_core.effects import ImplementRequest
from agent_core.prompting import Kind, Prompts, builtin
from agent_core.roles import KernelAnswer, ReadBlob
from agent_core.roles.asking import Ask
from agent_core.roles.llm import blocks, edits, techniques, telling
from agent_core.roles.llm.fitting import Items, Shed
from agent_core.roles.llm.questions import Question, answered
from agent_core.roles.llm.quoting import fenced, line
from state.model import EffectKey
from targets.base import Language
from targets.registry import load_target

ORDER = (Shed("interface", 1), Shed("examples", 1), Shed("examples", 0), Shed("interface", 0))
"""What goes first when the prompt is too large: problem, reference, plan and kernel stay."""

MOST_NOTE = 200


async def implement(request: ImplementRequest, read: ReadBlob, ask: Ask) -> KernelAnswer:
    """Return the kernel of a plan.

    Raises:
        RoleError: what the model failed with, `no_room`, or the fault of its second answer.
    """
    source = telling.source_of(request.parent, read)
    question = Question("executor", lambda prompts: _values(request, read, source, prompts), ORDER)
    language = load_target(request.target).language
    wanted = blocks.kernel_names(source, language)
    made, said = await answered(ask, question, lambda answer: kernel_in(answer, wanted, source, language))
    return KernelAnswer(made, said or line(request.plan.title, MOST_NOTE))


def kernel_in(answer: str, wanted: frozenset[str], source: str, language: Language) -> tuple[str, str]:
    """Return the kernel in an answer and its line on that; edits are made to `source`.

    Raises:
        AnswerFault: there is no kernel, or it is `source` again (`nothing_changed`).
    """
    made = blocks.last_kernel(answer, wanted, lambda text: edits.apply(text, source), language)
    if made.strip() == source.strip():
        raise blocks.AnswerFault("nothing_changed", "the kernel in the answer is the one that you were given")
    return made, line(blocks.preface(answer), MOST_NOTE)


def _values(
    request: ImplementRequest, read: ReadBlob, source: str, prompts: Prompts
) -> Mapping[str, str | Items]:
    told = telling.problem(request.problem, request.size, read)
    number = EffectKey.parse(request.key).implementation
    variations = [one.text for one in prompts.sections(Kind.VARIATION, request.target)]
    return {
        **told,
        **telling.sections(prompts, request.target, source, *told.values()),
        "plan": telling.plan(request.plan),
        "technique": technique(request),
        "kernel": fenced(source, load_target(request.target).language.fence),
        "variation": variations[number % len(variations)] if variations else "",
    }


def technique(request: ImplementRequest) -> str:
    """Return the plan's technique in words."""
    ids = techniques.known(builtin(), request.target)
    return techniques.described(request.plan.technique, telling.details(request.plan), ids)
