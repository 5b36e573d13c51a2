"""The scripted proposer, for tests and crash sweeps: deterministic, instant, with failures of every kind.

It knows one change: halve or double an integer constant of the kernel (`TILE_N = 512` at the start of a
line). This gives kernels that differ in verdict and latency on any evaluator. Everything follows from the
request. Its draw decides which constant changes and, with fixed odds, whether a role fails, whether a kernel
comes out broken (its repair is the intended kernel), or whether a repair breaks again in the same way.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from agent_core.effects import (
    ImplementRequest,
    LookAheadRequest,
    PlanRequest,
    ReflectRequest,
    SummarizeRequest,
    Variant,
    Variants,
)
from agent_core.roles import (
    ExperienceAnswer,
    KernelAnswer,
    LookAheadAnswer,
    PlanAnswer,
    Predict,
    ReadBlob,
    ReflectionAnswer,
    RoleError,
)
from agent_core.roles.mechanical import experience_of, reflection_of, speedup_of
from state.model import EffectKey, ErrorInfo, Plan, Prediction, RewriteStep, digest_of

CONSTANT = re.compile(r"^([A-Z][A-Z0-9_]*) = (\d+)\b", re.MULTILINE)
BROKEN_SOURCE = "\ndef broken(:\n"
"""Appended to a kernel that should be refused: it is not valid Python."""

PLAN_FAILS_ONE_IN = 11
KERNEL_FAILS_ONE_IN = 13
KERNEL_BREAKS_ONE_IN = 5
REPAIR_BREAKS_ONE_IN = 3
NO_EXPERIENCE_ONE_IN = 4


class ScriptedProposer:
    """Answers every role from the request alone."""

    name = "scripted"
    repairs = True

    async def look_ahead(
        self, request: LookAheadRequest, read: ReadBlob, predict: Predict
    ) -> LookAheadAnswer:
        """Predict every constant halved and doubled; the variants are the fastest of these."""
        source = read(request.parent.source).decode()
        constants = [(name, int(value)) for name, value in CONSTANT.findall(source)]
        steps = [_constant_step(name, value * 2, value) for name, value in constants]
        steps += [_constant_step(name, value // 2, value) for name, value in constants if value > 1]
        made = [_set_constant(source, step.choice) for step in steps[: request.predictions]]
        answers = await predict(made)
        found = sorted(
            (one.latency_ms, number) for number, one in enumerate(answers) if one.latency_ms is not None
        )
        chosen = found[: request.variants]
        variants = [
            Variant(steps=(steps[n],), source=digest_of(made[n].encode()), latency_ms=ms) for ms, n in chosen
        ]
        return LookAheadAnswer(
            variants=Variants(parent_ms=request.parent.latency_ms, found=tuple(variants)),
            sources={digest_of(made[n].encode()): made[n].encode() for _, n in chosen},
            predicted=len(found),
            failed=len(answers) - len(found),
            instructions=sum(one.instructions for one in answers),
        )

    async def plan(self, request: PlanRequest, read: ReadBlob) -> PlanAnswer:
        if request.variants is not None:
            return PlanAnswer(
                _plan_from_variants(request, Variants.model_validate_json(read(request.variants)))
            )
        constants = CONSTANT.findall(read(request.parent.source).decode())
        if not constants or request.draw % PLAN_FAILS_ONE_IN == 0:
            raise _make_role_error("nothing_applies", f"{request.parent.id}: no constant to change")
        name, value = constants[(request.draw >> 8) % len(constants)]
        doubles = int(value) < 2 or (request.draw >> 16) % 2 == 0
        changed = int(value) * 2 if doubles else int(value) // 2
        plan = Plan(
            technique="double_constant" if doubles else "halve_constant",
            site=name,
            title=f"{name} = {value} -> {changed}",
            prediction=Prediction(speedup=1.25 if doubles else 1.1, reason="the script says so"),
            detail={"name": name, "value": changed},
        )
        return PlanAnswer(plan)

    async def implement(self, request: ImplementRequest, read: ReadBlob) -> KernelAnswer:
        assert isinstance(request.plan.detail, dict)
        if not request.failed and request.draw % KERNEL_FAILS_ONE_IN == 0:
            raise _make_role_error("scripted_failure", f"{request.key}: the script says that this one fails")
        source = _set_constant(read(request.parent.source).decode(), request.plan.detail)
        odds = REPAIR_BREAKS_ONE_IN if request.failed else KERNEL_BREAKS_ONE_IN
        if (request.draw >> 8) % odds == 0:
            source += BROKEN_SOURCE
        return KernelAnswer(source, request.plan.title)

    async def summarize(self, request: SummarizeRequest, read: ReadBlob) -> ExperienceAnswer:  # noqa: ARG002 - the protocol
        key = EffectKey.parse(request.key)
        if key.plan % NO_EXPERIENCE_ONE_IN == NO_EXPERIENCE_ONE_IN - 1:
            return ExperienceAnswer(None)
        summary = f"{request.plan.title}: {speedup_of(request):.3f}x"
        return ExperienceAnswer(experience_of(request, summary))

    async def reflect(self, request: ReflectRequest, read: ReadBlob) -> ReflectionAnswer:  # noqa: ARG002 - the protocol
        return ReflectionAnswer(reflection_of(request))

    async def aclose(self) -> None:
        """Do nothing: no resource is held."""


def _constant_step(name: str, value: int, before: int) -> RewriteStep:
    technique = "double_constant" if value > before else "halve_constant"
    choice: dict[str, int | str] = {"name": name, "value": value}
    return RewriteStep(technique=technique, site=name, title=f"{name} = {before} -> {value}", choice=choice)


def _plan_from_variants(request: PlanRequest, seen: Variants) -> Plan:
    number = EffectKey.parse(request.key).plan
    if number >= len(seen.found):
        raise _make_role_error("nothing_applies", f"{request.parent.id}: {len(seen.found)} variants found")
    one = seen.found[number]
    (step,) = one.steps
    assert one.latency_ms is not None
    speedup = seen.parent_ms / one.latency_ms
    return Plan(
        technique=step.technique,
        site=step.site,
        title=step.title,
        prediction=Prediction(speedup=speedup, reason="the script looked ahead"),
        detail=step.choice,
        steps=(step,),
    )


def _set_constant(source: str, change: Mapping[str, Any]) -> str:
    line = re.compile(rf"^{change['name']} = \d+\b", re.MULTILINE)
    return line.sub(f"{change['name']} = {change['value']}", source)


def create() -> ScriptedProposer:
    """Return the proposer, as the registry expects it."""
    return ScriptedProposer()


def _make_role_error(code: str, message: str) -> RoleError:
    return RoleError(ErrorInfo(code=code, message=message))
