"""Looking ahead as a role: a request becomes a search, what it found becomes variants, and these plans."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import log
from random import Random
from typing import TYPE_CHECKING, Any

from agent_core.effects import LearningContext, LookAheadRequest, Variant, Variants
from agent_core.roles import LookAheadAnswer, Predict, ReadBlob, RoleError
from state.errors import BlobMissing
from state.model import EffectKey, LearntSequence, Plan, Prediction, Step, digest_of
from targets.nki.rewrites import drawing
from targets.nki.rewrites.distinct import distinct
from targets.nki.rewrites.lookahead import Limits, Search
from targets.nki.rewrites.reached import Expansion, Found, Lead, Move
from targets.nki.rewrites.scale import Ask, Scale, scaled, shapes

if TYPE_CHECKING:
    from seeds import ProblemSpec


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
    first = request.parent.parent is None and EffectKey.parse(request.key).round == 1
    leads = await engine.leads(parent, read) if first else []
    found = await search.run(parent, parent_ms, leads)
    chosen = distinct(found, request.variants, parent_ms, frozenset(request.known))
    reasons = (*engine.left_out, *search.reasons)
    variants = Variants(parent_ms=parent_ms, found=tuple(map(_variant, chosen)), reasons=reasons)
    return LookAheadAnswer(
        variants=variants,
        sources={digest_of(one.source.encode()): one.source.encode() for one in chosen},
        predicted=search.predicted,
        failed=search.failed,
        instructions=search.instructions,
    )


@dataclass(frozen=True, slots=True)
class _Engine:
    """The rewrite engine as a search asks it."""

    request: LookAheadRequest
    context: LearningContext
    scale: Scale
    ask: Ask
    shapes: dict[str, Any]
    left_out: list[str] = field(default_factory=list)
    """Why sequences of other runs were not tried."""

    async def expand(self, source: str) -> Expansion:
        credits_ = {name: (item.tries, item.log_gain) for name, item in self.context.credits.items()}
        made = await self.ask({"job": "expand", "source": source, "credits": credits_, **self.shapes})
        return Expansion(tuple(map(self._move, made["moves"])), tuple(made["reasons"]))

    def _move(self, told: dict[str, Any]) -> Move:
        return Move(**{**told, "instructions": self.scale.instructions(told["instructions"])})

    async def leads(self, source: str, read: ReadBlob) -> list[list[Lead]]:
        """What the sequences of other runs make of a kernel that the run began with."""
        sequences = self.context.sequences
        return await asyncio.gather(*(self._retraced(source, one, read) for one in sequences))

    async def _retraced(self, source: str, one: LearntSequence, read: ReadBlob) -> list[Lead]:
        """Nothing where a sequence cannot be followed, or its kernels are lost: it is only an offer."""
        try:
            legs = [
                {
                    "source": read(leg.source).decode(),
                    "steps": [step.model_dump(mode="json") for step in leg.steps],
                }
                for leg in one.legs
            ]
            job = {"job": "retrace", "source": source, "legs": legs, "theirs": list(one.arguments)}
            made = await self.ask({**job, **self.shapes})
        except (BlobMissing, RoleError) as error:
            self.left_out.append(f"{one.place} was not tried: {error}")
            return []
        return self._leads(one, made["made"])

    def _leads(self, one: LearntSequence, made: Sequence[dict[str, Any]]) -> list[Lead]:
        """The kernels after more and more steps, each step with what it was predicted to bring there."""
        known, steps, found = one.steps, list[Step](), list[Lead]()
        for told in made:
            step = {name: told[name] for name in ("technique", "site", "title", "choice")}
            steps.append(Step(**step, speedup=known[told["number"]].speedup))
            found.append(Lead(tuple(steps), told["source"], self.scale.instructions(told["instructions"])))
        return found

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
