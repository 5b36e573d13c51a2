"""Looks ahead in the space of knobs: predicts many points, and proposes only the best for judging.

The first round begins with the mirror of the baseline's configuration and a default of each variant. After
that the search goes in batches, each in one variant: that of the fastest point, or one drawn among those not
far behind. `targets.nki.knobs.search` chooses the contents of a batch: turns of the knob that the bottleneck
implicates, or joint draws after a plateau. A batch depends on what the run has judged and on what this search
has predicted, and on nothing else.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from random import Random
from typing import Any

from agent_core.effects import LearningContext, LookAheadRequest, Variant, Variants
from agent_core.roles import LookAheadAnswer, Predict, PredictionsEndedError
from state.model import PredictedLatency, RewriteStep, digest_of
from targets.nki.knobs.search import SearchMode
from targets.nki.knobs.tuning.history import TECHNIQUE, commonest_failure, judged_points, origin_point

BATCH = 8
"""Points predicted at a time."""
PATIENCE = 5
"""Batches without a gain that end the search."""
GAIN = 1.002
"""Predicted speed-up from which a point counts as faster than another."""
SLACK = 1.2
"""How much slower than the fastest variant a drawn variant may be, and than the parent a judged point."""
DEFAULTS_SHARE = 1 / 3
"""Share of the predictions for defaults of variants that were not judged yet."""
FIRST_SHARE = 2 / 3
"""Share of the first round's kernels that may be such defaults."""

AskPool = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]
"""Runs a job in the pool; raises RoleError."""

TrialRow = tuple[str, float | None, str]
"""A point's text, its latency in ms, and the reason if it was refused."""


@dataclass(frozen=True, slots=True)
class ParentFeedback:
    """What the parent's profile says."""

    bottleneck: str
    mbu_percent: float | None
    efficiency: float
    """Its roofline efficiency: the least time for its bytes and matrix products, over its latency."""


@dataclass(frozen=True, slots=True)
class PredictedPoint:
    """A point that was predicted, and the mode or knob that found it."""

    text: str
    title: str
    source: str
    technique: str
    latency_ms: float
    code: str | None

    @property
    def variant(self) -> str:
        return self.text.split(" ")[0]


