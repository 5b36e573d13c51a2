"""Sample requests of a run's first round, with made-up latencies, to render prompts before a run starts."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from agent_core.effects import FailedTry, ImplementRequest, PlanRequest, ReflectRequest, SummarizeRequest
from agent_core.roles.llm import LlmRoles
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


class SampleRequests:
    """Builds the first request to each role, for the run's initial kernel."""

    def __init__(self, config: RunConfig, problem: Problem, kernel: str) -> None:
        self._config = config
        self._problem = problem
        self._blobs = {digest_of(data): data for data in problem.files.values()}
        target = load_target(config.target)
        technique = next(iter(target.menu().values()))
        self._bottleneck = min(technique.bottlenecks)
        counters = dict.fromkeys(target.profile.counters, 12345.678)
        profile = canonical_json({"predicted": True, "counters": counters, "bottleneck": self._bottleneck})
        context: dict[str, Any] = {"memory": [], "reflections": [], "attempts": [], "credits": {}}
        self._context = self._put_blob(canonical_json(context))
        self._source = self._put_blob(kernel.encode())
        self._parent = Candidate(
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

    def ask_role(self, role: str, roles: LlmRoles) -> Coroutine[Any, Any, object]:
        """Return a coroutine that asks a role for the first time."""
        makers: Mapping[str, Callable[[], Coroutine[Any, Any, object]]] = {
            "planner": lambda: roles.plan(self._plan_request(), self._blobs.__getitem__),
            "executor": lambda: roles.implement(self._implement_request(), self._blobs.__getitem__),
            "repairer": lambda: roles.implement(self._repair_request(), self._blobs.__getitem__),
            "reflector": lambda: roles.reflect(self._reflect_request(), self._blobs.__getitem__),
            "summarizer": lambda: roles.summarize(self._summarize_request(), self._blobs.__getitem__),
        }
        return makers[role]()

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
            bounds=LatencyBounds(plain_ms=1, tight_ms=1),
            parent=self._parent,
            best_ms=1,
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
