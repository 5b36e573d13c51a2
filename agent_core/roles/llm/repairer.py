"""The repairer: fixes a refused kernel, from the judge's error and the earlier repairs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import unified_diff
from itertools import pairwise

from agent_core.effects import FailedTry, ImplementRequest
from agent_core.prompting import PromptSet
from agent_core.roles import KernelAnswer, ReadBlob
from agent_core.roles.ask_protocol import AskModel
from agent_core.roles.llm import blocks, prompt_values
from agent_core.roles.llm.executor import extract_kernel
from agent_core.roles.llm.fitting import PromptItems, ShedStep
from agent_core.roles.llm.further_faults import describe_further_faults
from agent_core.roles.llm.questions import Question, ask_question
from agent_core.roles.llm.quoting import clean_text, fence_text, single_line
from targets.registry import load_target

SHED_ORDER = (
    ShedStep("tries", 2),
    ShedStep("interface", 1),
    ShedStep("examples", 0),
    ShedStep("tries", 1),
    ShedStep("interface", 0),
    ShedStep("tries", 0),
    ShedStep("changes", 0),
)
"""What is dropped first if the prompt is too large; problem, reference, plan, kernel and error stay."""

MOST_MESSAGE = 4000
MOST_FAULT = 400
_AROUND = 3
"""How many lines are shown before and after the faulty one."""
_MOST_DIFF = 2500
_MOST_CHANGES = 10_000


async def repair_kernel(request: ImplementRequest, read: ReadBlob, ask: AskModel) -> KernelAnswer:
    """Return the last refused kernel of `request.failed`, repaired.

    Raises:
        RoleError: the model's failure, `no_room`, or the fault of the model's second answer.
    """
    sources = [clean_text(read(one.source).decode(errors="replace")) for one in request.failed]
    question = Question(
        "repairer", lambda room: _prompt_values(request, read, sources, prompts=room.prompts), SHED_ORDER
    )
    language = load_target(request.target).language
    wanted = blocks.kernel_names(prompt_values.source_of(request.parent, read), language)
    made, said = await ask_question(
        ask, question, lambda answer: extract_kernel(answer, wanted, sources[-1], language)
    )
    what = f"repair {len(sources)} of {single_line(request.failed[-1].error.code, 80)}"
    return KernelAnswer(made, f"{what}: {said}" if said else what)


def _prompt_values(
    request: ImplementRequest, read: ReadBlob, sources: list[str], *, prompts: PromptSet
) -> Mapping[str, str | PromptItems]:
    told = prompt_values.describe_problem(request.problem, request.size, read)
    language, correct = load_target(request.target).language, prompt_values.source_of(request.parent, read)
    return {
        **told,
        **prompt_values.select_sections(prompts, request.target, sources[-1], *told.values()),
        "plan": prompt_values.describe_plan(request.plan),
        "kernel": fence_text(sources[-1], language.fence),
        "function": prompt_values.describe_functions(blocks.kernel_names(correct, language)),
        "error": _describe_error(request.failed[-1], sources[-1], request.target),
        "changes": _diff_from_correct(correct, sources[-1]),
        "tries": _describe_repairs(request, sources),
    }


def _describe_error(refused: FailedTry, source: str, target: str) -> str:
    error = refused.error
    parts = [f"class: {refused.verdict.value}"] if refused.verdict else []
    parts += [f"code: {single_line(error.code)}", f"message: {clean_text(error.message)}"]
    if error.line:
        parts += [f"line: {error.line}", *_source_excerpt(source, error.line)]
    if error.hint:
        parts.append(f"rule: {clean_text(error.hint)}")
    if further := describe_further_faults(target, source, error):
        parts += ["wrong as well:", *further]
    return fence_text("\n".join(parts), "text", limit=MOST_MESSAGE)


def _source_excerpt(source: str, at: int) -> Iterator[str]:
    rows = source.split("\n")
    for number in range(max(1, at - _AROUND), min(len(rows), at + _AROUND) + 1):
        yield f"{'>' if number == at else ' '} {number:4} | {rows[number - 1][:160]}"


def _diff_from_correct(correct: str, refused: str) -> PromptItems:
    """Return the difference between the refused kernel and the correct one that the plan started from."""
    return PromptItems((fence_text(_diff_text(correct, refused), "diff", limit=_MOST_CHANGES),))


def _describe_repairs(request: ImplementRequest, sources: list[str]) -> PromptItems:
    """Return what each repair so far changed and how it ended, newest first; then those without a kernel."""
    failed = request.failed
    told = [
        f"Repair {number}, after {single_line(before.error.code)},"
        f" ended with {single_line(after.error.code)}: {single_line(after.error.message)}\n\n"
        f"{fence_text(_diff_text(old, new), 'diff', limit=_MOST_DIFF)}\n"
        for number, ((before, old), (after, new)) in enumerate(
            pairwise(zip(failed, sources, strict=True)), start=1
        )
    ]
    lost = tuple(
        f"A repair was no kernel: {single_line(one.code)}: {single_line(one.message, MOST_FAULT)}\n"
        for one in request.unusable
    )
    return PromptItems((*reversed(told), *lost), "(none)")


def _diff_text(old: str, new: str) -> str:
    return "\n".join(unified_diff(old.split("\n"), new.split("\n"), "before", "after", lineterm="", n=1))
