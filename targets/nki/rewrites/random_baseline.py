"""Draws variants uniformly, for the strategies that a search is compared with: no ranking, no estimate.

If predictions are allowed, more sequences are drawn than wanted and the fastest by prediction are taken;
otherwise the first ones drawn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from agent_core.effects import LookAheadRequest, Variant, Variants
from agent_core.roles import LookAheadAnswer
from state.model import PredictedLatency, RewriteStep, digest_of
from targets.nki.rewrites.prediction_scale import PredictionScale, RunEngineJob

SPARE_FACTOR = 2
"""Sequences drawn for each that is wanted without predictions: some lead to the same kernel."""
PREDICTED_FACTOR = 4
"""Sequences drawn for each that is wanted if predictions choose among them: drawing takes time too."""


async def draw_variants(
    request: LookAheadRequest, parent: str, ask: RunEngineJob, shapes: Mapping[str, Any]
) -> LookAheadAnswer:
    """Return the first sequences drawn, as many as are wanted, without predictions.

    Raises:
        RoleError: the parent cannot be read, or the pool failed.
    """
    made = await _draw_kernels(request, parent, ask, shapes=shapes, count=SPARE_FACTOR * request.variants)
    sources = dict(list(made.items())[: request.variants])
    found = [
        _make_variant(source, steps, None, parent_ms=request.parent.latency_ms)
        for source, steps in sources.items()
    ]
    return _make_answer(request, found, sources, ())


async def draw_and_predict(
    request: LookAheadRequest,
    parent: str,
    ask: RunEngineJob,
    shapes: Mapping[str, Any],
    scale: PredictionScale,
) -> LookAheadAnswer:
    """Draw as many sequences as the request affords; return the fastest by prediction, skipping known code.

    Raises:
        RoleError: the parent cannot be read, or the pool or the evaluator failed.
    """
    affordable = request.instructions // max(1, scale.parent.instructions)
    wanted = min(PREDICTED_FACTOR * request.variants, affordable)
    count = min(request.predictions, max(request.variants, wanted))
    made = await _draw_kernels(request, parent, ask, shapes=shapes, count=count)
    answers = await scale.predict(list(made)) if made else []
    timed = {
        answer.code: (answer.latency_ms, source)
        for source, answer in zip(made, answers, strict=True)
        if answer.latency_ms is not None and answer.code not in request.known
    }
    fastest = sorted(timed.values())[: request.variants]
    parent_ms = request.parent.latency_ms
    found = [_make_variant(source, made[source], ms, parent_ms=parent_ms) for ms, source in fastest]
    return _make_answer(request, found, {source: made[source] for _, source in fastest}, answers)


async def _draw_kernels(
    request: LookAheadRequest, parent: str, ask: RunEngineJob, *, shapes: Mapping[str, Any], count: int
) -> dict[str, list[RewriteStep]]:
    """Different kernels in the order in which they were drawn, and how each was made."""
    job = {"job": "random_walk", "source": parent, "longest": request.drawn, **shapes}
    told = await asyncio.gather(*(ask({**job, "seed": f"{request.draw}|{n}"}) for n in range(count)))
    made: dict[str, list[RewriteStep]] = {}
    for one in told:
        if one["source"] != parent:
            made.setdefault(one["source"], [RewriteStep(**step) for step in one["steps"]])
    return made


def _make_variant(
    source: str, steps: Sequence[RewriteStep], latency_ms: float | None, *, parent_ms: float
) -> Variant:
    """A variant whose steps have equal shares of its predicted gain."""
    each = (parent_ms / latency_ms) ** (1 / len(steps)) if latency_ms is not None else 1.0
    told = tuple(step.model_copy(update={"speedup": round(each, 9)}) for step in steps)
    return Variant(steps=told, source=digest_of(source.encode()), latency_ms=latency_ms)


def _make_answer(
    request: LookAheadRequest,
    found: Sequence[Variant],
    sources: Mapping[str, Any],
    asked: Sequence[PredictedLatency],
) -> LookAheadAnswer:
    predicted = sum(one.latency_ms is not None for one in asked)
    return LookAheadAnswer(
        variants=Variants(parent_ms=request.parent.latency_ms, found=tuple(found)),
        sources={digest_of(source.encode()): source.encode() for source in sources},
        predicted=predicted,
        failed=len(asked) - predicted,
        instructions=sum(one.instructions for one in asked),
    )
