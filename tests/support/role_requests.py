"""Questions without a model: requests on a real problem, and an `Ask` that is given its answers."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import nki_sim
import seeds
from agent_core.effects import (
    FailedTry,
    ImplementRequest,
    LearningContext,
    PlanRequest,
    ReflectRequest,
    SummarizeRequest,
)
from agent_core.prompting import PromptBlock, PromptSet, builtin_prompts
from agent_core.providers.completion import AnswerSchema
from agent_core.roles.ask_protocol import FillPrompt, TokenBudget
from nki_sim import ArraySpec, targets
from nki_sim.timing import counters, explain
from nki_sim.timing.forecast import forecast_program
from state.model import (
    Benchmark,
    Candidate,
    Digest,
    ErrorInfo,
    Evaluation,
    ExperienceKind,
    LatencyBounds,
    Plan,
    Prediction,
    Verdict,
    canonical_json,
    digest_of,
)

PROBLEM = seeds.load_problem("rmsnorm_matmul")
TARGET = "trn2"
PLAN = Plan(
    technique="hoist",
    site="i_m",
    title="load w once",
    prediction=Prediction(speedup=1.5, counter="hbm_read_bytes", reason="w is read 32 times"),
    detail={"steps": ["move the load of w in front of the loop"], "bottleneck": "dma", "risk": "SBUF"},
)
EMPTY = LearningContext(memory=(), reflections=(), attempts=(), credits={})


def count_characters(text: str) -> int:
    return len(text)


@dataclass
class Answers:
    """An `Ask` that gives these answers one after the other, and keeps what it was asked."""

    answers: Iterable[str]
    target: str = TARGET
    tokens: int = 200_000
    prompts: PromptSet = field(default_factory=builtin_prompts)
    asked: list[tuple[str, Mapping[str, str]]] = field(default_factory=list)
    forms: list[AnswerSchema | None] = field(default_factory=list)

    async def __call__(self, role: str, fill: FillPrompt, form: AnswerSchema | None = None) -> str:
        self.forms.append(form)
        values = fill(TokenBudget(self.tokens, count_characters, self.target, self.prompts))
        self.prompts.render_role(role, self.target, values)
        self.asked.append((role, values))
        return list(self.answers)[len(self.asked) - 1]

    def prompt(self, number: int = -1) -> Sequence[PromptBlock]:
        """Return a prompt as it was asked."""
        role, values = self.asked[number]
        return self.prompts.render_role(role, self.target, values)

    def values(self, number: int = -1) -> Mapping[str, str]:
        return self.asked[number][1]


@dataclass
class Blobs:
    """Blobs by digest, with those of the problem in it."""

    held: dict[Digest, bytes] = field(
        default_factory=lambda: {digest_of(data): data for data in PROBLEM.files.values()}
    )

    def put(self, data: bytes | str) -> Digest:
        found = data.encode() if isinstance(data, str) else data
        self.held[digest_of(found)] = found
        return digest_of(found)

    def read(self, digest: Digest) -> bytes:
        return self.held[digest]

    def candidate(self, source: str | None = None, **changes: Any) -> Candidate:
        """Return a candidate, by default the problem's first kernel with the simulator's profile."""
        benchmark = changes.pop("benchmark", benchmark_of(1.0))
        one = Candidate(
            id="r0.b0.p0.k0.f0",
            parent=None,
            lineage="r0.b0.p0.k0.f0",
            round=0,
            source=self.put(PROBLEM.kernel if source is None else source),
            code=digest_of(b"code"),
            technique=None,
            title="the first kernel",
            benchmark=benchmark,
            profile=self.put(write_profile()),
            bottleneck="dma",
        )
        return one.model_copy(update=changes)

    def plan_request(self, context: LearningContext = EMPTY, **changes: Any) -> PlanRequest:
        asked = {
            "key": "r1.b0.p0.k0.f0.planner",
            "role": "planner",
            "draw": 7,
            "plans": 4,
            "problem": PROBLEM.make_ref(),
            "size": "reduced",
            "target": TARGET,
            "bounds": LatencyBounds(plain_ms=0.5, tight_ms=0.6),
            "parent": changes.pop("parent", None) or self.candidate(),
            "best_ms": 0.9,
            "context": self.put(canonical_json(context.model_dump(mode="json"))),
        }
        return PlanRequest(**(asked | changes))

    def implement_request(
        self, *, plan: Plan = PLAN, failed: Sequence[tuple[str, ErrorInfo]] = (), **changes: Any
    ) -> ImplementRequest:
        asked = {
            "key": "r1.b0.p0.k0.f0.executor",
            "role": "executor",
            "draw": 7,
            "problem": PROBLEM.make_ref(),
            "size": "reduced",
            "target": TARGET,
            "parent": self.candidate(),
            "plan": plan,
            "failed": tuple(
                FailedTry(source=self.put(source), error=error, verdict=Verdict.LINT_ERROR)
                for source, error in failed
            ),
        }
        return ImplementRequest(**(asked | changes))

    def summarize_request(
        self, fast: str, benchmark: Benchmark | None = None, **changes: Any
    ) -> SummarizeRequest:
        benchmark = benchmark or benchmark_of(0.8)
        asked = {
            "key": "r1.b0.p0.k0.f0.summarizer",
            "role": "summarizer",
            "kind": ExperienceKind.POSITIVE,
            "slow": self.candidate(),
            "fast": self.candidate(fast, id="r1.b0.p0.k0.f0", benchmark=benchmark),
            "plan": PLAN,
        }
        return SummarizeRequest(**(asked | changes))

    def reflect_request(self, evaluation: Evaluation | None, **changes: Any) -> ReflectRequest:
        asked = {
            "key": "r1.b0.p0.k0.f0.reflector",
            "role": "reflector",
            "operator": "rmsnorm_matmul",
            "parent": self.candidate(),
            "plan": PLAN,
            "evaluation": evaluation,
            "error": evaluation.error if evaluation else None,
        }
        return ReflectRequest(**(asked | changes))


def benchmark_of(latency_ms: float) -> Benchmark:
    return Benchmark(
        latency_ms=latency_ms, lo_ms=latency_ms * 0.9, hi_ms=latency_ms * 1.1, predicted=True, samples=1
    )


def evaluation_of(verdict: Verdict = Verdict.CORRECT, **changes: Any) -> Evaluation:
    """Return an evaluation of a kernel 1.11 times as fast, or refused."""
    correct = verdict is Verdict.CORRECT
    one = Evaluation(
        verdict=verdict,
        stage="profile" if correct else "rules",
        code=digest_of(b"another"),
        error=None if correct else ErrorInfo(code="sbuf_full", message="the tiles need 300000 bytes", line=3),
        benchmark=benchmark_of(0.9) if correct else None,
        bottleneck="tensor" if correct else None,
        target=TARGET,
        toolchain="sim",
    )
    return one.model_copy(update=changes)


@cache
def write_profile() -> str:
    """Return the profile that the judge writes of the problem's first kernel, at the reduced size."""
    dims = PROBLEM.spec.dims("reduced")
    arguments = [ArraySpec(item.resolve_kernel_shape(dims), item.dtype) for item in PROBLEM.spec.inputs]
    found = forecast_program(nki_sim.trace(PROBLEM.kernel, args=arguments), targets.load(TARGET))
    told = explain.explain_latency(found)
    parts = {
        "predicted": True,
        "counters": dict(counters.profile_counters(found)),
        "bottleneck": told.bottleneck,
        "busy_ms": told.busy_ms,
        "top_lines": [{"line": one.line, "ms": one.ms, "op": one.op} for one in told.critical_path[:10]],
        "waits_ms": {
            track.engine: {f"{wait.cause} {wait.on}".strip(): wait.ms for wait in track.waits}
            for track in told.tracks
        },
        "memory": {
            use.memory: {"peak": use.peak, "capacity": use.capacity, "unit": use.unit}
            for use in told.occupancy
        },
    }
    return canonical_json(parts).decode()


def fenced_block(value: object, info: str = "json") -> str:
    """Return a value as the fenced block of an answer."""
    text = value if isinstance(value, str) else json.dumps(value)
    return f"```{info}\n{text}\n```\n"


def plan_reply(**changes: Any) -> dict[str, Any]:
    """Return what a planner's block says."""
    said: dict[str, Any] = {
        "technique": "hoist",
        "site": "i_m",
        "title": "load w once",
        "bottleneck": "dma",
        "steps": ["load w in front of the loop over rows"],
        "prediction": {
            "speedup": 1.4,
            "counter": "hbm_read_bytes",
            "direction": -1,
            "reason": "w is 32 MiB of the reads",
        },
        "risk": "SBUF may not hold it",
    }
    return said | changes
