"""Tasks for a simulated engineer: its sessions and questions over the real prompts, tools and simulator.

Nothing is bought and nothing logged: the hosts here count what would be sent. A kernel is judged in this
process, without a jail, on one set of inputs: the engineer writes nothing dangerous.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from random import Random
from typing import Any

import numpy as np

import nki_sim
import remote
import seeds
from agent_core.effects import FailedTry, ImplementRequest, LearningContext, PlanRequest, SessionRequest
from agent_core.prompting import PromptSet, builtin_prompts
from agent_core.providers.completion import (
    AnswerSchema,
    CompletionRequest,
    DialogueStep,
    ModelTurn,
    ToolCall,
    ToolDefinition,
)
from agent_core.providers.windows import estimate_tokens
from agent_core.roles import RoleError
from agent_core.roles.ask_protocol import FillPrompt
from agent_core.roles.llm import LlmRoles
from agent_core.roles.llm import session as executor_session
from agent_core.roles.session_protocol import PastCall
from agent_core.round_view import MOST_PLANS
from agent_core.tools.workbench import LabVerdict, RefusedKernel
from daemon.calls.request_rendering import TokenBounds, render_request
from nki_sim import ArraySpec, targets
from nki_sim.checks import program as checks
from nki_sim.errors import SimError
from nki_sim.frontend.entry import trace_bytes
from nki_sim.program.ir import Program
from nki_sim.protocol import program_reply
from nki_sim.running import numerics
from nki_sim.timing.forecast import forecast_program
from remote.judge.input_cache import InputCache
from remote.judge.job import ExplainJob, JudgeOutcome
from seeds.inputs import draw_inputs
from state.model import (
    Amount,
    Candidate,
    ErrorInfo,
    Evaluation,
    KernelExplanation,
    Plan,
    SessionEndReason,
    Verdict,
    canonical_json,
    digest_of,
)
from targets.nki.judge.explanations import explain_program
from targets.nki.rewrites.explore import explore_rewrites
from targets.nki.rewrites.kernel_ir import ArrayArgument
from targets.nki.rewrites.reader import read_kernel
from targets.registry import starting_kernel
from tests.support.constants_model import SLIP
from tests.support.role_requests import benchmark_of
from tests.support.simulated_engineer import NEEDED_GAIN, Engineer, Skill
from tests.support.world import correct_evaluation, refused_evaluation

SIZE = "reduced"
REPAIRS, TURNS = 2, 16
"""The defaults of `search.repairs` and `llm.turns`."""
EMPTY = LearningContext(memory=(), reflections=(), attempts=(), credits={})
MOST_IDEAS = 24
BOUNDS = TokenBounds(input=64_000, output=16_000)


@dataclass(frozen=True)
class Task:
    """One problem's first kernel on one target, to be made faster."""

    problem: str
    target: str

    @property
    def name(self) -> str:
        return f"{self.problem}@{self.target}"


TASKS = tuple(
    [Task(name, "trn2") for name in seeds.builtin_problems()]
    + [Task(name, "trn1") for name in ("bmm", "lora", "matmul", "silu", "swiglu", "transpose_matmul")]
)
"""Twenty: every problem on trn2, six of them on trn1 too."""


