"""A search space drawn by hand: kernels are paths, and a table gives each path's latency.

A kernel is a path such as `k.0.1`: plan 1 of plan 0 of the root `k`. `Paths` proposes, for plan p of a
kernel, the kernel's path with `.p` added; `judged_by` makes the judge of a table.
"""

from __future__ import annotations

from collections.abc import Mapping

from agent_core.effects import ImplementRequest, PlanRequest
from agent_core.roles import KernelAnswer, PlanAnswer, ReadBlob
from agent_core.roles.scripted import ScriptedProposer
from state.model import (
    Benchmark,
    Candidate,
    EffectKey,
    Evaluation,
    Plan,
    Prediction,
    Role,
    Verdict,
    digest_of,
)
from tests.support.world import Judge, World, correct_evaluation, refused_evaluation

ROOT = "k"


class Paths(ScriptedProposer):
    """Plan p adds `.p` to the path; its technique is `move_p`."""

    async def plan(self, request: PlanRequest, read: ReadBlob) -> PlanAnswer:
        return PlanAnswer(make_plan(f"move_{EffectKey.parse(request.key).plan}"))

    async def implement(self, request: ImplementRequest, read: ReadBlob) -> KernelAnswer:
        parent = read(request.parent.source).decode()
        return KernelAnswer(f"{parent}.{EffectKey.parse(request.key).plan}", "a step")


def judged_by(
    table: Mapping[str, float],
    *,
    otherwise: float = 100.0,
    noise: float | None = None,
    draws: Mapping[str, tuple[float, ...]] | None = None,
) -> Judge:
    """Return a judge that finds every path correct, with the latency (ms) and the draws of the tables."""
    known = draws or {}
    return lambda source: correct_evaluation(
        source, table.get(source, otherwise), noise=noise, draws_ms=known.get(source, ())
    )


def make_plan(technique: str = "move", *, speedup: float = 1.1, site: str = "here") -> Plan:
    return Plan(technique=technique, site=site, title=technique, prediction=Prediction(speedup=speedup))


def make_candidate(
    name: str,
    latency_ms: float,
    *,
    parent: str | None = None,
    lineage: str | None = None,
    technique: str | None = None,
    code: str | None = None,
    noise: float | None = None,
    draws_ms: tuple[float, ...] = (),
    bottleneck: str | None = "memory",
) -> Candidate:
    """Return a candidate; `name` is its id, or any word where its place is of no interest."""
    half = latency_ms * (noise or 0.0)
    return Candidate(
        id=name,
        parent=parent,
        lineage=lineage or name,
        round=int(name[1 : name.index(".")]) if name.startswith("r") and "." in name else 0,
        source=digest_of(name.encode()),
        code=digest_of((code or name).encode()),
        technique=technique,
        title=name,
        benchmark=Benchmark(
            latency_ms=latency_ms,
            lo_ms=latency_ms - half,
            hi_ms=latency_ms + half,
            predicted=noise is None,
            samples=5,
            draws_ms=draws_ms,
        ),
        profile=None,
        bottleneck=bottleneck,
    )


def judge_flaws(source: str) -> Evaluation:
    """Judge a path: one with a `!` does not compile, and says what stands behind it."""
    if "!" in source:
        return refused_evaluation(source, Verdict.COMPILE_ERROR, f"flaw {source[source.index('!') :]}")
    return correct_evaluation(source, 10.0 if source == ROOT else 5.0)


def list_started_effects(world: World, role: Role) -> list[EffectKey]:
    """Return the keys of the effects of a role that a world started, in order."""
    keys = [EffectKey.parse(event.key) for event in world.events if hasattr(event, "delivery")]
    return [key for key in keys if key.role is role]
