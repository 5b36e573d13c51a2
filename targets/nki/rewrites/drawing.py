"""Variants drawn evenly, for the strategies that a search is compared with: no ranking, no estimate.

Where predictions are allowed, more sequences are drawn than are wanted and the fastest by prediction are
taken; where not, the first that were drawn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from agent_core.effects import LookAheadRequest, Variant, Variants
from agent_core.roles import LookAheadAnswer
from state.model import Predicted, Step, digest_of
from targets.nki.rewrites.scale import Ask, Scale

SPARE = 2
"""Sequences drawn for each that is wanted where nothing is predicted: some lead to the same kernel."""
PREDICTED = 4
"""Sequences drawn for each that is wanted where predictions choose among them: drawing takes time too."""


async def drawn_only(
    request: LookAheadRequest, parent: str, ask: Ask, shapes: Mapping[str, Any]
) -> LookAheadAnswer:
    """The first sequences drawn, as many as are wanted, without predictions.

    Raises:
        RoleError: the parent cannot be read, or the pool failed.
    """
    made = await _draw(request, parent, ask, shapes, SPARE * request.variants)
    sources = dict(list(made.items())[: request.variants])
    found = [_variant(source, steps, None, request.parent.latency_ms) for source, steps in sources.items()]
    return _answer(request, found, sources, ())


async def drawn_and_predicted(
    request: LookAheadRequest, parent: str, ask: Ask, shapes: Mapping[str, Any], scale: Scale
) -> LookAheadAnswer:
    """The fastest by prediction of as many sequences as the request affords, none of a code it knows.

    Raises:
        RoleError: the parent cannot be read, or the pool or the evaluator failed.
    """
    affordable = request.instructions // max(1, scale.parent.instructions)
    wanted = min(PREDICTED * request.variants, affordable)
    count = min(request.predictions, max(request.variants, wanted))
    made = await _draw(request, parent, ask, shapes, count)
    answers = await scale.predict(list(made)) if made else []
    timed = {
        answer.code: (answer.latency_ms, source)
        for source, answer in zip(made, answers, strict=True)
        if answer.latency_ms is not None and answer.code not in request.known
    }
    fastest = sorted(timed.values())[: request.variants]
    parent_ms = request.parent.latency_ms
    found = [_variant(source, made[source], ms, parent_ms) for ms, source in fastest]
    return _answer(request, found, {source: made[source] for _, source in fastest}, answers)


async def _draw(
    request: LookAheadRequest, parent: str, ask: Ask, shapes: Mapping[str, Any], count: int
) -> dict[str, list[Step]]:
    """Different kernels in the order in which they were drawn, and how each was made."""
    job = {"job": "wander", "source": parent, "longest": request.drawn, **shapes}
    told = await asyncio.gather(*(ask({**job, "seed": f"{request.draw}|{n}"}) for n in range(count)))
    made: dict[str, list[Step]] = {}
    for one in told:
        if one["source"] != parent:
            made.setdefault(one["source"], [Step(**step) for step in one["steps"]])
    return made


def _variant(source: str, steps: Sequence[Step], latency_ms: float | None, parent_ms: float) -> Variant:
    """A variant whose steps have equal shares in what is predicted of it."""
    each = (parent_ms / latency_ms) ** (1 / len(steps)) if latency_ms is not None else 1.0
    told = tuple(step.model_copy(update={"speedup": round(each, 9)}) for step in steps)
    return Variant(steps=told, source=digest_of(source.encode()), latency_ms=latency_ms)


def _answer(
    request: LookAheadRequest,
    found: Sequence[Variant],
    sources: Mapping[str, Any],
    asked: Sequence[Predicted],
) -> LookAheadAnswer:
    predicted = sum(one.latency_ms is not None for one in asked)
    return LookAheadAnswer(
        variants=Variants(parent_ms=request.parent.latency_ms, found=tuple(found)),
        sources={digest_of(source.encode()): source.encode() for source in sources},
        predicted=predicted,
        failed=len(asked) - predicted,
        instructions=sum(one.instructions for one in asked),
    )
