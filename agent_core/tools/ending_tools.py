"""Tools that end a session: submit, give_up."""

from __future__ import annotations

from pydantic import Field

from agent_core.roles.llm.blocks import AnswerFault
from agent_core.roles.llm.quoting import single_line
from agent_core.roles.llm.techniques import accept_technique, techniques_by_id
from agent_core.tools.answers import SessionEnd, Submission, ToolAnswer, ToolArguments, ToolFault, ToolOutcome
from agent_core.tools.kernel_tools import evaluate
from agent_core.tools.workbench import SourceArguments, Workbench, resolve_source

MOST_TITLE = 200


class SubmitArguments(SourceArguments):
    """Arguments of `submit`."""

    title: str = Field(default="", description="what was changed, in one line")
    technique: str = Field(
        default="", description="a technique of the menu, or new:<short_name>; empty: the plan's"
    )
    speedup: float | None = Field(
        default=None,
        gt=0,
        description="how many times as fast as v0 you expect it to be, if it was not evaluated",
    )


class SubmitAnswer(ToolAnswer):
    """The kernel competes."""

    version: str
    title: str

    def render(self) -> str:
        """Return what was submitted."""
        return f"{self.version} is submitted: {self.title}"


async def submit(bench: Workbench, said: SubmitArguments) -> ToolOutcome:
    """End the session with a kernel; it is evaluated first if it was not, and refused if it is wrong."""
    version, source = resolve_source(bench, said.source, said.edits)
    if source == bench.versions[0]:
        hint = "Change it, or `give_up` with the reason why it cannot be made faster."
        raise ToolFault("nothing_changed", f"{version} is the kernel that you were given", hint)
    technique = _accept_technique(bench, said.technique)
    known = bench.judged.get(version)
    outcome = ToolOutcome(SubmitAnswer(version=version, title="")) if known else await evaluate(bench, said)
    found = bench.judged[version].evaluation
    if not found.is_correct or found.benchmark is None:
        code = found.error.code if found.error else found.verdict.value
        message = f"{version} is not correct and cannot compete: {found.verdict.value}, {code}"
        if known is None:  # say all that the judge says, once
            return ToolOutcome(outcome.answer, outcome.judged)
        raise ToolFault("not_correct", message, f"Mend {version}, submit another version, or `give_up`.")
    title = single_line(said.title, MOST_TITLE)
    submitted = Submission(
        version=version, source=source, title=title, technique=technique, speedup=said.speedup
    )
    answer = SubmitAnswer(version=version, title=title or "no title")
    return ToolOutcome(answer, outcome.judged, SessionEnd(submitted=submitted))


def _accept_technique(bench: Workbench, said: str) -> str:
    if not said.strip():
        return ""
    try:
        return accept_technique(said, techniques_by_id(bench.prompts, bench.task.target))
    except AnswerFault as fault:
        raise ToolFault(fault.code, str(fault), "`lookup` finds techniques by what they do.") from fault


class GiveUpArguments(ToolArguments):
    """Arguments of `give_up`."""

    reason: str = Field(min_length=1, description="why no faster kernel came of it; later sessions read this")


class GiveUpAnswer(ToolAnswer):
    """The session ends without a kernel."""

    reason: str

    def render(self) -> str:
        """Return the reason."""
        return f"The session ends without a kernel: {self.reason}"


async def give_up(bench: Workbench, said: GiveUpArguments) -> ToolOutcome:
    """End the session without a kernel."""
    del bench
    reason = single_line(said.reason)
    return ToolOutcome(GiveUpAnswer(reason=reason), end=SessionEnd(reason=reason))
