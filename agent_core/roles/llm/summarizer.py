"""The summarizer: explains what made the difference in a pair of kernels, as a reusable experience."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import AfterValidator, Field

from agent_core.effects import SummarizeRequest
from agent_core.roles import ExperienceAnswer, ReadBlob
from agent_core.roles.ask_protocol import AskModel
from agent_core.roles.llm import prompt_values
from agent_core.roles.llm.answer_forms import make_answer_schema
from agent_core.roles.llm.blocks import AnswerFault, last_json
from agent_core.roles.llm.fitting import PromptItems, ShedStep
from agent_core.roles.llm.own_words import require_own_words
from agent_core.roles.llm.questions import Question, ask_question
from agent_core.roles.llm.quoting import clean_text, fence_text, single_line
from agent_core.roles.mechanical import experience_of, speedup_of
from state.model import Candidate, Experience, FrozenModel
from targets.registry import load_target

SHED_ORDER: tuple[ShedStep, ...] = ()
"""Nothing can be dropped: a pair of kernels that does not fit is not summarised."""

Sentence = Annotated[str, Field(max_length=1500), AfterValidator(lambda text: single_line(text, 1500))]
Code = Annotated[str, Field(max_length=2500), AfterValidator(clean_text)]


class _SummarizerReply(FrozenModel):
    """The block that a summarizer's answer ends with; it has only `found` if there is nothing to tell."""

    found: bool
    title: Annotated[str, Field(max_length=300), AfterValidator(single_line)] = ""
    strategy: Sentence = ""
    before: Code = ""
    after: Code = ""
    applies_when: Sentence = ""


async def summarize_pair(request: SummarizeRequest, read: ReadBlob, ask: AskModel) -> ExperienceAnswer:
    """Return the experience in a pair, None if the model found no cause for the difference.

    Raises:
        RoleError: the model's failure, `no_room`, or the fault of the model's second answer.
    """
    question = Question(
        "summarizer",
        lambda room: _prompt_values(request, read, room.target),
        SHED_ORDER,
        make_answer_schema("experience", _SummarizerReply),
    )
    reply = await ask_question(
        ask, question, lambda answer: last_json(answer, _SummarizerReply, _require_complete)
    )
    return ExperienceAnswer(_build_experience(request, reply) if reply.found else None)


def _require_complete(reply: _SummarizerReply) -> _SummarizerReply:
    missing = [
        name
        for name in ("title", "strategy", "before", "after", "applies_when")
        if not _has_text(reply, name)
    ]
    if reply.found and missing:
        raise AnswerFault("unreadable_answer", f"{', '.join(missing)}: missing, though something was found")
    return require_own_words(reply, "summarizer")


def _has_text(reply: _SummarizerReply, name: str) -> bool:
    return bool(getattr(reply, name).strip())


def _build_experience(request: SummarizeRequest, reply: _SummarizerReply) -> Experience:
    how = "predicted" if request.fast.benchmark.predicted else "measured"
    return experience_of(
        request,
        f"{reply.title}\n"
        f"{reply.strategy}\n"
        f"Before:\n{_indent_rows(reply.before)}\n"
        f"After:\n{_indent_rows(reply.after)}\n"
        f"Applies when: {reply.applies_when}\n"
        f"Speed-up ({how}): {speedup_of(request):.3f}, from {request.slow.id} and {request.fast.id}",
    )


def _indent_rows(text: str) -> str:
    return "\n".join(f"    {row.rstrip()}" for row in text.strip("\n").split("\n"))


def _prompt_values(request: SummarizeRequest, read: ReadBlob, target: str) -> Mapping[str, str | PromptItems]:
    fence = load_target(target).language.fence
    return {
        "kind": request.kind.value,
        "technique": single_line(request.plan.technique),
        "speedup": f"{speedup_of(request):.3f}",
        "slow": _describe_kernel(request.slow, read, fence),
        "fast": _describe_kernel(request.fast, read, fence),
        "plan": prompt_values.describe_plan(request.plan),
    }


def _describe_kernel(one: Candidate, read: ReadBlob, fence: str) -> str:
    head = f"{prompt_values.format_latency(one.benchmark)}, bottleneck {one.bottleneck or 'unknown'}"
    return f"{head}\n\n{fence_text(prompt_values.source_of(one, read), fence)}"
