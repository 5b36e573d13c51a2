"""The summarizer: what made the difference in a pair of kernels, as an experience that others can use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import AfterValidator, Field

from agent_core.effects import SummarizeRequest
from agent_core.roles import ExperienceAnswer, ReadBlob
from agent_core.roles.asking import Ask
from agent_core.roles.llm import telling
from agent_core.roles.llm.blocks import AnswerFault, last_json
from agent_core.roles.llm.fitting import Items, Shed
from agent_core.roles.llm.questions import Question, answered
from agent_core.roles.llm.quoting import clean, fenced, line
from agent_core.roles.mechanical import experience_of, speedup_of
from state.model import Experience, Frozen

ORDER: tuple[Shed, ...] = ()
"""Nothing can go: a pair of kernels that does not fit is not summarised."""

Sentence = Annotated[str, Field(max_length=1500), AfterValidator(lambda text: line(text, 1500))]
Code = Annotated[str, Field(max_length=2500), AfterValidator(clean)]


class _Reply(Frozen):
    """The block that a summarizer's answer ends with; only `found` when there is nothing to tell."""

    found: bool
    title: Annotated[str, Field(max_length=300), AfterValidator(line)] = ""
    strategy: Sentence = ""
    before: Code = ""
    after: Code = ""
    applies_when: Sentence = ""


async def summarize(request: SummarizeRequest, read: ReadBlob, ask: Ask) -> ExperienceAnswer:
    """Return the experience in a pair, None where the model found no cause for the difference.

    Raises:
        RoleError: what the model failed with, `no_room`, or the fault of its second answer.
    """
    question = Question("summarizer", lambda _: _values(request, read), ORDER)
    reply = await answered(ask, question, lambda answer: last_json(answer, _Reply, _whole))
    return ExperienceAnswer(_experience(request, reply) if reply.found else None)


def _whole(reply: _Reply) -> _Reply:
    missing = [
        name for name in ("title", "strategy", "before", "after", "applies_when") if not _has(reply, name)
    ]
    if reply.found and missing:
        raise AnswerFault("unreadable_answer", f"{', '.join(missing)}: missing, though something was found")
    return reply


def _has(reply: _Reply, name: str) -> bool:
    return bool(getattr(reply, name).strip())


def _experience(request: SummarizeRequest, reply: _Reply) -> Experience:
    how = "predicted" if request.fast.benchmark.predicted else "measured"
    return experience_of(
        request,
        f"{reply.title}\n"
        f"{reply.strategy}\n"
        f"Before:\n{_indented(reply.before)}\n"
        f"After:\n{_indented(reply.after)}\n"
        f"Applies when: {reply.applies_when}\n"
        f"Speed-up ({how}): {speedup_of(request):.3f}, from {request.slow.id} and {request.fast.id}",
    )


def _indented(text: str) -> str:
    return "\n".join(f"    {row.rstrip()}" for row in text.strip("\n").split("\n"))


def _values(request: SummarizeRequest, read: ReadBlob) -> Mapping[str, str | Items]:
    return {
        "kind": request.kind.value,
        "technique": line(request.plan.technique),
        "speedup": f"{speedup_of(request):.3f}",
        "slow": _kernel(request, read, fast=False),
        "fast": _kernel(request, read, fast=True),
        "plan": telling.plan(request.plan),
    }


def _kernel(request: SummarizeRequest, read: ReadBlob, *, fast: bool) -> str:
    one = request.fast if fast else request.slow
    head = f"{telling.latency(one.benchmark)}, bottleneck {one.bottleneck or 'unknown'}"
    return f"{head}\n\n{fenced(telling.source_of(one, read), 'python')}"
