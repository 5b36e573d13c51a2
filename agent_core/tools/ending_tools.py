"""Tools that end a session: submit, submit_plans, give_up."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import ConfigDict, Field

from agent_core.roles.llm.blocks import AnswerFault
from agent_core.roles.llm.plans import PlanReply, build_plan, check_plan
from agent_core.roles.llm.quoting import single_line
from agent_core.roles.llm.techniques import accept_technique, techniques_by_id
from agent_core.round_view import MOST_FURTHER, MOST_PLANS
from agent_core.tools.answers import SessionEnd, Submission, ToolAnswer, ToolArguments, ToolFault, ToolOutcome
from agent_core.tools.kernel_tools import evaluate
from agent_core.tools.workbench import SourceArguments, Workbench, resolve_source
from state.model import FrozenModel

MOST_TITLE = 200


class FurtherKernel(FrozenModel):
    """A kernel that is submitted besides the first: a version that was evaluated, and what it does."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    version: str
    title: str = ""
    technique: str = ""
    speedup: float | None = Field(default=None, gt=0)


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
    also: tuple[FurtherKernel, ...] = Field(
        default=(), max_length=MOST_FURTHER, description="other evaluated versions that are worth keeping"
    )


class SubmitAnswer(ToolAnswer):
    """The kernel competes."""

    version: str
    title: str
    also: tuple[str, ...] = ()

    def render(self) -> str:
        """Return what was submitted."""
        also = f"; so are {', '.join(self.also)}" if self.also else ""
        return f"{self.version} is submitted: {self.title}{also}"


async def submit(bench: Workbench, said: SubmitArguments) -> ToolOutcome:
    """End the session with kernels; the first is evaluated if it was not, and refused if it is wrong."""
    version, source = resolve_source(bench, said.source, said.edits)
    _require_changed(bench, version, source)
    technique = _accept_technique(bench, said.technique)
    further = _accept_further(bench, source, said.also)
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
    also = tuple(one.version for one in further)
    answer = SubmitAnswer(version=version, title=title or "no title", also=also)
    return ToolOutcome(answer, outcome.judged, SessionEnd(submitted=submitted, further=further))


def _require_changed(bench: Workbench, version: str, source: str) -> None:
    if source == bench.versions[0]:
        hint = "Change it, or `give_up` with the reason why it cannot be made faster."
        raise ToolFault("nothing_changed", f"{version} is the kernel that you were given", hint)


def _accept_further(bench: Workbench, first: str, said: Sequence[FurtherKernel]) -> tuple[Submission, ...]:
    """Return the kernels that compete besides the first, each once; they were evaluated and are correct."""
    found: dict[str, Submission] = {}
    for one in said:
        source = bench.read_version(one.version)
        version = bench.add_version(source)
        _require_changed(bench, version, source)
        judged = bench.judged.get(version)
        if judged is None:
            raise ToolFault("not_evaluated", f"{version} was not evaluated", f"`evaluate` {version} first.")
        if not judged.evaluation.is_correct or judged.evaluation.benchmark is None:
            raise ToolFault("not_correct", f"{version} is not correct and cannot compete", "Leave it out.")
        if source != first:
            found[source] = Submission(
                version=version,
                source=source,
                title=single_line(one.title, MOST_TITLE),
                technique=_accept_technique(bench, one.technique),
                speedup=one.speedup,
            )
    return tuple(found.values())


def _accept_technique(bench: Workbench, said: str) -> str:
    if not said.strip():
        return ""
    try:
        return accept_technique(said, techniques_by_id(bench.prompts, bench.task.target))
    except AnswerFault as fault:
        raise ToolFault(fault.code, str(fault), "`lookup` finds techniques by what they do.") from fault


class SubmitPlansArguments(ToolArguments):
    """Arguments of `submit_plans`."""

    plans: tuple[PlanReply, ...] = Field(
        min_length=1, max_length=MOST_PLANS, description="different changes, each complete; the best first"
    )


class SubmitPlansAnswer(ToolAnswer):
    """The plans are handed over."""

    titles: tuple[str, ...]

    def render(self) -> str:
        """Return what was submitted."""
        return "\n".join(["submitted:", *(f"- {title}" for title in self.titles)])


async def submit_plans(bench: Workbench, said: SubmitPlansArguments) -> ToolOutcome:
    """End a planner's session with plans; each is checked, and all are refused if one is wrong."""
    rules = bench.plan_rules
    assert rules is not None, "only planners are offered this tool"
    if len(said.plans) > rules.most:
        message = f"there are {len(said.plans)} plans, and {rules.most} are wanted"
        raise ToolFault("too_many_plans", message, "Send the best ones.")
    found = []
    for number, reply in enumerate(said.plans, 1):
        try:
            found.append(build_plan(check_plan(reply, rules), rules))
        except AnswerFault as fault:
            hint = "`lookup` finds techniques; the counters are those of the profile."
            raise ToolFault(fault.code, f"plan {number}: {fault}", hint) from fault
    titles = tuple(plan.title for plan in found)
    return ToolOutcome(SubmitPlansAnswer(titles=titles), end=SessionEnd(plans=tuple(found)))


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
