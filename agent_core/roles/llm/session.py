"""A session: the executor, or the repairer, as a dialogue in which a model works by calling tools.

The model gets the problem, the plan, the kernel and its standing, and looks everything else up. It ends by
`submit` or `give_up`. The session ends it at its last turn, at the round's deadline, if the budget is spent,
if it repeats itself, or if a kernel is near enough to its bound. The fastest correct kernel that was
evaluated is then submitted in its name, so that what was paid for competes.

Nothing here is remembered outside the log: run again after a crash, the same session takes its answers and
the results of its calls from the log, and goes on with the first that is missing.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from agent_core.effects import ImplementRequest, LearningContext, SessionRequest
from agent_core.providers.completion import DialogueStep, ModelTurn, ToolCall, ToolDefinition, ToolResult
from agent_core.roles import KernelAnswer, ReadBlob, RoleError
from agent_core.roles.ask_protocol import FillPrompt, TokenBudget
from agent_core.roles.llm import prompt_values
from agent_core.roles.llm.executor import describe_plan_technique
from agent_core.roles.llm.fitting import PromptItems, fit_values
from agent_core.roles.llm.further_faults import describe_further_faults
from agent_core.roles.llm.quoting import clean_text, fence_text, single_line
from agent_core.roles.session_protocol import PastCall, SessionHost
from agent_core.tools.answers import (
    JudgedKernel,
    SessionEnd,
    Submission,
    ToolOutcome,
    ToolRefusal,
    render_outcome,
)
from agent_core.tools.registry import call_tool, is_ending_tool, list_tools
from agent_core.tools.rewriting import KernelPlace
from agent_core.tools.workbench import KernelTask, Workbench
from seeds import build_problem
from state.model import Amount, ErrorInfo, Plan, SessionEndReason
from targets.registry import load_target

ROLE = "session"
"""The prompt of sessions; sets of older versions do not have it."""
MOST_CALLS = 8
"""Calls that are carried out of one answer."""
MOST_REPEATS = 3
"""How often a call may come, and how often an error may come back, before the session is ended."""
WARN_TURNS = 3
"""How many turns before the last the model is told."""
MOST_NOTE = 200


@dataclass(frozen=True, slots=True)
class _Ending:
    reason: SessionEndReason
    detail: str = ""
    submitted: Submission | None = None
    further: tuple[Submission, ...] = ()
    plans: tuple[Plan, ...] = ()


_VERSION = re.compile(r"\bv\d+\b")
_LINE = re.compile(r"^line (\d+): (.*)\n?", re.MULTILINE)
_JUDGING = ("check", "evaluate", "submit")
"""The tools that refuse wrong kernels."""
_LAST_TRY = (
    "The same error has come back twice. If it comes back once more, the session ends: `lookup` it, or take "
    "that change back."
)


@dataclass(frozen=True, slots=True)
class _RefusalSign:
    """What tells a refusal from others: its message without versions, and the line that it is about."""

    message: str
    line: int | None = None
    code: str = ""

    @classmethod
    def of(cls, text: str) -> _RefusalSign:
        """Return the sign of a refusal as a model reads it; `code` is its line without a comment."""
        said = _VERSION.sub("v", text.partition("\n\nNext:")[0])
        found = _LINE.search(said)
        if found is None:
            return cls(said)
        return cls(_LINE.sub("", said), int(found[1]), found[2].partition("#")[0].strip())

    def is_same(self, other: _RefusalSign) -> bool:
        """Return whether it is the same error, of another version perhaps.

        The same message about other code in another line is another error: the one before was mended.
        """
        if self.message != other.message:
            return False
        return self.line == other.line or self.code == other.code


@dataclass
class _ErrorStreak:
    """The error that came last, and how often it came back without anything else in between."""

    last: _RefusalSign | None = None
    came_back: int = 0

    @property
    def is_nearly_over(self) -> bool:
        """Whether the session ends if it comes once more."""
        return self.came_back == MOST_REPEATS - 1

    def add(self, sign: _RefusalSign) -> None:
        """Count a refusal: it is the last one again, or a new error."""
        again = self.last is not None and sign.is_same(self.last)
        self.came_back = self.came_back + 1 if again else 0
        self.last = sign

    def clear(self) -> None:
        """Forget the error: a kernel was not refused."""
        self.last, self.came_back = None, 0


@dataclass
class Session:
    """One session under way, by the prompt `role`; `dialogue` grows with each turn.

    `purpose` is the call with which it should end, in words.
    """

    host: SessionHost
    bench: Workbench
    tools: Sequence[ToolDefinition]
    turns: int
    share: Amount
    role: str = ROLE
    purpose: str = "`submit` your fastest correct version"
    dialogue: list[DialogueStep] = field(default_factory=list)
    repeats: Counter[str] = field(default_factory=Counter)
    errors: _ErrorStreak = field(default_factory=_ErrorStreak)

    async def run(self, fill: FillPrompt) -> _Ending:
        """Go from turn to turn until the session ends."""
        silent = 0
        for turn in range(self.turns):
            if (stop := self.host.find_stop(turn, self.share)) is not None:
                return _Ending(*stop)
            try:
                answer = await self.host.converse(self.role, fill, self.tools, self.dialogue)
            except RoleError as error:
                reason = SessionEndReason.BUDGET if error.info.code == "budget" else SessionEndReason.MODEL
                return _Ending(reason, f"{error.info.code}: {error.info.message}")
            results = []
            for number, call in enumerate(answer.calls):
                result, ending = await self._call(turn, number, call)
                results.append(result)
                if ending is not None:
                    return ending
            silent = 0 if answer.calls or answer.stop_reason == "pause_turn" else silent + 1
            if silent == MOST_REPEATS:
                return _Ending(SessionEndReason.NO_CALLS, f"{silent} answers in a row called no tool")
            note = self._note(turn, answer)
            self.dialogue.append(DialogueStep(answer=answer, results=tuple(results), note=note))
        return _Ending(SessionEndReason.TURNS, f"all {self.turns} turns were taken")

    def _note(self, turn: int, answer: ModelTurn) -> str:
        """Return what the model is told besides results: what would end the session soon."""
        left = self.turns - turn - 1
        parts = []
        if self.errors.is_nearly_over:
            parts.append(_LAST_TRY)
        if not answer.calls and answer.stop_reason != "pause_turn":
            parts.append(f"No tool was called. Call one; {self.purpose}, or `give_up`, to end the work.")
        if left <= WARN_TURNS:
            turns = "1 turn" if left == 1 else f"{left} turns"
            parts.append(f"{turns} left: {self.purpose}.")
        return " ".join(parts)

    async def _call(self, turn: int, number: int, call: ToolCall) -> tuple[ToolResult, _Ending | None]:
        """Carry out a call, or take its result from the log; return how the session ends if it does."""
        if number >= MOST_CALLS:
            text = f"[too_many_calls] only the first {MOST_CALLS} calls of an answer are carried out"
            return ToolResult(id=call.id, text=text, is_error=True), None
        past = self.host.find_past_call(turn, number)
        if past is not None:
            restore_past_call(self.bench, past)
        if past is None or (is_ending_tool(call.name) and past.code is None):
            outcome = await self._perform(turn, number, call, is_past=past is not None)
        else:
            outcome = None
        text, code = (past.text, past.code) if past is not None else _describe(outcome, call)
        ending = self._find_ending(call, text if code is not None else None, outcome)
        return ToolResult(id=call.id, text=text, is_error=code is not None), ending

    async def _perform(self, turn: int, number: int, call: ToolCall, *, is_past: bool) -> ToolOutcome:
        if is_past:  # a call that ended the session, in the log already
            return await call_tool(self.bench, call.name, call.arguments)
        outcome, _ = await run_tool(self.host, self.bench, turn, number, call)
        return outcome

    def _find_ending(
        self, call: ToolCall, refusal: str | None, outcome: ToolOutcome | None
    ) -> _Ending | None:
        end = outcome.end if outcome is not None else None
        if end is not None:
            return _end_by_tool(end)
        near = self._near_bound()
        if near is not None:
            return _Ending(SessionEndReason.NEAR_BOUND, "as near its bound as is wanted", near)
        same = f"{call.name} {call.arguments.strip()}"
        self.repeats[same] += 1
        if self.repeats[same] >= MOST_REPEATS:
            return _Ending(SessionEndReason.REPETITION, f"{MOST_REPEATS} times: {single_line(same, 200)}")
        if refusal is not None:
            self.errors.add(_RefusalSign.of(refusal))
        elif call.name in _JUDGING:
            self.errors.clear()
        if self.errors.came_back >= MOST_REPEATS:
            text = single_line(self.errors.last.message if self.errors.last else "", 200)
            return _Ending(SessionEndReason.REPETITION, f"it came back {MOST_REPEATS} times: {text}")
        return None

    def _near_bound(self) -> Submission | None:
        best, task = find_best(self.bench), self.bench.task
        if best is None:
            return None
        enough = task.bounds.tight_ms * (1 + task.within_percent / 100)
        return best if (self.bench.latency_of(best.version) or enough * 2) <= enough else None


def restore_past_call(bench: Workbench, past: PastCall) -> None:
    """Put the versions and the verdict of a call that is in the log on a workbench."""
    for source in past.sources:
        bench.add_version(source)
    if past.judged is not None:
        made = past.judged
        version = bench.add_version(made.source)
        bench.judged[version] = JudgedKernel(version, made.evaluation, made.cache_key)


async def run_tool(
    host: SessionHost, bench: Workbench, turn: int, number: int, call: ToolCall
) -> tuple[ToolOutcome, PastCall]:
    """Carry out a tool call, in the log before it runs and when it has answered; return what came of it."""
    before = len(bench.versions)
    await host.start_call(turn, number, call)
    outcome = await call_tool(bench, call.name, call.arguments)
    text, code = _describe(outcome, call)
    made = PastCall(text, code, tuple(bench.versions[before:]))
    await host.complete_call(turn, number, call, made)
    return outcome, made


def _end_by_tool(end: SessionEnd) -> _Ending:
    if end.submitted is not None:
        return _Ending(SessionEndReason.SUBMITTED, end.submitted.title, end.submitted, end.further)
    if end.plans:
        titles = "; ".join(plan.title for plan in end.plans)
        return _Ending(SessionEndReason.SUBMITTED, single_line(titles, MOST_NOTE), plans=end.plans)
    return _Ending(SessionEndReason.GAVE_UP, end.reason)


def _describe(outcome: ToolOutcome | None, call: ToolCall) -> tuple[str, str | None]:
    """Return the text that the model reads, and the code of a refusal."""
    assert outcome is not None
    answer = outcome.answer
    error = getattr(answer, "error", None)
    code = answer.code if isinstance(answer, ToolRefusal) else error.code if error is not None else None
    return render_outcome(outcome, more=_wants_more(call.arguments)), code


def _wants_more(arguments: str) -> bool:
    try:
        found = json.loads(arguments, strict=False)
    except json.JSONDecodeError:
        return False
    return isinstance(found, dict) and found.get("more") is True


def find_best(bench: Workbench) -> Submission | None:
    """Return the fastest correct kernel that was evaluated, if it is faster than v0."""
    correct = {
        version: one.evaluation.benchmark.latency_ms
        for version, one in bench.judged.items()
        if one.evaluation.is_correct and one.evaluation.benchmark is not None and version != "v0"
    }
    version = min(correct, key=lambda name: (correct[name], int(name[1:])), default=None)
    if version is None or correct[version] >= bench.task.parent.latency_ms:
        return None
    return Submission(version=version, source=bench.read_version(version), title="")


async def implement_in_session(request: ImplementRequest, read: ReadBlob, host: SessionHost) -> KernelAnswer:
    """Return the kernel that a session ends with.

    Raises:
        RoleError: `session_REASON`: it ended without a kernel that competes.
    """
    bench = make_bench(request, read, host)
    assert request.session is not None
    tools = define_tools(request.target)
    await host.begin(ROLE, [tool.name for tool in tools], request.session.turns)
    share = share_of(request.session)
    session = Session(host=host, bench=bench, tools=tools, turns=request.session.turns, share=share)
    ending = await session.run(lambda room: fill_prompt(request, read, room))
    submitted = ending.submitted
    if submitted is None and ending.reason is not SessionEndReason.GAVE_UP:
        submitted = find_best(bench)
    await host.end(ending.reason, ending.detail, None if submitted is None else submitted.source)
    if submitted is None:
        raise fruitless_error(ending.reason, ending.detail, "a kernel that competes")
    note = submitted.title or single_line(request.plan.title, MOST_NOTE)
    further = tuple(make_answer(one, one.title or note) for one in ending.further)
    return replace(make_answer(submitted, note), further=further)


def share_of(session: SessionRequest) -> Amount:
    """Return what a session may spend; an amount of 0 is no limit."""
    return Amount(usd=session.cap_usd or 0.0, tokens=session.cap_tokens or 0)


def fruitless_error(reason: SessionEndReason, detail: str, what: str) -> RoleError:
    """Return the error of a session that ended without what it was held for."""
    message = f"the session ended without {what}{f': {detail}' if detail else ''}"
    return RoleError(ErrorInfo(code=f"session_{reason.value}", message=single_line(message, 1000)))


def define_tools(target: str, *, planning: bool = False) -> tuple[ToolDefinition, ...]:
    """Return the tools that a session on a target may call, as its model is told of them."""
    return tuple(
        ToolDefinition(name=tool.name, description=tool.description, parameters=tool.schema)
        for tool in list_tools(target, planning=planning)
    )


def make_answer(one: Submission, note: str) -> KernelAnswer:
    """Return a submitted kernel as an executor's answer."""
    return KernelAnswer(one.source, note, technique=one.technique or None, speedup=one.speedup)


