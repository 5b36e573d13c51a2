"""Looking ahead as a role: a request becomes a search, what it found becomes variants, and these plans."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, log
from random import Random
from typing import TYPE_CHECKING, Any

from agent_core.builtin import drawing
from agent_core.builtin.lookahead import Expansion, Found, Limits, Move, Search, distinct
from agent_core.effects import LearningContext, LookAheadRequest, Variant, Variants
from agent_core.roles import LookAheadAnswer, Predict, ReadBlob, RoleError
from state.model import ErrorInfo, Plan, Predicted, Prediction, Step, digest_of

if TYPE_CHECKING:
    from seeds import ProblemSpec

FULL_SIZE = 24
"""Predictions that must be affordable at the problem's own size; else they are made at a smaller one."""

Ask = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]
"""Has a job done by the pool of the rewrite engine; raises RoleError."""


async def look_ahead(
    request: LookAheadRequest, read: ReadBlob, predict: Predict, spec: ProblemSpec, ask: Ask
) -> LookAheadAnswer:
    """Search from the request's parent, or draw where the request says so.

    Raises:
        RoleError: the parent cannot be read, or a pool or the evaluator failed.
    """
    context = LearningContext.model_validate_json(read(request.context))
    parent = read(request.parent.source).decode()
    told = shapes(spec, request.size, request.target)
    if request.drawn and not request.predictions:
        return await drawing.drawn_only(request, parent, ask, told)
    scale = await scaled(request, parent, predict, spec, ask)
    if request.drawn:
        return await drawing.drawn_and_predicted(request, parent, ask, told, scale)
    engine = _Engine(request, context, scale, ask, told)
    limits = Limits(request.predictions, request.instructions, request.depth, request.width)
    chances = Random(request.draw)  # noqa: S311  a search, no secret
    search = Search(engine.expand, engine.combine, scale.predict, limits, chances)
    parent_ms = request.parent.latency_ms
    found = await search.run(parent, parent_ms)
    chosen = distinct(found, request.variants, parent_ms, frozenset(request.known))
    variants = Variants(parent_ms=parent_ms, found=tuple(map(_variant, chosen)), reasons=search.reasons)
    return LookAheadAnswer(
        variants=variants,
        sources={digest_of(one.source.encode()): one.source.encode() for one in chosen},
        predicted=search.predicted,
        failed=search.failed,
        instructions=search.instructions,
    )


def shapes(spec: ProblemSpec, size: str, target: str) -> dict[str, Any]:
    """What a job of the rewrite engine is told of the problem: arguments at the size, and the target."""
    dims = spec.dims(size)
    arrays = [[list(item.passed(dims)), item.dtype] for item in spec.inputs]
    return {"arguments": spec.arguments(arrays, lambda value: value), "target": target}


@dataclass(frozen=True, slots=True)
class Scale:
    """What predictions are made at, and how what they say there becomes what holds at the problem's size.

    `parent` is the parent as it is predicted there, with a latency; at the problem's size it takes
    `parent_ms` and has `counted` instructions as far as the reader can count them.
    """

    at: Predict
    dims: dict[str, int] | None
    parent: Predicted
    parent_ms: float
    counted: int

    async def predict(
        self, sources: Sequence[str], dims: Mapping[str, int] | None = None
    ) -> Sequence[Predicted]:
        """Predict at the scale's dimensions, with latencies as they would be at the problem's size."""
        return [self._as_at_full_size(one) for one in await self.at(sources, dims or self.dims)]

    def _as_at_full_size(self, one: Predicted) -> Predicted:
        if one.latency_ms is None:
            return one
        assert self.parent.latency_ms is not None
        latency_ms = self.parent_ms * one.latency_ms / self.parent.latency_ms
        return one.model_copy(update={"latency_ms": latency_ms})

    def instructions(self, counted: int) -> int:
        """How many instructions a kernel has there of which the reader counts so many at the full size."""
        if not (counted and self.counted):
            return self.parent.instructions
        return ceil(self.parent.instructions * counted / self.counted)


async def scaled(
    request: LookAheadRequest, parent: str, predict: Predict, spec: ProblemSpec, ask: Ask
) -> Scale:
    """The problem's own size, or a smaller one where its kernels are too large to predict enough of them.

    Raises:
        RoleError: not_predicted, when the parent has no latency at either.
    """
    job = {
        "job": "proxy",
        "source": parent,
        "spec": spec.model_dump(mode="json"),
        "dims": spec.dims(request.size),
        "most": request.instructions // FULL_SIZE,
        "target": request.target,
    }
    found = await ask(job)
    dims = found["dims"]
    (there,) = await predict([parent], dims)
    if dims is not None and there.latency_ms is None:
        # At a smaller size a kernel may break a rule that it keeps at its own, where it was judged.
        dims = None
        (there,) = await predict([parent], dims)
    if there.latency_ms is None:
        told = there.error or ErrorInfo(code="not_predicted", message="no reason given")
        text = f"the parent {request.parent.id} cannot be predicted: {told.code}: {told.message}"
        raise RoleError(ErrorInfo(code="not_predicted", message=text))
    return Scale(predict, dims, there, request.parent.latency_ms, found["instructions"])


@dataclass(frozen=True, slots=True)
class _Engine:
    """The rewrite engine as a search asks it."""

    request: LookAheadRequest
    context: LearningContext
    scale: Scale
    ask: Ask
    shapes: dict[str, Any]

    async def expand(self, source: str) -> Expansion:
        credits_ = {name: (item.tries, item.log_gain) for name, item in self.context.credits.items()}
        made = await self.ask({"job": "expand", "source": source, "credits": credits_, **self.shapes})
        return Expansion(tuple(map(self._move, made["moves"])), tuple(made["reasons"]))

    def _move(self, told: dict[str, Any]) -> Move:
        return Move(**{**told, "instructions": self.scale.instructions(told["instructions"])})

    async def combine(self, source: str, steps: Sequence[Step]) -> list[tuple[tuple[int, ...], str]]:
        told = [step.model_dump(mode="json") for step in steps]
        made = await self.ask({"job": "combine", "source": source, "steps": told, **self.shapes})
        return [(tuple(one["steps"]), one["source"]) for one in made["made"]]


def _variant(one: Found) -> Variant:
    return Variant(steps=one.steps, source=digest_of(one.source.encode()), latency_ms=one.latency_ms)


def plan_of(variant: Variant, parent_ms: float) -> Plan:
    """The plan to carry a variant out; its technique is that of the step predicted to bring most."""
    steps = variant.steps
    main = max(steps, key=lambda step: step.speedup)
    speedup = parent_ms / variant.latency_ms if variant.latency_ms is not None else 1.0
    return Plan(
        technique=main.technique,
        site="; ".join(step.site for step in steps),
        title="; ".join(step.title for step in steps),
        prediction=Prediction(speedup=round(speedup, 6), reason=_reason(variant, parent_ms)),
        detail={"source": variant.source},
        steps=steps,
    )


def _reason(variant: Variant, parent_ms: float) -> str:
    if variant.latency_ms is None:
        return "drawn evenly; nothing was predicted"
    total = log(parent_ms / variant.latency_ms)
    gains = "; ".join(f"{step.technique} {step.speedup:.3f}x" for step in variant.steps)
    verb = "down" if total > 0 else "up"
    return f"looking ahead predicts {variant.latency_ms:.4g} ms, {verb} from {parent_ms:.4g} ms: {gains}"