class TaskLab:
    """Judges a task's kernels with the simulator, and remembers verdicts; implements `KernelLab`."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.problem = seeds.load_problem(task.problem)
        self.kernel = starting_kernel(self.problem, task.target).decode()
        self.device = targets.load(task.target)
        spec = self.problem.spec
        dims = spec.dims(SIZE)
        self.arrays = [ArraySpec(item.resolve_kernel_shape(dims), item.dtype) for item in spec.inputs]
        self.arguments = spec.call_arguments(self.arrays, lambda value: value)
        self._inputs = draw_inputs(spec, SIZE, 0)
        self._wanted = self._run(nki_sim.trace(self.kernel, args=self.arguments, target=task.target))
        self._known: dict[str, Evaluation] = {}
        self._explained: dict[tuple[str, ...], KernelExplanation | RefusedKernel] = {}
        self._ideas: list[str] = []

    def _run(self, program: Program) -> list[np.ndarray[Any, Any]]:
        return [np.asarray(one, dtype=np.float64) for one in numerics.run(program, self._inputs)]

    def ideas(self) -> list[str]:
        """Return right kernels that one rewrite leads to, in a fixed order."""
        self._ideas = self._ideas or self._find_ideas()
        return [*self._ideas]

    def _find_ideas(self) -> list[str]:
        arguments = [ArrayArgument(one.shape, one.dtype) for one in self.arrays]
        children, _ = explore_rewrites(
            read_kernel(self.kernel, arguments, self.device), arguments, self.device
        )
        found = sorted(
            {child.source for child in children} - {self.kernel}, key=lambda text: digest_of(text.encode())
        )
        return found[:MOST_IDEAS]

    def judge(self, source: str) -> Evaluation:
        if source not in self._known:
            self._known[source] = self._judge(source)
        return self._known[source]

    def _judge(self, source: str) -> Evaluation:
        try:
            program = nki_sim.trace(source, args=self.arguments, target=self.task.target)
            for breach in checks.check(program, self.device):
                info = ErrorInfo(
                    code=breach.code, message=breach.message, line=breach.line or None, hint=breach.hint
                )
                return _refuse(source, Verdict.LINT_ERROR, info)
            found = self._run(program)
            latency_ms = forecast_program(program, self.device).latency_ms
        except SimError as error:
            line, hint = getattr(error, "line", None), getattr(error, "hint", None)
            info = ErrorInfo(code=error.code, message=str(error), line=line or None, hint=hint)
            return _refuse(source, Verdict.COMPILE_ERROR, info)
        for number, (one, wanted) in enumerate(zip(found, self._wanted, strict=True)):
            error_l2 = np.linalg.norm(one - wanted) / max(1e-30, np.linalg.norm(wanted))
            if not error_l2 < self.problem.spec.rel_l2:
                text = f"output {number} differs from the reference: relative error {error_l2:.3g}"
                return _refuse(source, Verdict.INCORRECT, ErrorInfo(code="wrong_output", message=text))
        return correct_evaluation(source, latency_ms, target=self.task.target)

    async def explain(self, source: str, topics: Sequence[str]) -> KernelExplanation | RefusedKernel:
        asked = (source, *sorted(topics))
        if asked not in self._explained:
            self._explained[asked] = self._explain(source, topics)
        return self._explained[asked]

    def _explain(self, source: str, topics: Sequence[str]) -> KernelExplanation | RefusedKernel:
        found = self.judge(source)
        if found.verdict in (Verdict.COMPILE_ERROR, Verdict.LINT_ERROR):
            return RefusedKernel(verdict=found.verdict, stage=found.stage, error=found.error)
        job = ExplainJob(
            spec=self.problem.spec, size=SIZE, target=self.task.target, source=source, topics=tuple(topics)
        )
        reply = program_reply(trace_bytes(source, args=self.arguments, target=self.task.target))
        result = explain_program(job, reply, InputCache(max_bytes=1 << 28)).result
        if isinstance(result, JudgeOutcome):
            return RefusedKernel(verdict=result.verdict, stage=result.stage, error=result.error)
        return result

    async def evaluate(self, source: str) -> LabVerdict:
        return LabVerdict(self.judge(source), {}, digest_of(source.encode()))


def _refuse(source: str, verdict: Verdict, info: ErrorInfo) -> Evaluation:
    return refused_evaluation(source, verdict, info.message).model_copy(update={"error": info})


@cache
def lab_of(task: Task) -> TaskLab:
    """Return a task's lab; it is shared, because verdicts are the same for all engineers."""
    return TaskLab(task)


class BudgetSpent(Exception):
    """The next question has no room in the budget."""


@dataclass
class Purse:
    """What was sent and answered, in tokens. Cached are those that the question before had sent as well."""

    budget: float
    cached_part: float = 1.0
    """What a cached token costs, of one that is not: 1 counts tokens, 0.1 their price."""
    spent: float = 0.0
    calls: int = 0
    is_empty: bool = False
    _sent: str = ""

    def pay(self, request: CompletionRequest, answer: str) -> None:
        """Charge a question and its answer.

        Raises:
            BudgetSpent: they have no room.
        """
        text = "".join(request.texts())
        known = _common_prefix(text, self._sent)
        tokens = estimate_tokens(text[known:]) + self.cached_part * estimate_tokens(text[:known])
        price = tokens + estimate_tokens(answer)
        if self.spent + price > self.budget:
            self.is_empty = True
            raise BudgetSpent
        self.spent += price
        self.calls += 1
        self._sent = text


