"""Simplifies a run's winner: drops the rewrites that bring nothing any more, then simplifies its text.

The winner's rewrites are carried out again without each one, and without pairs of them. What a left-out
rewrite prepared is left out with it. A kernel that is predicted to be as fast as the winner takes its place,
and loses further rewrites. Of several, that with the fewest rewrites comes first, then that with the shortest
text. The last part works on syntax alone, also for winners that no rewrites made. Everything is limited by
counts, so equal requests have equal answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from math import log
from typing import TYPE_CHECKING, Any

from agent_core.roles import KernelAnswer
from agent_core.roles.worker_pool import make_role_error
from targets.nki.rewrites.prediction_scale import problem_job_fields, select_scale
from targets.nki.rewrites.raised_parent import split_raise
from targets.nki.rewrites.source_simplification import PASSES, measure_complexity
from targets.nki.rewrites.source_tree import normalize_source

if TYPE_CHECKING:
    from agent_core.effects import SimplifyRequest
    from agent_core.roles import Predict, ReadBlob
    from seeds import ProblemSpec
    from state.model import RewriteStep, SequenceLeg
    from targets.nki.rewrites.prediction_scale import PredictionScale, RunEngineJob

MOST_PAIRS = 24
"""Pairs of rewrites that are left out together, those first whose gains cancel best."""
BATCH_KERNELS = 8
"""Kernels that are predicted at a time."""
MOST_FULL_SIZE = 16
"""Kernels that are predicted at the problem's size, if the others were predicted at a smaller one."""


@dataclass(frozen=True, slots=True)
class _Shortened:
    """The winner's sequence with only the rewrites `kept`, by their numbers."""

    source: str
    kept: tuple[int, ...]
    latency_ms: float

    @property
    def rank(self) -> tuple[int, tuple[int, int], float]:
        """The order among kernels that are fast enough: the simplest first."""
        return len(self.kept), measure_complexity(self.source), self.latency_ms


async def simplify_winner(
    request: SimplifyRequest,
    leg: SequenceLeg | None,
    read: ReadBlob,
    *,
    predict: Predict,
    spec: ProblemSpec,
    ask: RunEngineJob,
) -> KernelAnswer:
    """Return the simplest kernel that was found within the request's limit, with a note on what is gone.

    Raises:
        RoleError: `nothing_simpler`, or a pool or the evaluator failed.
    """
    winner = read(request.best.source).decode()
    work = _Simplifier(request, winner, predict, ask, problem_job_fields(spec, request.size, request.target))
    if leg is not None:
        start, steps = split_raise(read(leg.source).decode(), leg.steps, read)
        await work.drop_steps(start, steps, spec)
    await work.simplify_text()
    if normalize_source(work.source) == normalize_source(winner):
        raise make_role_error("nothing_simpler", "; ".join(work.reasons) or "each rewrite brings something")
    return KernelAnswer(work.source, work.describe_changes())