@dataclass
class KnobLookAhead:
    """One search from one parent."""

    request: LookAheadRequest
    context: LearningContext
    feedback: ParentFeedback
    ask: AskPool
    predict: Predict
    random: Random = field(init=False)
    found: list[PredictedPoint] = field(default_factory=list)
    predicted: int = 0
    failed: int = 0
    instructions: int = 0
    reasons: list[str] = field(default_factory=list)
    _history: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    _largest: int = 0
    """Instructions of the largest kernel predicted so far."""

    def __post_init__(self) -> None:
        self.random = Random(self.request.draw)  # noqa: S311  a search, no secret

    async def run(self) -> LookAheadAnswer:
        """Search as far as the request's counts and its time allow."""
        defaults: Sequence[str] = ()
        try:
            defaults = await self._predict_defaults()
            await self._predict_batches(self._note_start(defaults))
        except PredictionsEndedError as ended:
            self.reasons.append(ended.info.message)
        return self._choose_answer(defaults)

    async def _predict_batches(self, start: str) -> None:
        exhausted: set[str] = set()
        idle = 0
        while idle < PATIENCE and self._has_room() and len(exhausted) < len(self._history):
            variant = self._choose_variant(exhausted)
            before = self._best_ms()
            if await self._predict_next(variant, start):
                idle = 0 if before > GAIN * self._best_ms() else idle + 1
            else:
                exhausted.add(variant)

    async def draw(self) -> LookAheadAnswer:
        """Draw points uniformly; return the fastest of more, where predictions are allowed."""
        wanted = self.request.variants
        count = min(self.request.predictions, 4 * wanted) or wanted
        made = await self.ask({"job": "drawn", "draw": self.request.draw, "count": count})
        if self.request.predictions:
            await self._predict_batch(made)
            return self._choose_answer(())
        points = made["points"][:wanted]
        variants = tuple(
            Variant(
                steps=(_point_step(one, SearchMode.JOINT, 1.0),),
                source=_source_digest(one["source"]),
                latency_ms=None,
            )
            for one in points
        )
        return self._make_answer(variants, [one["source"] for one in points])

    # --- what is known before -----------------------------------------------------------------------

    async def _predict_defaults(self) -> Sequence[str]:
        """Predict defaults of variants without a known point; return their texts, the mirror first."""
        made = await self.ask({"job": "defaults"})
        self.reasons += made["reasons"]
        judged = judged_points(self.context.attempts, self.request.parent)
        for one in made["points"]:
            self._history.setdefault(_variant_name(one["text"]), [])
        for item in judged:
            if _variant_name(item.text) in self._history:
                # The search leaves a point that is faster than the parent to the searches that start from
                # that point.
                ms = item.ms if item.ms is not None and item.ms >= self.request.parent.latency_ms else None
                self._note_trials(SearchMode.JOINT, "", [(item.text, ms, item.failure)])
        known = {_variant_name(item.text) for item in judged}
        fresh = [one for one in made["points"] if _variant_name(one["text"]) not in known]
        most = max(1, int(self.request.predictions * DEFAULTS_SHARE))
        await self._predict_batch({"mode": SearchMode.JOINT.value, "knob": "", "points": fresh[:most]})
        return [one["text"] for one in made["points"]]

    def _note_start(self, defaults: Sequence[str]) -> str:
        """The point that the parent is, or comes from: where sweeps start, with the parent's latency."""
        found = origin_point(self.context.attempts, self.request.parent)
        if found is None or _variant_name(found) not in self._history:
            return defaults[0] if defaults else ""
        self._note_trials(SearchMode.JOINT, "", [(found, self.request.parent.latency_ms, "")])
        return found

    # --- batches ------------------------------------------------------------------------------------

    def _choose_variant(self, exhausted: set[str]) -> str:
        """The variant of the next batch: alternately the fastest, and one drawn that is not far behind."""
        ready = {name: self._fastest_ms(name) for name in self._history if name not in exhausted}
        best = min(ready, key=lambda name: (ready[name], name))
        near = [name for name, ms in ready.items() if ms <= SLACK * ready[best]]
        batches = sum(len(batches) for batches in self._history.values())
        return self.random.choice(near) if batches % 2 and near else best

    def _fastest_ms(self, variant: str) -> float:
        told = (ms for batch in self._history[variant] for _, ms, _ in batch["trials"] if ms is not None)
        return min(told, default=inf)

    def _best_ms(self) -> float:
        return min(map(self._fastest_ms, self._history), default=inf)

    async def _predict_next(self, variant: str, start: str) -> bool:
        """Predict the next points of a variant; False if it has none left."""
        job = {
            "job": "next",
            "variant": variant,
            "history": self._history[variant],
            "start": start if _variant_name(start) == variant else "",
            "bottleneck": self.feedback.bottleneck,
            "mbu_percent": self.feedback.mbu_percent,
            "draw": self.random.getrandbits(63),
            "count": min(BATCH, self.request.predictions - self.predicted - self.failed),
        }
        made = await self.ask(job)
        await self._predict_batch(made)
        return bool(made["points"])

    def _has_room(self) -> bool:
        asked = self.predicted + self.failed
        return asked < self.request.predictions and self._can_afford(1)

    def _can_afford(self, count: int) -> bool:
        return self.instructions + count * self._largest <= self.request.instructions

    async def _predict_batch(self, batch: Mapping[str, Any]) -> None:
        """Predict a batch as far as the instruction budget allows, but at least one point."""
        points = list(batch["points"])
        trials: dict[str, list[TrialRow]] = {}
        while points:
            count = next((n for n in range(len(points), 1, -1) if self._can_afford(n)), 1)
            if not self._largest:
                count = 1  # their size is not known yet
            elif not self._can_afford(1):
                break
            now, points = points[:count], points[count:]
            for one, answer in zip(now, await self.predict([p["source"] for p in now]), strict=True):
                self._take_prediction(batch, one, answer)
                failure = answer.error.code if answer.error is not None else ""
                trials.setdefault(_variant_name(one["text"]), []).append(
                    (one["text"], answer.latency_ms, failure)
                )
        for told in trials.values():
            self._note_trials(SearchMode(batch["mode"]), batch["knob"], told)

    def _take_prediction(
        self, batch: Mapping[str, Any], one: Mapping[str, Any], answer: PredictedLatency
    ) -> None:
        self.predicted += answer.latency_ms is not None
        self.failed += answer.latency_ms is None
        self.instructions += answer.instructions
        self._largest = max(self._largest, answer.instructions, 1)
        if answer.latency_ms is not None:
            technique = TECHNIQUE + (batch["knob"] or batch["mode"])
            self.found.append(
                PredictedPoint(
                    one["text"], one["title"], one["source"], technique, answer.latency_ms, answer.code
                )
            )

    def _note_trials(self, mode: SearchMode, knob: str, trials: Sequence[TrialRow]) -> None:
        batch = {"mode": mode.value, "knob": knob, "trials": [list(trial) for trial in trials]}
        self._history.setdefault(_variant_name(trials[0][0]), []).append(batch)

    # --- what is worth judging ----------------------------------------------------------------------

    def _choose_answer(self, defaults: Sequence[str]) -> LookAheadAnswer:
        parent_ms = self.request.parent.latency_ms
        first = not any(item.technique.startswith(TECHNIQUE) for item in self.context.attempts)
        chosen = choose_points(
            self.found,
            self.request.variants,
            parent_ms,
            frozenset(self.request.known),
            defaults if first else (),
        )
        found = tuple(
            Variant(
                steps=(
                    RewriteStep(
                        technique=one.technique,
                        site=one.text,
                        title=one.title,
                        speedup=round(parent_ms / one.latency_ms, 9),
                    ),
                ),
                source=_source_digest(one.source),
                latency_ms=one.latency_ms,
            )
            for one in chosen
        )
        return self._make_answer(found, [one.source for one in chosen])

    def _make_answer(self, found: tuple[Variant, ...], sources: Sequence[str]) -> LookAheadAnswer:
        reasons = [*self._describe_feedback(), *self.reasons]
        return LookAheadAnswer(
            variants=Variants(parent_ms=self.request.parent.latency_ms, found=found, reasons=tuple(reasons)),
            sources={_source_digest(source): source.encode() for source in sources},
            predicted=self.predicted,
            failed=self.failed,
            instructions=self.instructions,
        )

    def _describe_feedback(self) -> list[str]:
        """Describe in words what the search was based on."""
        bottleneck = self.feedback.bottleneck or "unknown"
        told = [f"bottleneck {bottleneck}", f"roofline efficiency {self.feedback.efficiency:.2f}"]
        if self.feedback.mbu_percent is not None:
            told.append(f"{self.feedback.mbu_percent:.1f} % of bandwidth")
        failure = commonest_failure(self.context.attempts)
        return [", ".join(told) + (f", most refused for {failure}" if failure else "")]