def _common_prefix(one: str, other: str) -> int:
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if one[:middle] == other[:middle] else (low, middle - 1)
    return low


@dataclass
class TaskHost:
    """Answers questions and turns with an engineer; implements `AskModel` and `SessionHost`."""

    lab: TaskLab
    engineer: Engineer
    purse: Purse
    prompts: PromptSet = field(default_factory=builtin_prompts)
    rewriter: None = None
    ended: SessionEndReason | None = None
    _work: Generator[tuple[str, str], str, None] | None = None

    def _render(self, role: str, fill: FillPrompt) -> CompletionRequest:
        target = self.lab.task.target
        return render_request(self.prompts, role, target, fill, model="engineer", bounds=BOUNDS, effort=None)

    async def __call__(self, role: str, fill: FillPrompt, form: AnswerSchema | None = None) -> str:
        request = self._render(role, fill).model_copy(update={"answer": form})
        case = "".join(part.text for part in request.case)
        if SLIP in case:
            answer = self.engineer.last_answer
        elif role == "planner":
            answer = self.engineer.plan()
        elif role == "executor":
            answer = self.engineer.write()
        else:
            answer = self.engineer.repair(case)
        self.purse.pay(request, answer)
        return answer

    def find_stop(self, turn: int, share: Amount) -> None:
        del turn, share

    async def begin(self, role: str, tools: Sequence[str], turns: int) -> None:
        del tools, turns
        is_work = role == executor_session.ROLE
        self._work = self.engineer.work() if is_work else self.engineer.read_and_plan(MOST_PLANS)

    async def converse(
        self, role: str, fill: FillPrompt, tools: Sequence[ToolDefinition], dialogue: Sequence[DialogueStep]
    ) -> ModelTurn:
        assert self._work is not None
        last = dialogue[-1].results[-1].text if dialogue else None
        try:
            name, said = next(self._work) if last is None else self._work.send(last)
        except StopIteration:
            name, said = "give_up", json.dumps({"reason": "there is nothing more to do"})
        turn = ModelTurn(text="", calls=(ToolCall(id=f"c{len(dialogue)}", name=name, arguments=said),))
        request = self._render(role, fill).model_copy(
            update={"tools": tuple(tools), "dialogue": tuple(dialogue)}
        )
        try:
            self.purse.pay(request, name + said)
        except BudgetSpent as error:
            raise RoleError(ErrorInfo(code="budget", message="the next turn has no room")) from error
        return turn

    def find_past_call(self, turn: int, number: int) -> None:
        del turn, number

    async def start_call(self, turn: int, number: int, call: ToolCall) -> None:
        del turn, number, call

    async def complete_call(self, turn: int, number: int, call: ToolCall, made: PastCall) -> None:
        del turn, number, call, made

    async def end(self, reason: SessionEndReason, detail: str, submitted: str | None) -> None:
        del detail, submitted
        self.ended = reason


@dataclass(frozen=True, slots=True)
class TaskResult:
    """What came of one task: its best gain (1 if none), what was spent, and the drafts right at once."""

    gain: float
    spent: float
    calls: int
    plans: int
    drafts: int
    right_at_once: int

    @property
    def is_solved(self) -> bool:
        return self.gain >= NEEDED_GAIN