@dataclass(slots=True)
class _Simplifier:
    """One simplification. `source` is the simplest kernel so far."""

    request: SimplifyRequest
    winner: str
    predict: Predict
    ask: RunEngineJob
    shapes: dict[str, Any]
    source: str = ""
    steps: Sequence[RewriteStep] = ()
    dropped: tuple[int, ...] = ()
    passes: tuple[str, ...] = ()
    reasons: list[str] = field(default_factory=list)
    predicted: int = 0
    checks: int = 0
    instructions: int = 0
    _latencies: dict[str, float | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.source = self.winner

    def describe_changes(self) -> str:
        """Return in one line what a simplification did."""
        told = []
        if self.dropped:
            gone = ", ".join(dict.fromkeys(self.steps[number].technique for number in self.dropped))
            told.append(f"{len(self.dropped)} of {len(self.steps)} rewrites dropped ({gone})")
        told += self.passes
        lines = f"{_count_lines(self.winner)} lines to {_count_lines(self.source)}"
        return f"simplified: {', '.join(told)}, {lines}"

    # --- rewrites ------------------------------------------------------------------------------------

    async def drop_steps(self, start: str, steps: Sequence[RewriteStep], spec: ProblemSpec) -> None:
        """Drop the rewrites without which the winner is as fast."""
        self.steps = steps
        every = tuple(range(len(steps)))
        whole = await self._replay(start, every)
        if not whole or normalize_source(whole[-1][1]) != normalize_source(self.winner):
            self.reasons.append("the winner's rewrites do not lead to it any more")
            return
        best = self.request.best
        scale = await select_scale(
            self.request,
            best,
            self.winner,
            parent_ms=best.latency_ms,
            predict=self.predict,
            spec=spec,
            ask=self.ask,
        )
        kept = _without_detours(start, whole)
        may_go: Collection[int] = kept
        while kept and self._may_predict:
            singles = [(number,) for number in sorted(may_go, key=self._gain_of) if number in kept]
            near = await self._try_without(start, kept, singles, scale=scale)
            if not near:
                near = await self._try_without(start, kept, self._likely_pairs(kept), scale=scale)
            found = await self._select_simplest(near, scale)
            if found is None:
                break
            may_go = {number for one in near for number in set(kept) - set(one.kept)}
            self.source, kept = found.source, found.kept
        self.dropped = tuple(number for number in every if number not in kept)

    async def _select_simplest(self, near: list[_Shortened], scale: PredictionScale) -> _Shortened | None:
        """Return the simplest kernel that is as fast as the winner at the problem's size, too."""
        for one in sorted(near, key=lambda one: one.rank):
            if scale.is_full_size:
                return one
            if self.checks < MOST_FULL_SIZE:
                self.checks += 1
                if await self._is_as_fast(one.source):
                    return one
        return None

    async def _try_without(
        self,
        start: str,
        kept: tuple[int, ...],
        left_out: Iterable[tuple[int, ...]],
        *,
        scale: PredictionScale,
    ) -> list[_Shortened]:
        """Return the kernels without some rewrites that are as fast as the winner."""
        wanted = [tuple(number for number in kept if number not in gone) for gone in left_out]
        made = await asyncio.gather(*(self._replay(start, numbers) for numbers in wanted))
        ends = [one[-1] if one else ((), start) for one in made]
        await self._predict_all(dict.fromkeys(source for _, source in ends), scale)
        most = self.request.best.latency_ms * self._slack
        return [
            _Shortened(source, numbers, latency)
            for numbers, source in ends
            if len(numbers) < len(kept)
            and (latency := self._latencies.get(source)) is not None
            and latency <= most
        ]

    async def _predict_all(self, sources: Iterable[str], scale: PredictionScale) -> None:
        """Predict the kernels that are not predicted yet, as many as there may be."""
        fresh = [source for source in sources if source not in self._latencies]
        while fresh and self._may_predict:
            batch = fresh[: min(BATCH_KERNELS, self.request.predictions - self.predicted)]
            fresh = fresh[len(batch) :]
            for source, answer in zip(batch, await scale.predict(batch), strict=True):
                self.predicted += 1
                self.instructions += answer.instructions
                self._latencies[source] = answer.latency_ms

    def _likely_pairs(self, kept: tuple[int, ...]) -> list[tuple[int, ...]]:
        def rest_of_gain(pair: tuple[int, ...]) -> float:
            return abs(sum(log(self.steps[number].speedup) for number in pair))

        pairs: list[tuple[int, ...]] = list(combinations(kept, 2))
        return sorted(pairs, key=rest_of_gain)[:MOST_PAIRS]

    def _gain_of(self, number: int) -> float:
        return self.steps[number].speedup

    async def _replay(self, start: str, numbers: Sequence[int]) -> list[tuple[tuple[int, ...], str]]:
        """The kernel after each of these rewrites that applies, with the numbers of those before it."""
        told = [self.steps[number].model_dump(mode="json") for number in numbers]
        made = await self.ask({"job": "combine", "source": start, "steps": told, **self.shapes})
        return [(tuple(numbers[at] for at in one["steps"]), one["source"]) for one in made["made"]]

    @property
    def _may_predict(self) -> bool:
        return self.predicted < self.request.predictions and self.instructions < self.request.instructions

    @property
    def _slack(self) -> float:
        return 1 + self.request.within_percent / 100

    # --- text ----------------------------------------------------------------------------------------

    async def simplify_text(self) -> None:
        """Apply the passes on syntax: all together, or those alone that leave the kernel as fast."""
        if await self._apply_passes(tuple(PASSES)):
            return
        for name in PASSES:
            await self._apply_passes((name,))

    async def _apply_passes(self, names: tuple[str, ...]) -> bool:
        """Apply some passes; return whether they left nothing to try."""
        made = await self.ask({"job": "simplify", "source": self.source, "passes": names})
        if not made["passes"]:
            return True
        if measure_complexity(made["source"]) >= measure_complexity(self.source):
            return False
        if not await self._is_as_fast(made["source"]):
            return False
        self.source = made["source"]
        self.passes += tuple(made["passes"])
        return True

    async def _is_as_fast(self, source: str) -> bool:
        """Whether a kernel is predicted to be as fast as the winner, at the problem's size."""
        before, after = await self.predict([self.winner, source])
        if before.latency_ms is None or after.latency_ms is None:
            return False
        return after.latency_ms <= before.latency_ms * self._slack


def _without_detours(start: str, whole: Sequence[tuple[tuple[int, ...], str]]) -> tuple[int, ...]:
    """The rewrites of a sequence without those that undo one another: after them, the kernel is as before."""
    seen = {normalize_source(start): 0}
    kept: list[int] = []
    for numbers, source in whole:
        kept.append(numbers[-1])
        form = normalize_source(source)
        if form in seen:
            del kept[seen[form] :]
            seen = {one: at for one, at in seen.items() if at <= len(kept)}
        else:
            seen[form] = len(kept)
    return tuple(kept)


def _count_lines(source: str) -> int:
    return sum(bool(line.strip()) for line in source.splitlines())