def choose_points(
    found: Sequence[PredictedPoint],
    count: int,
    parent_ms: float,
    known: frozenset[str],
    defaults: Sequence[str],
) -> list[PredictedPoint]:
    """At most `count` points to judge, no two of the same code, and none of a code in `known`.

    `defaults` go first, up to their share, beginning with the mirror of the baseline. Then come points faster
    than the parent: the fastest of each variant, then those slower than these by `GAIN` or more, then the
    rest. If there are fewer, one slower point is included, because the way forward may lead through it.
    """
    fresh = {one.code: one for one in reversed(found) if one.code not in known}
    ordered = sorted(fresh.values(), key=lambda one: (one.latency_ms, one.text))
    plain = [one for one in ordered if one.text in defaults]
    plain.sort(key=lambda one: one.text != defaults[0])
    chosen = plain[: max(1, int(count * FIRST_SHARE))]
    faster = [one for one in ordered if one.latency_ms < parent_ms and one not in chosen]
    apart: list[PredictedPoint] = []
    for one in faster:
        if all(one.variant != other.variant or one.latency_ms > GAIN * other.latency_ms for other in apart):
            apart.append(one)
    leads = [next(one for one in apart if one.variant == name) for name in _distinct_variants(apart)]
    rest = [one for one in apart if one not in leads]
    alike = [one for one in faster if one not in apart]
    slower = [
        one for one in ordered if parent_ms <= one.latency_ms <= SLACK * parent_ms and one not in chosen
    ]
    return [*chosen, *leads, *rest, *alike, *slower[:1]][:count]


def _distinct_variants(found: Sequence[PredictedPoint]) -> list[str]:
    return list(dict.fromkeys(one.variant for one in found))


def _point_step(one: Mapping[str, Any], mode: SearchMode, speedup: float) -> RewriteStep:
    return RewriteStep(
        technique=TECHNIQUE + mode.value, site=one["text"], title=one["title"], speedup=speedup
    )


def _variant_name(text: str) -> str:
    return text.split(" ", maxsplit=1)[0]


def _source_digest(source: str) -> str:
    return digest_of(source.encode())
