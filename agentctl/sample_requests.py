"""Sample requests to each role, to render prompts before anything is sent.

Before a run starts, latencies are made up. Of a run that the log has, kernel, latency, profile and memory are
its own. The plan, and the error of a repair, are samples in both cases.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any

from agent_core.effects import (
    FailedTry,
    ImplementRequest,
    PlanRequest,
    ReflectRequest,
    SessionRequest,
    SummarizeRequest,
)
from agent_core.roles import ReadBlob
from agent_core.roles.ask_protocol import FillPrompt, TokenBudget
from agent_core.roles.llm import LlmRoles, PlannerOptions, planner_session, session
from agent_core.round_view import MOST_PLANS
from seeds import Problem
from state.model import (
    Benchmark,
    Candidate,
    ErrorInfo,
    Evaluation,
    ExperienceKind,
    LatencyBounds,
    Plan,
    Prediction,
    RunConfig,
    Verdict,
    canonical_json,
    digest_of,
)
from targets.registry import load_target


@dataclass(frozen=True, slots=True)
class RunStanding:
    """Where a run of the log stands: the kernel to improve, and `context`, what was learnt, as JSON."""

    parent: Candidate
    bounds: LatencyBounds
    best_ms: float
    context: bytes
    read: ReadBlob


class SampleRequests:
    """Builds the first request to each role, for the run's initial kernel or for where the run stands."""

    def __init__(
        self, config: RunConfig, problem: Problem, kernel: str, standing: RunStanding | None = None
    ) -> None:
        self._config = config
        self._problem = problem
        self._blobs = {digest_of(data): data for data in problem.files.values()}
        target = load_target(config.target)
        technique = next(iter(target.menu().values()))
        self._bottleneck = min(technique.bottlenecks)
        counters = dict.fromkeys(target.profile.counters, 12345.678)
        profile = canonical_json({"predicted": True, "counters": counters, "bottleneck": self._bottleneck})
        context: dict[str, Any] = {"memory": [], "reflections": [], "attempts": [], "credits": {}}
        self._source = self._put_blob(kernel.encode())
        first = Candidate(
            id="r0.b0.p0.k0.f0",
            parent=None,
            lineage="r0.b0.p0.k0.f0",
            round=0,
            source=self._source,
            code=self._source,
            technique=None,
            title="the first kernel",
            benchmark=Benchmark(latency_ms=1, lo_ms=1, hi_ms=1, predicted=True, samples=1),
            profile=self._put_blob(profile),
            bottleneck=self._bottleneck,
        )
        self._standing = standing or RunStanding(
            parent=first,
            bounds=LatencyBounds(plain_ms=1, tight_ms=1),
            best_ms=1,
            context=canonical_json(context),
            read=self._blobs.__getitem__,
        )
        self._parent = self._standing.parent
        self._context = self._put_blob(self._standing.context)
        self._plan = Plan(
            technique=technique.id,
            site="the loop over the rows",
            title="load what does not change once, in front of the loop",
            prediction=Prediction(
                speedup=1.2, counter=next(iter(counters)), reason="it is read in every turn"
            ),
            detail={"steps": ["move the load in front of the loop", "read the tile in the loop"]},
        )

    def _put_blob(self, data: bytes) -> str:
        self._blobs[digest_of(data)] = data
        return digest_of(data)

    def _read(self, digest: str) -> bytes:
        found = self._blobs.get(digest)
        return self._standing.read(digest) if found is None else found

    def ask_role(self, role: str, roles: LlmRoles) -> Coroutine[Any, Any, object]:
        """Return a coroutine that asks a role for the first time."""
        makers: Mapping[str, Callable[[], Coroutine[Any, Any, object]]] = {
            "planner": lambda: roles.plan(self._plan_request(), self._read),
            "executor": lambda: roles.implement(self._implement_request(), self._read),
            "repairer": lambda: roles.implement(self._repair_request(), self._read),
            "reflector": lambda: roles.reflect(self._reflect_request(), self._read),
            "summarizer": lambda: roles.summarize(self._summarize_request(), self._read),
        }
        return makers[role]()

    def fill_session(self, role: str) -> FillPrompt:
        """Return what fills the prompt of a session of planner, executor or repairer."""
        terms = SessionRequest(
            turns=self._config.llm.turns,
            context=self._context,
            bounds=self._standing.bounds,
            within_percent=self._config.search.within_percent,
        )
        if role == "planner":
            asked = self._plan_request()
            most = min(MOST_PLANS, asked.plans)
            planned = asked.model_copy(update={"session": terms, "most_plans": most})
            return planner_session.make_fill(planned, self._read, PlannerOptions())
        request = self._repair_request() if role == "repairer" else self._implement_request()
        held = request.model_copy(update={"session": terms})

        def filled(room: TokenBudget) -> Mapping[str, str]:
            return session.fill_prompt(held, self._read, room)

        return filled

    def _key_fields(self, role: str) -> dict[str, Any]:
        return {"key": f"r1.b0.p0.k0.f0.{role}", "role": role}

    def _problem_fields(self) -> dict[str, Any]:
        config = self._config
        return {"problem": self._problem.make_ref(), "size": config.size, "target": config.target, "draw": 1}

    def _plan_request(self) -> PlanRequest:
        return PlanRequest(
            **self._key_fields("planner"),
            **self._problem_fields(),
            plans=self._config.search.plans,
            bounds=self._standing.bounds,
            parent=self._parent,
            best_ms=self._standing.best_ms,
            context=self._context,
        )

    def _implement_request(self) -> ImplementRequest:
        return ImplementRequest(
            **self._key_fields("executor"), **self._problem_fields(), parent=self._parent, plan=self._plan
        )

    def _repair_request(self) -> ImplementRequest:
        error = ErrorInfo(code="memory_full", message="the tiles need more than there is", line=1)
        tried = FailedTry(source=self._source, error=error, verdict=Verdict.COMPILE_ERROR)
        return self._implement_request().model_copy(update={"failed": (tried,)})

    def _reflect_request(self) -> ReflectRequest:
        evaluation = Evaluation(
            verdict=Verdict.CORRECT,
            stage="profile",
            code=self._source,
            benchmark=self._parent.benchmark,
            bottleneck=self._bottleneck,
            target=self._config.target,
            toolchain="",
        )
        return ReflectRequest(
            **self._key_fields("reflector"),
            operator=self._problem.name,
            parent=self._parent,
            plan=self._plan,
            evaluation=evaluation,
            error=None,
        )

    def _summarize_request(self) -> SummarizeRequest:
        return SummarizeRequest(
            **self._key_fields("summarizer"),
            kind=ExperienceKind.POSITIVE,
            slow=self._parent,
            fast=self._parent,
            plan=self._plan,
        )