def make_bench(request: ImplementRequest, read: ReadBlob, host: SessionHost) -> Workbench:
    """Return the workbench of a session: v0 is the kernel to improve, v1 the refused one, if any."""
    assert request.session is not None
    spec = build_problem({path: read(digest) for path, digest in request.problem.files.items()}).spec
    refused = [clean_text(read(one.source).decode(errors="replace")) for one in request.failed[-1:]]
    source = prompt_values.source_of(request.parent, read)
    return Workbench(
        task=KernelTask(
            place=KernelPlace(spec, request.size, request.target),
            parent=request.parent,
            bounds=request.session.bounds,
            within_percent=request.session.within_percent,
        ),
        lab=host.lab,
        context=LearningContext.model_validate_json(read(request.session.context)),
        prompts=host.prompts,
        versions=[source, *(one for one in refused if one != source)],
        rewriter=host.rewriter,
    )


def fill_prompt(request: ImplementRequest, read: ReadBlob, room: TokenBudget) -> Mapping[str, str]:
    """Return the values of a session's prompt; nothing of it may be left out."""
    source = prompt_values.source_of(request.parent, read)
    fence = load_target(request.target).language.fence
    values: dict[str, str | PromptItems] = {
        **prompt_values.describe_problem(request.problem, request.size, read),
        "plan": prompt_values.describe_plan(request.plan),
        "technique": describe_plan_technique(request),
        "kernel": fence_text(source, fence),
        "standing": _describe_standing(request),
        "error": _describe_refusal(request, read, fence),
    }
    texts = fit_values(values, (), room)
    return {name: texts.get(name, "") for name in room.prompts.manifest.roles[ROLE].values}


