"""Looking ahead as a role: a request becomes a search, what it found becomes variants, and these plans."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from math import log
from random import Random
from typing import Any

from agent_core.builtin.lookahead import Expansion, Found, Limits, Move, Search, distinct
from agent_core.effects import LearningContext, LookAheadRequest, Variant, Variants
from agent_core.roles import LookAheadAnswer, Predict, ReadBlob
from state.model import Plan, Prediction, Step, digest_of

Ask = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]
"""Has a job done by the pool of the rewrite engine; raises RoleError."""


async def look_ahead(
    request: LookAheadRequest, read: ReadBlob, predict: Predict, shapes: dict[str, Any], ask: Ask
) -> LookAheadAnswer:
    """Search from the request's parent.

    Raises:
        RoleError: the parent cannot be read, or a pool or the evaluator failed.
    """
    context = LearningContext.model_validate_json(read(request.context))
    credits_ = {name: (item.tries, item.log_gain) for name, item in context.credits.items()}

    async def expand(source: str) -> Expansion:
        made = await ask({"job": "expand", "source": source, "credits": credits_, **shapes})
        return Expansion(tuple(Move(**one) for one in made["moves"]), tuple(made["reasons"]))

    async def combine(source: str, steps: Sequence[Step]) -> list[tuple[tuple[int, ...], str]]:
        told = [step.model_dump(mode="json") for step in steps]
        made = await ask({"job": "combine", "source": source, "steps": told, **shapes})
        return [(tuple(one["steps"]), one["source"]) for one in made["made"]]

    limits = Limits(request.predictions, request.instructions, request.depth, request.width)
    search = Search(expand, combine, predict, limits, Random(request.draw))  # noqa: S311  a search, no secret
    parent_ms = request.parent.latency_ms
    found = await search.run(read(request.parent.source).decode(), parent_ms)
    chosen = distinct(found, request.variants, parent_ms, frozenset(request.known))
    variants = Variants(parent_ms=parent_ms, found=tuple(map(_variant, chosen)), reasons=search.reasons)
    return LookAheadAnswer(
        variants=variants,
        sources={digest_of(one.source.encode()): one.source.encode() for one in chosen},
        predicted=search.predicted,
        failed=search.failed,
        instructions=search.instructions,
    )


def _variant(one: Found) -> Variant:
    return Variant(steps=one.steps, source=digest_of(one.source.encode()), latency_ms=one.latency_ms)


def plan_of(variant: Variant, parent_ms: float) -> Plan:
    """The plan to carry a variant out; its technique is that of the step predicted to bring most."""
    steps = variant.steps
    main = max(steps, key=lambda step: step.speedup)
    speedup = parent_ms / variant.latency_ms
    return Plan(
        technique=main.technique,
        site="; ".join(step.site for step in steps),
        title="; ".join(step.title for step in steps),
        prediction=Prediction(speedup=round(speedup, 6), reason=_reason(variant, parent_ms)),
        detail={"source": variant.source},
        steps=steps,
    )


def _reason(variant: Variant, parent_ms: float) -> str:
    total = log(parent_ms / variant.latency_ms)
    gains = "; ".join(f"{step.technique} {step.speedup:.3f}x" for step in variant.steps)
    verb = "down" if total > 0 else "up"
    return f"looking ahead predicts {variant.latency_ms:.4g} ms, {verb} from {parent_ms:.4g} ms: {gains}"
