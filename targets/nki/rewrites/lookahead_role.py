"""The look-ahead role: turns a request into a search, its results into variants, and these into plans."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import combinations
from math import log, sqrt
from random import Random
from typing import TYPE_CHECKING, Any

from agent_core.effects import LearningContext, LookAheadRequest, Variant, Variants
from agent_core.roles import LookAheadAnswer, Predict, ReadBlob, RoleError
from state.errors import BlobMissing
from state.model import (
    EffectKey,
    LearntSequence,
    Plan,
    PredictedLatency,
    Prediction,
    RewriteStep,
    digest_of,
)
from targets.nki.rewrites import random_baseline
from targets.nki.rewrites.lookahead import (
    MIN_GAIN,
    SLOWDOWN_LIMIT,
    LookaheadSearch,
    SearchLimits,
    predict_last,
)
from targets.nki.rewrites.prediction_scale import (
    PredictionScale,
    RunEngineJob,
    problem_job_fields,
    select_scale,
)
from targets.nki.rewrites.raised_parent import RaisedParent, raise_parent, split_raise
from targets.nki.rewrites.search_nodes import Expansion, RewriteCandidate, SearchNode, SearchSeed, node_order

if TYPE_CHECKING:
    from seeds import ProblemSpec

NEAR_EQUAL = 1.005
"""Ratio of predicted latencies below which two kernels count as equally fast."""
NEAR_EQUAL_PREDICTED = 1.1
"""The same where the judge predicts latencies too, with the same model. Judging kernels then only tells
whether they are correct, and what holds for the first of several mostly holds for the others.
"""
PREDICTED_SHARE = 2
"""Of so many kernels that could be judged, one is, where the judge predicts latencies."""
MAX_NEAR_EQUALS = 2
"""Kernels that are judged of a group of equally fast ones; the second one, in case the first is wrong."""
ALIKE = 0.5
"""Share of common ones among the steps of two kernels from which they count as of one family."""
NEAR_SIMPLE = 1.02
"""How much slower the simplest kernel of a family may be than its fastest one. Steps that gain no more are
within the model's error, and those that copy part of a kernel are in the way of others.
"""
FINER_SPLITS = 3
"""Single splits that are predicted if the fastest kernel rounds too much, and pairs of these."""
MAX_ROUNDING = 1.2
"""Estimated error, relative to the tolerance, above which kernels are not looked further from. Estimates are
up to a fifth too high: of the products of `swiglu`, all three come to 1.32 and two to 1.08. Whole outputs
refute the former, and of the latter one pair of three.
"""
MAX_EARLIER = 4
"""Places in a sequence that are tried for a split, from the last one backwards."""
SPLITTING = "split_products"
"""The technique whose steps round."""
NARROW_FUNCTIONS = frozenset({"log", "sqrt", "rsqrt", "reciprocal", "sin", "arctan"})
"""Functions of ScalarE that are valid for some magnitudes only: `nki_sim.functions.VALID_RANGES`."""


async def look_ahead(
    request: LookAheadRequest, read: ReadBlob, predict: Predict, spec: ProblemSpec, ask: RunEngineJob
) -> LookAheadAnswer:
    """Search from the request's parent, or draw at random if the request says so.

    Raises:
        RoleError: the parent cannot be read, or a pool or the evaluator failed.
    """
    told = problem_job_fields(spec, request.size, request.target)
    parent = await raise_parent(request, read(request.parent.source).decode(), predict, ask, told)
    return parent.complete(
        await _search_variants(request, parent, read, predict=predict, spec=spec, ask=ask, told=told)
    )


async def _search_variants(
    request: LookAheadRequest,
    raised: RaisedParent,
    read: ReadBlob,
    *,
    predict: Predict,
    spec: ProblemSpec,
    ask: RunEngineJob,
    told: dict[str, Any],
) -> LookAheadAnswer:
    context = LearningContext.model_validate_json(read(request.context))
    parent, parent_ms = raised.source, request.parent.latency_ms
    if request.drawn and not request.predictions:
        return await random_baseline.draw_variants(request, parent, ask, told)
    raised_ms = parent_ms * raised.latency_ratio
    scale = await select_scale(
        request, request.parent, parent, parent_ms=raised_ms, predict=predict, spec=spec, ask=ask
    )
    if request.drawn:
        return await random_baseline.draw_and_predict(request, parent, ask, told, scale)
    engine = EngineClient(request, context, scale, ask, told)
    limits = SearchLimits(request.predictions, request.instructions, request.depth, request.width)
    chances = Random(request.draw)  # noqa: S311  a search, no secret
    search = LookaheadSearch(
        engine.expand_kernel,
        engine.combine_steps,
        scale.predict,
        limits,
        chances,
        find_rough=partial(engine.find_rough, above=MAX_ROUNDING),
        make_finer=partial(make_finer_sequences, engine),
    )
    first = request.parent.parent is None and EffectKey.parse(request.key).round == 1
    leads = await engine.replay_sequences(parent, read) if first else []
    found = await search.run(parent, raised_ms, leads)
    if found and any(map(_narrows_domain, found[0].steps)):
        wide = [step for step in found[0].steps if not _narrows_domain(step)]
        found = await search.try_together(parent, raised_ms, [wide])
    rough = await engine.find_rough(found)
    if found and found[0].source in rough:
        finer = await make_finer_sequences(engine, parent, found)
        found = await search.try_together(parent, raised_ms, finer)
        rough = await engine.find_rough(found)
    chosen, whole = await _choose_variants(request, found, scale, parent_ms=parent_ms, rough=rough)
    broken = sum(one.latency_ms is None for one in whole)
    reasons = (*engine.left_out, *search.reasons)
    variants = Variants(parent_ms=parent_ms, found=tuple(map(_make_variant, chosen)), reasons=reasons)
    return LookAheadAnswer(
        variants=variants,
        sources={digest_of(one.source.encode()): one.source.encode() for one in chosen},
        predicted=search.predicted + len(whole) - broken,
        failed=search.failed + broken,
        instructions=search.instructions + sum(one.instructions for one in whole),
    )


async def _choose_variants(
    request: LookAheadRequest,
    found: Sequence[SearchNode],
    scale: PredictionScale,
    *,
    parent_ms: float,
    rough: Mapping[str, float],
) -> tuple[list[SearchNode], Sequence[PredictedLatency]]:
    """The kernels to judge, and the predictions at the problem's size that were made to choose them."""
    known = frozenset(request.known)
    chosen = select_variants(found, request.variants, parent_ms, known, rough=rough)
    if not request.parent.benchmark.predicted:
        return chosen, []
    whole = () if scale.is_full_size else await predict_whole(scale, chosen)
    if whole:
        chosen = [
            replace(one, latency_ms=answer.latency_ms, instructions=answer.instructions)
            for one, answer in zip(chosen, whole, strict=True)
            if answer.latency_ms is not None
        ]
    count = min(request.variants, max(MAX_NEAR_EQUALS, request.variants // PREDICTED_SHARE))
    near = NEAR_EQUAL_PREDICTED
    return select_variants(chosen, count, parent_ms, known, rough=rough, near=near), whole


async def predict_whole(scale: PredictionScale, found: Sequence[SearchNode]) -> Sequence[PredictedLatency]:
    """Predictions of the kernels at the problem's size; none if there is no time for all of them."""
    return await predict_last(scale.at, [one.source for one in found])


@dataclass(frozen=True, slots=True)
class EngineClient:
    """The search's interface to the rewrite engine."""

    request: LookAheadRequest
    context: LearningContext
    scale: PredictionScale
    ask: RunEngineJob
    shapes: dict[str, Any]
    left_out: list[str] = field(default_factory=list)
    """Reasons why sequences of other runs were not tried."""
    rounding: dict[frozenset[str], float] = field(default_factory=dict)
    """Estimated relative errors of the parent's rewrites, by the sites of the products that they split."""

    async def expand_kernel(self, source: str) -> Expansion:
        credits_ = {name: (item.tries, item.log_gain) for name, item in self.context.credits.items()}
        made = await self.ask({"job": "expand", "source": source, "credits": credits_, **self.shapes})
        return Expansion(tuple(map(self._make_candidate, made["moves"])), tuple(made["reasons"]))

    def _make_candidate(self, told: dict[str, Any]) -> RewriteCandidate:
        return RewriteCandidate(
            **{**told, "instructions": self.scale.scale_instructions(told["instructions"])}
        )

    async def replay_sequences(self, source: str, read: ReadBlob) -> list[list[SearchSeed]]:
        """Return the results of other runs' sequences on the kernel that the run began with."""
        sequences = self.context.sequences
        return await asyncio.gather(*(self._replay_sequence(source, one, read) for one in sequences))

    async def _replay_sequence(self, source: str, one: LearntSequence, read: ReadBlob) -> list[SearchSeed]:
        """Return empty if a sequence cannot be followed, or its kernels are lost: it is only a suggestion."""
        try:
            legs = [
                {
                    "source": split_raise(read(leg.source).decode(), leg.steps, read)[0],
                    "steps": [step.model_dump(mode="json") for step in leg.steps],
                }
                for leg in one.legs
            ]
            job = {"job": "retrace", "source": source, "legs": legs, "theirs": list(one.arguments)}
            made = await self.ask({**job, **self.shapes})
        except (BlobMissing, RoleError) as error:
            self.left_out.append(f"{one.event_id} was not tried: {error}")
            return []
        return self._make_seeds(one, made["made"])

    def _make_seeds(self, one: LearntSequence, made: Sequence[dict[str, Any]]) -> list[SearchSeed]:
        """The kernels after each step, with the gain that was predicted for it in the other run."""
        known, steps, found = one.steps, list[RewriteStep](), list[SearchSeed]()
        for told in made:
            step = {name: told[name] for name in ("technique", "site", "title", "choice")}
            steps.append(RewriteStep(**step, speedup=known[told["number"]].speedup))
            found.append(
                SearchSeed(tuple(steps), told["source"], self.scale.scale_instructions(told["instructions"]))
            )
        return found

    async def find_rough(self, found: Sequence[SearchNode], *, above: float = 1.0) -> dict[str, float]:
        """Return those kernels whose rounding may exceed the problem's tolerance, with their errors.

        Only errors `above` so many tolerances count. They are estimated once for all kernels with the same
        splits, because other rewrites do not change them.
        """
        fresh: dict[frozenset[str], str] = {}
        for one in found:
            if _split_sites(one) not in self.rounding:
                fresh.setdefault(_split_sites(one), one.source)
        errors = await self._estimate_rounding(list(fresh.values()))
        self.rounding.update(zip(fresh, errors, strict=True))
        told = {one.source: self.rounding[_split_sites(one)] for one in found}
        return {source: error for source, error in told.items() if error > above * self.shapes["rel_l2"]}

    async def place_fine_splits(
        self, source: str, before: Sequence[RewriteStep], splits: Sequence[RewriteStep]
    ) -> list[tuple[int, RewriteStep]]:
        """Those splits that alone round little enough, with the number of steps before them.

        A split comes after all of these steps, or, if it does not apply there, before the last few.
        """
        made = await asyncio.gather(*(self._place_split(source, before, split) for split in splits))
        placed = [(split, *one) for split, one in zip(splits, made, strict=True) if one is not None]
        errors = await self._estimate_rounding([text for _, _, text in placed])
        return [
            (at, split)
            for (split, at, _), error in zip(placed, errors, strict=True)
            if error <= self.shapes["rel_l2"]
        ]

    async def _place_split(
        self, source: str, before: Sequence[RewriteStep], split: RewriteStep
    ) -> tuple[int, str] | None:
        """How many steps come before a split, and the kernel; None if it applies nowhere."""
        for at in range(len(before), max(-1, len(before) - MAX_EARLIER), -1):
            made = await self.combine_steps(source, [*before[:at], split, *before[at:]])
            if made and at in made[-1][0]:
                return at, made[-1][1]
        return None

    async def _estimate_rounding(self, sources: Sequence[str]) -> list[float]:
        """Estimated relative errors of kernels; 0 where nothing is rounded."""
        asked = [source for source in sources if "bfloat16" in source]
        if not asked:
            return [0.0] * len(sources)
        made = await self.ask({"job": "rounding", "sources": asked, **self.shapes})
        told = dict(zip(asked, made["rounding"], strict=True))
        return [told.get(source, 0.0) for source in sources]

    async def combine_steps(
        self, source: str, steps: Sequence[RewriteStep]
    ) -> list[tuple[tuple[int, ...], str]]:
        told = [step.model_dump(mode="json") for step in steps]
        made = await self.ask({"job": "combine", "source": source, "steps": told, **self.shapes})
        return [(tuple(one["steps"]), one["source"]) for one in made["made"]]


def _make_variant(one: SearchNode) -> Variant:
    return Variant(steps=one.steps, source=digest_of(one.source.encode()), latency_ms=one.latency_ms)


def plan_variant(variant: Variant, parent_ms: float) -> Plan:
    """The plan that carries a variant out; its technique is that of its most valuable step."""
    steps = variant.steps
    main = max(steps, key=lambda step: step.speedup)
    speedup = parent_ms / variant.latency_ms if variant.latency_ms is not None else 1.0
    return Plan(
        technique=main.technique,
        site="; ".join(step.site for step in steps),
        title="; ".join(step.title for step in steps),
        prediction=Prediction(speedup=round(speedup, 6), reason=_prediction_reason(variant, parent_ms)),
        detail={"source": variant.source},
        steps=steps,
    )


def _prediction_reason(variant: Variant, parent_ms: float) -> str:
    if variant.latency_ms is None:
        return "drawn evenly; nothing was predicted"
    total = log(parent_ms / variant.latency_ms)
    gains = "; ".join(f"{step.technique} {step.speedup:.3f}x" for step in variant.steps)
    verb = "down" if total > 0 else "up"
    return f"looking ahead predicts {variant.latency_ms:.4g} ms, {verb} from {parent_ms:.4g} ms: {gains}"


async def make_finer_sequences(
    engine: EngineClient, parent: str, found: Sequence[SearchNode]
) -> list[list[RewriteStep]]:
    """The steps of the fastest kernel with fewer splits: two, one or none of those that round little alone.

    A pair may round too much as well. Which ones do depends on the inputs, so whole outputs tell.
    """
    steps = found[0].steps
    at = next((number for number, step in enumerate(steps) if _splits(step)), len(steps))
    before, after = steps[:at], [step for step in steps[at:] if not _splits(step)]
    best: dict[str, RewriteStep] = {}
    for step in sorted((step for one in found for step in one.steps), key=lambda step: -step.speedup):
        if _splits(step):
            best.setdefault(step.site, step)
    placed = await engine.place_fine_splits(parent, before, list(best.values())[: 2 * FINER_SPLITS])
    placed = placed[:FINER_SPLITS]
    kept = [*combinations(placed, 2), *combinations(placed, 1), ()]
    return [[*_insert_splits(before, splits), *after] for splits in kept]


def _insert_splits(
    steps: Sequence[RewriteStep], splits: Sequence[tuple[int, RewriteStep]]
) -> list[RewriteStep]:
    """The steps with each split after as many of them as its number says."""
    rows = range(len(steps) + 1)
    return [
        step for at in rows for step in (*(one for place, one in splits if place == at), *steps[at : at + 1])
    ]


def _splits(step: RewriteStep) -> bool:
    return step.technique == SPLITTING


def _split_sites(one: SearchNode) -> frozenset[str]:
    return frozenset(step.site for step in one.steps if _splits(step))


def select_variants(
    found: Sequence[SearchNode],
    count: int,
    parent_ms: float,
    known: frozenset[str],
    *,
    rough: Mapping[str, float] | None = None,
    near: float = NEAR_EQUAL,
) -> list[SearchNode]:
    """Return `count` kernels to judge: faster than the parent, preferably of different families.

    Kernels that share most of their steps are mostly wrong together, and lead to the same ones. None has a
    code in `known`, nor more steps than another one that is as fast. At most two are of almost the same
    predicted latency, up to the ratio `near`: judging the others would take time and tell little. If fewer
    than `count` are faster, one slower kernel is included, because the way forward may lead through it. The
    fastest without a new function of a narrow domain is always there, since all others may fail for that
    function. For the same reason at most half are in `rough`, kernels that may round too much with their
    estimated errors, if there are others.
    """
    fresh = {one.code: one for one in reversed(found) if one.code not in known}
    ordered = sorted(fresh.values(), key=node_order)
    faster = [one for one in ordered if one.latency_ms < parent_ms]
    chosen = _pick_families(faster, parent_ms)
    rest = [one for one in faster if not any(_is_near_duplicate(one, other) for other in chosen)]
    slower = [one for one in ordered if parent_ms <= one.latency_ms <= SLOWDOWN_LIMIT * parent_ms]
    thinned = _thin_near_equals([*chosen, *rest], near)
    mixed = _mix_rough(thinned, faster, rough or {}, most=max(1, count // 2))
    few = len(chosen) + len(rest) < count
    picked = [*mixed, *(slower[:1] if few else [])][:count]
    wide = next(filter(_is_wide, faster), None)
    if wide is None or wide in picked or len(picked) < 2:
        return picked
    return [*picked[: count - 1], wide]


def _pick_families(faster: Sequence[SearchNode], parent_ms: float) -> list[SearchNode]:
    """The fastest kernel and the simplest one of each other family, or of its own if there is no other."""
    heads: list[SearchNode] = []
    for one in faster:
        is_fast = one.latency_ms <= SLOWDOWN_LIMIT * faster[0].latency_ms
        if is_fast and not any(_are_alike(one, other) for other in heads):
            heads.append(one)
    only = len(heads) < 2
    apart = [one for one in faster if only or not _are_alike(one, heads[0])]
    simplest = [_find_simplest(one, apart, parent_ms) for one in heads[1:] or heads]
    return list({one.source: one for one in [*heads[:1], *simplest]}.values())


def _find_simplest(head: SearchNode, others: Sequence[SearchNode], parent_ms: float) -> SearchNode:
    """The kernel with the shortest source of those like `head` and almost as fast.

    It keeps at least half of the gain.
    """
    limit = min(NEAR_SIMPLE * head.latency_ms, sqrt(head.latency_ms * parent_ms))
    kin = (
        one
        for one in others
        if one.latency_ms <= limit and len(one.steps) <= len(head.steps) and _are_alike(one, head)
    )
    return min(kin, key=lambda one: (len(one.source), *node_order(one)))


def _mix_rough(
    variants: list[SearchNode], faster: Sequence[SearchNode], rough: Mapping[str, float], *, most: int
) -> list[SearchNode]:
    """Keep `most` rough variants if there are others, of which the first comes second at the latest."""
    fine = [one for one in variants if one.source not in rough]
    fine = fine or [one for one in faster if one.source not in rough][:1]
    if not fine:
        return variants
    kept = _order_rough([one for one in variants if one.source in rough], rough)[:most]
    mixed = [one for one in variants if one in kept or one in fine[1:]]
    mixed.insert(0 if variants[0] is fine[0] else 1, fine[0])
    return mixed


def _order_rough(variants: Sequence[SearchNode], rough: Mapping[str, float]) -> list[SearchNode]:
    """The fastest one, then those that round less, one of each set of split products first.

    If the fastest is refuted, so are those that split the same products.
    """
    ordered = [*variants[:1], *sorted(variants[1:], key=lambda one: rough[one.source])]
    first: dict[frozenset[str], SearchNode] = {}
    for one in ordered:
        first.setdefault(_split_sites(one), one)
    return [*first.values(), *(one for one in ordered if one not in first.values())]


def _thin_near_equals(variants: Sequence[SearchNode], near: float) -> list[SearchNode]:
    """Keep two of each group of variants that are predicted to be almost as fast as one another."""
    kept: list[SearchNode] = []
    for one in variants:
        if sum(_is_near_equal(one, other, near) for other in kept) < MAX_NEAR_EQUALS:
            kept.append(one)
    return kept


def _is_near_equal(one: SearchNode, other: SearchNode, near: float) -> bool:
    first, last = sorted((one.latency_ms, other.latency_ms))
    return last < near * first


def _is_wide(one: SearchNode) -> bool:
    return not any(map(_narrows_domain, one.steps))


def _narrows_domain(step: RewriteStep) -> bool:
    """Whether a step brings in a function that is valid for some magnitudes only, as ScalarE's `rsqrt`."""
    return any(value in NARROW_FUNCTIONS for value in step.choice.values())


def _are_alike(one: SearchNode, other: SearchNode) -> bool:
    """Whether the two kernels come from mostly the same steps, or one from some of the other's."""
    mine, theirs = _list_places(one), _list_places(other)
    return _share_steps(one, other) or len(mine & theirs) >= ALIKE * len(mine | theirs)


def _share_steps(one: SearchNode, other: SearchNode) -> bool:
    """Whether the steps of one begin with or contain those of the other."""
    mine, theirs = _list_places(one), _list_places(other)
    return mine <= theirs or theirs <= mine


def _list_places(one: SearchNode) -> set[tuple[str, str]]:
    return {(step.technique, step.site) for step in one.steps}


def _is_near_duplicate(one: SearchNode, other: SearchNode) -> bool:
    return _share_steps(one, other) and max(one.latency_ms, other.latency_ms) < MIN_GAIN * min(
        one.latency_ms, other.latency_ms
    )