def _describe_standing(request: ImplementRequest) -> str:
    assert request.session is not None
    parent, bounds = request.parent, request.session.bounds
    percent = 100 * bounds.tight_ms / parent.latency_ms
    return "\n".join(
        [
            f"- v0: {prompt_values.format_latency(parent.benchmark)}; bottleneck: {parent.bottleneck}",
            f"- model bound: {bounds.tight_ms:.6g} ms (v0 reaches {percent:.0f} % of it)",
            f"- roofline lower bound: {bounds.plain_ms:.6g} ms",
            f"- turns: {request.session.turns}",
        ]
    )


def _describe_refusal(request: ImplementRequest, read: ReadBlob, fence: str) -> str:
    """Return why the kernel before was refused, and its source, which is v1; empty for a first session."""
    if not request.failed:
        return ""
    last = request.failed[-1]
    source = clean_text(read(last.source).decode(errors="replace"))
    where = f", line {last.error.line}" if last.error.line else ""
    further = describe_further_faults(request.target, source, last.error)
    also = "\n".join(["\n\nWrong as well:", *further]) if further else ""
    head = f"[{last.error.code}] {single_line(last.error.message, 1000)}{where}{also}"
    return f"# The kernel of this plan that was refused (v1)\n\n{head}\n\n{fence_text(source, fence)}"
