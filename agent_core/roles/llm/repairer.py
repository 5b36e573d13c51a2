"""The repairer: the refused kernel mended, from what the judge said of it and what was tried before."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import unified_diff
from itertools import pairwise

from agent_core.effects import FailedTry, ImplementRequest
from agent_core.prompting import Prompts
from agent_core.roles import KernelAnswer, ReadBlob
from agent_core.roles.asking import Ask
from agent_core.roles.llm import blocks, telling
from agent_core.roles.llm.executor import kernel_in
from agent_core.roles.llm.fitting import Items, Shed
from agent_core.roles.llm.questions import Question, answered
from agent_core.roles.llm.quoting import clean, fenced, line
from targets.registry import load_target

ORDER = (
    Shed("tries", 2),
    Shed("interface", 1),
    Shed("examples", 0),
    Shed("tries", 1),
    Shed("interface", 0),
    Shed("tries", 0),
    Shed("changes", 0),
)
"""What goes first when the prompt is too large: problem, reference, plan, kernel and error stay."""

MOST_MESSAGE = 4000
_AROUND = 3
"""Lines that are shown before and after the one at fault."""
_MOST_DIFF = 2500
_MOST_CHANGES = 10_000


async def repair(request: ImplementRequest, read: ReadBlob, ask: Ask) -> KernelAnswer:
    """Return the last refused kernel of `request.failed`, mended.

    Raises:
        RoleError: what the model failed with, `no_room`, or the fault of its second answer.
    """
    sources = [clean(read(one.source).decode(errors="replace")) for one in request.failed]
    question = Question("repairer", lambda prompts: _values(request, read, sources, prompts), ORDER)
    language = load_target(request.target).language
    wanted = blocks.kernel_names(telling.source_of(request.parent, read), language)
    made, said = await answered(
        ask, question, lambda answer: kernel_in(answer, wanted, sources[-1], language)
    )
    what = f"repair {len(sources)} of {line(request.failed[-1].error.code, 80)}"
    return KernelAnswer(made, f"{what}: {said}" if said else what)


def _values(
    request: ImplementRequest, read: ReadBlob, sources: list[str], prompts: Prompts
) -> Mapping[str, str | Items]:
    told = telling.problem(request.problem, request.size, read)
    return {
        **told,
        **telling.sections(prompts, request.target, sources[-1], *told.values()),
        "plan": telling.plan(request.plan),
        "kernel": fenced(sources[-1], load_target(request.target).language.fence),
        "error": _error(request.failed[-1], sources[-1]),
        "changes": _changes(telling.source_of(request.parent, read), sources[-1]),
        "tries": _tries(request.failed, sources),
    }


def _error(refused: FailedTry, source: str) -> str:
    error = refused.error
    parts = [f"class: {refused.verdict.value}"] if refused.verdict else []
    parts += [f"code: {line(error.code)}", f"message: {clean(error.message)}"]
    if error.line:
        parts += [f"line: {error.line}", *_excerpt(source, error.line)]
    if error.hint:
        parts.append(f"rule: {clean(error.hint)}")
    return fenced("\n".join(parts), "text", limit=MOST_MESSAGE)


def _excerpt(source: str, at: int) -> Iterator[str]:
    rows = source.split("\n")
    for number in range(max(1, at - _AROUND), min(len(rows), at + _AROUND) + 1):
        yield f"{'>' if number == at else ' '} {number:4} | {rows[number - 1][:160]}"


def _changes(correct: str, refused: str) -> Items:
    """Return how the refused kernel differs from the correct one that the plan started from."""
    return Items((fenced(_diff(correct, refused), "diff", limit=_MOST_CHANGES),))


def _tries(failed: tuple[FailedTry, ...], sources: list[str]) -> Items:
    """Return what each repair so far changed and how it ended, the newest first."""
    told = [
        f"Repair {number}, after {line(before.error.code)}, ended with {line(after.error.code)}:"
        f" {line(after.error.message)}\n\n{fenced(_diff(old, new), 'diff', limit=_MOST_DIFF)}\n"
        for number, ((before, old), (after, new)) in enumerate(
            pairwise(zip(failed, sources, strict=True)), start=1
        )
    ]
    return Items(tuple(reversed(told)), "(none)")


def _diff(old: str, new: str) -> str:
    return "\n".join(unified_diff(old.split("\n"), new.split("\n"), "before", "after", lineterm="", n=1))