@dataclass
class TaskRun:
    """One engineer at one task, in one form, until it is solved, the budget is spent or no idea is left.

    The forms: plans and kernels by `question`; kernels in a `loop` with tools; `sessions` for plans too, each
    of which submits several.
    """

    host: TaskHost
    form: str
    blobs: dict[str, bytes] = field(default_factory=dict)
    plans: int = 0
    waiting: list[Plan] = field(default_factory=list)
    """Plans that a session submitted and nobody has carried out."""

    async def run(self) -> TaskResult:
        lab, engineer, purse = self.host.lab, self.host.engineer, self.host.purse
        first = lab.judge(lab.kernel)
        assert first.benchmark is not None
        gain = 1.0
        try:
            while engineer.has_ideas() and gain < NEEDED_GAIN and not purse.is_empty:
                found = await self._carry_out_plan()
                if found is not None and found.is_correct and found.benchmark is not None:
                    gain = max(gain, first.benchmark.latency_ms / found.benchmark.latency_ms)
        except BudgetSpent:
            pass
        return TaskResult(gain, purse.spent, purse.calls, self.plans, engineer.drafts, engineer.right_at_once)

    async def _carry_out_plan(self) -> Evaluation | None:
        roles = LlmRoles("local", self.host, session=self.host if self.form != "question" else None)
        self.plans += 1
        try:
            if not self.waiting:
                found = await roles.plan(self._plan_request(), self._read)
                self.waiting = [found.plan, *found.further]
            plan = self.waiting.pop(0)
            failed: list[FailedTry] = []
            for repair in range(1 + REPAIRS if self.form == "question" else 1):
                made = await roles.implement(self._implement_request(plan, failed, repair), self._read)
                judged = self.host.lab.judge(made.source)
                if judged.is_correct or judged.error is None:
                    return judged
                source = self._put(made.source.encode())
                failed.append(FailedTry(source=source, error=judged.error, verdict=judged.verdict))
        except RoleError:
            return None
        return None

    def _put(self, data: bytes) -> str:
        self.blobs[digest_of(data)] = data
        return digest_of(data)

    def _read(self, digest: str) -> bytes:
        return self.blobs[digest]

    def _place(self) -> Mapping[str, Any]:
        lab = self.host.lab
        for data in lab.problem.files.values():
            self._put(data)
        benchmark = lab.judge(lab.kernel).benchmark
        assert benchmark is not None
        parent = Candidate(
            id="r0.b0.p0.k0.f0",
            parent=None,
            lineage="r0.b0.p0.k0.f0",
            round=0,
            source=self._put(lab.kernel.encode()),
            code=digest_of(lab.kernel.encode()),
            technique=None,
            title="the first kernel",
            benchmark=benchmark_of(benchmark.latency_ms),
            profile=None,
            bottleneck="dma",
        )
        return {
            "draw": self.plans,
            "problem": lab.problem.make_ref(),
            "size": SIZE,
            "target": lab.task.target,
            "parent": parent,
        }

    def _plan_request(self) -> PlanRequest:
        place, by_session = self._place(), self.form == "sessions"
        return PlanRequest(
            key=f"r{self.plans}.b0.p0.k0.f0.planner",
            role="planner",
            plans=MOST_PLANS if by_session else 1,
            most_plans=MOST_PLANS if by_session else 1,
            session=self._session_request() if by_session else None,
            bounds=remote.compute_bounds(self.host.lab.problem, SIZE, self.host.lab.task.target),
            best_ms=place["parent"].latency_ms,
            context=self._put(canonical_json(EMPTY.model_dump(mode="json"))),
            **place,
        )

    def _implement_request(self, plan: Plan, failed: Sequence[FailedTry], repair: int) -> ImplementRequest:
        return ImplementRequest(
            key=f"r{self.plans}.b0.p0.k0.f{repair}.executor",
            role="executor",
            plan=plan,
            failed=tuple(failed),
            session=None if self.form == "question" else self._session_request(),
            **self._place(),
        )

    def _session_request(self) -> SessionRequest:
        lab = self.host.lab
        return SessionRequest(
            turns=TURNS,
            context=self._put(canonical_json(EMPTY.model_dump(mode="json"))),
            bounds=remote.compute_bounds(lab.problem, SIZE, lab.task.target),
            within_percent=2.0,
        )


async def attempt_task(
    task: Task, form: str, *, budget: float, seed: int, cached_part: float = 1.0
) -> TaskResult:
    """Return what a simulated engineer brings about in one form, named in `TaskRun`, with a budget."""
    lab = lab_of(task)
    luck = Random(f"{seed}|{task.name}")
    ideas = lab.ideas()
    luck.shuffle(ideas)
    engineer = Engineer(ideas, Skill.from_rates(), luck)
    host = TaskHost(lab, engineer, Purse(budget, cached_part))
    return await TaskRun(host, form).run()
