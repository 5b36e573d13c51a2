"""Chooses the next points to try in the space of one graph, from what was tried so far; pure and stateless.

There are two modes. A *sweep* turns one knob of a good point, starting with the knob that the bottleneck
implicates. *Joint* points change all knobs: some are drawn anywhere, some are several turns away from a good
point and repaired by the hints of the validity report. A mode continues while it pays; a plateau switches to
the other. Among the points found, those with the best static estimate are tried, except points whose busiest
engine alone takes as long as the best point.

The last points of a batch are drawn anywhere and not ranked. The results so far show how far the estimate can
be trusted in this space: if it orders points wrongly, it ranks nothing, and more points are drawn anywhere.
Programs that were already tried are skipped: different knobs often mean the same loops (`program.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import combinations, islice
from math import inf, log
from random import Random

from targets.nki.knobs.cost import cost_ns, estimate_cost
from targets.nki.knobs.graph import Graph
from targets.nki.knobs.ir import LOOP_ORDER, LTILES, SCOPES, KernelIR
from targets.nki.knobs.narrowing import default_ir
from targets.nki.knobs.neighbours import KNOBS, is_valid, knob_turns, sweep_knob
from targets.nki.knobs.placement import compute_placement
from targets.nki.knobs.program import program_digest
from targets.nki.knobs.report import follow_hint
from targets.nki.knobs.sampling import sample_ir
from targets.nki.knobs.validity import validity_report

GAIN_RATIO = 1.002
"""A batch pays if it makes the best point faster by this factor."""

ELITE = 4
"""Number of good points to start from."""

ANYWHERE_RATIO = 0.25
"""Share of joint points that are drawn anywhere."""

MOST_TURNS = 4
"""Most turns of a good point for a joint point."""

RANDOM_SHARE = 0.25
"""Share of a batch, in either mode, that is drawn anywhere: all points near a good one may be slow."""

BLIND_RANDOM_SHARE = 0.5
"""The same share while the results do not support the estimate, which cannot see waiting between engines."""

WIDER = 3
"""Points found for each that is wanted: the estimate chooses among them."""

_TRIES = 12
"""Draws for each point that is wanted; in a small space there may be no more new points."""

EQUAL_RATIO = 1.02
"""Estimates that differ by less do not tell which point is faster."""

NS_PER_MS = 1e6

_MENDS = 24
"""Hints that are followed before a point is given up."""


class SearchMode(StrEnum):
    """How the points of a batch were found."""

    SWEEP = "sweep"
    JOINT = "joint"


@dataclass(frozen=True, slots=True)
class Trial:
    """A point that was tried, and its predicted latency; None, with the cause, if it has none."""

    ir: KernelIR
    ms: float | None
    failure: str = ""


@dataclass(frozen=True, slots=True)
class TriedBatch:
    """A batch and its results. Points that nobody proposed, such as the baseline, count as a joint batch."""

    mode: SearchMode
    trials: tuple[Trial, ...]
    knob: str = ""


@dataclass(frozen=True, slots=True)
class ProfileFeedback:
    """What a profile says about the best point: the bottleneck, and the percent of peak bandwidth."""

    bottleneck: str = ""
    mbu_estimated_percent: float | None = None


@dataclass(frozen=True, slots=True)
class SearchBatch:
    """The points to try next, no two the same program, and why. Empty if nothing new was found."""

    mode: SearchMode
    points: tuple[KernelIR, ...]
    reason: str
    knob: str = ""


IMPLICATED: Mapping[str, tuple[str, ...]] = {
    "dma": (SCOPES, LOOP_ORDER, LTILES),
    "tensor": (LOOP_ORDER, SCOPES, LTILES),
    "vector": (LTILES, SCOPES, LOOP_ORDER),
    "scalar": (LTILES, SCOPES, LOOP_ORDER),
    "gpsimd": (LTILES, SCOPES, LOOP_ORDER),
    "dependency": (SCOPES, LTILES, LOOP_ORDER),
    "underutilised": (LTILES, SCOPES, LOOP_ORDER),
}
"""The knobs by bottleneck: reuse for traffic, wider instructions for engines, room for waiting."""

_ANY = (SCOPES, LTILES, LOOP_ORDER)

BUSY_PERCENT = 60.0
"""Above this share of bandwidth a knob must lower traffic, whatever the bottleneck is."""


def next_batch(
    graph: Graph, rng: Random, history: Sequence[TriedBatch], feedback: ProfileFeedback, count: int
) -> SearchBatch:
    """Return at most `count` points to try next, given what was tried, oldest batch first.

    Raises:
        KnobError: no valid point of the graph can be found.
    """
    seen = {program_digest(trial.ir) for tried in history for trial in tried.trials}
    best = _elite_trials(history)
    agreement = _estimate_agreement(history)
    known = _KnownPrograms(
        frozenset(seen), min((_latency_ms(trial) for trial in best), default=inf), agreement >= 0
    )
    if not best:
        points = _promising_points(_first_points(graph, rng), known, count, tries=_TRIES * count)
        return SearchBatch(
            SearchMode.JOINT, points, "nothing is known yet: the default, and points near it and anywhere"
        )
    good = [trial.ir for trial in best]
    share = RANDOM_SHARE if agreement > 0 else BLIND_RANDOM_SHARE
    strangers = _random_points(good[0], rng, known, count=int(share * count))
    known = known.with_programs(strangers)
    rest = count - len(strangers)
    for mode in _mode_order(history):
        if mode is SearchMode.JOINT:
            batch = _joint_batch(good, rng, known, count=rest)
        else:
            batch = _sweep_batch(good, rng, known, knobs=_knob_order(feedback, history), count=rest)
        if batch.points:
            return replace(batch, points=(*batch.points, *strangers))
    if strangers:
        return SearchBatch(
            SearchMode.JOINT, strangers, "only points drawn anywhere were programs that were not seen"
        )
    return SearchBatch(SearchMode.JOINT, (), "no draw led to a program that was not seen")


def best_trial(history: Sequence[TriedBatch]) -> Trial | None:
    """The fastest point that was tried, the first of equals; None if none has a latency."""
    found = [trial for tried in history for trial in tried.trials if trial.ms is not None]
    return min(found, key=_latency_ms, default=None)


def _latency_ms(trial: Trial) -> float:
    assert trial.ms is not None
    return trial.ms


def _elite_trials(history: Sequence[TriedBatch]) -> list[Trial]:
    """The fastest points, the best first."""
    found = [trial for tried in history for trial in tried.trials if trial.ms is not None]
    return sorted(found, key=_latency_ms)[:ELITE]


def _estimate_agreement(history: Sequence[TriedBatch]) -> int:
    """Pairs of points that estimate and latency order alike, minus those that they order differently.

    Differences too small to count, in either, are ignored.
    """
    found = [
        (_latency_ms(trial), _cost_step(cost_ns(trial.ir, compute_placement(trial.ir))))
        for tried in history
        for trial in tried.trials
        if trial.ms is not None
    ]
    return sum(
        1 if (ms < other_ms) == (cost < other_cost) else -1
        for (ms, cost), (other_ms, other_cost) in combinations(found, 2)
        if cost != other_cost and max(ms, other_ms) > GAIN_RATIO * min(ms, other_ms)
    )


def _mode_order(history: Sequence[TriedBatch]) -> tuple[SearchMode, SearchMode]:
    """The mode that is due, and the other one in case it finds nothing; sweeps come first."""
    last = history[-1]
    idle = _batches_since_best(history)
    knobs = {tried.knob for tried in idle if tried.mode is SearchMode.SWEEP}
    stays = not idle or (last.mode is SearchMode.SWEEP and len(knobs) < len(KNOBS))
    if len(history) > 1 and stays is (last.mode is SearchMode.JOINT):
        return SearchMode.JOINT, SearchMode.SWEEP
    return SearchMode.SWEEP, SearchMode.JOINT


def _batches_since_best(history: Sequence[TriedBatch]) -> Sequence[TriedBatch]:
    """The batches after the last one that made the best point faster."""
    best, since = None, 0
    for number, tried in enumerate(history, 1):
        found = best_trial([tried])
        if found is not None and (best is None or _latency_ms(best) > _latency_ms(found) * GAIN_RATIO):
            best, since = found, number
    return history[since:]


def _knob_order(feedback: ProfileFeedback, history: Sequence[TriedBatch]) -> list[str]:
    """The knobs in the order in which they are implicated; knobs already swept around the best point last."""
    order = IMPLICATED.get(feedback.bottleneck, _ANY)
    if feedback.mbu_estimated_percent is not None and feedback.mbu_estimated_percent > BUSY_PERCENT:
        order = IMPLICATED["dma"]
    if "capacity" in _common_failure(history):
        order = (LTILES, SCOPES, LOOP_ORDER)
    done = [tried.knob for tried in _batches_since_best(history) if tried.mode is SearchMode.SWEEP]
    return sorted(order, key=done.count)


def _common_failure(history: Sequence[TriedBatch]) -> str:
    """The most common failure in the last batch; empty if more than half of the batch succeeded."""
    trials = history[-1].trials
    failures = [trial.failure for trial in trials if trial.ms is None]
    if 2 * len(failures) < len(trials) or not failures:
        return ""
    return max(sorted(failures), key=failures.count)


@dataclass(frozen=True, slots=True)
class _KnownPrograms:
    """The programs that were tried, the latency of the best, and whether the estimate may rank others."""

    programs: frozenset[str]
    best_ms: float
    ranks: bool

    def is_worth_trying(self, ir: KernelIR, least_ns: float) -> bool:
        """Whether a point is worth trying: it may be faster, and its program is new."""
        return least_ns < self.best_ms * NS_PER_MS and program_digest(ir) not in self.programs

    def with_programs(self, points: Sequence[KernelIR]) -> _KnownPrograms:
        """The same after these points were added."""
        return replace(self, programs=self.programs | {program_digest(ir) for ir in points})


def _first_points(graph: Graph, rng: Random) -> Iterator[KernelIR]:
    first = default_ir(graph)
    yield first
    yield from _draw_points([first], rng)


def _sweep_batch(
    best: list[KernelIR], rng: Random, known: _KnownPrograms, *, knobs: list[str], count: int
) -> SearchBatch:
    """Turns of the first knob with new values at a good point, those of the best point first."""
    for knob in knobs:
        points = _promising_points(_turned_points(best, knob, rng), known, count, tries=None)
        if points:
            return SearchBatch(SearchMode.SWEEP, points, f"turns of {knob} at good points", knob)
    return SearchBatch(SearchMode.SWEEP, (), "every turn of the good points was seen")


def _turned_points(best: list[KernelIR], knob: str, rng: Random) -> Iterator[KernelIR]:
    for ir in best:
        found = sweep_knob(ir, knob)
        rng.shuffle(found)
        yield from found


def _joint_batch(best: list[KernelIR], rng: Random, known: _KnownPrograms, *, count: int) -> SearchBatch:
    points = _promising_points(_draw_points(best, rng), known, count, tries=_TRIES * count)
    return SearchBatch(SearchMode.JOINT, points, "a plateau: all knobs drawn, anywhere and near good points")


def _random_points(
    first: KernelIR, rng: Random, known: _KnownPrograms, *, count: int
) -> tuple[KernelIR, ...]:
    """Points drawn anywhere, unranked."""
    found: dict[str, KernelIR] = {}
    for _ in range(_TRIES * count):
        ir = sample_ir(first, rng)
        if known.is_worth_trying(ir, estimate_cost(ir, compute_placement(ir)).least_ns):
            found.setdefault(program_digest(ir), ir)
        if len(found) == count:
            break
    return tuple(found.values())


def _draw_points(best: list[KernelIR], rng: Random) -> Iterator[KernelIR]:
    while True:
        if rng.random() < ANYWHERE_RATIO:
            yield sample_ir(best[0], rng)
        else:
            yield draw_near(rng.choice(best), rng)


def draw_near(ir: KernelIR, rng: Random) -> KernelIR:
    """A valid IR some turns away from a valid one; the IR itself if hints do not lead to one."""
    turned = ir
    for _ in range(rng.randint(2, MOST_TURNS)):
        found = list(knob_turns(turned, rng.choice(KNOBS)))
        turned = rng.choice(found) if found else turned
    return follow_hints(turned) or ir


def follow_hints(ir: KernelIR) -> KernelIR | None:
    """The IR after following hints until it is valid; None if that takes too many."""
    for _ in range(_MENDS):
        report = validity_report(ir)
        if not report:
            return ir
        if not report[0].fix:
            return None
        ir = follow_hint(ir, report[0])
    return ir if is_valid(ir) else None


def _promising_points(
    found: Iterator[KernelIR], known: _KnownPrograms, count: int, *, tries: int | None
) -> tuple[KernelIR, ...]:
    """Points whose programs are new; where the estimate ranks, the cheapest of several.

    With `tries` None everything found is used.
    """
    points: dict[str, tuple[int, KernelIR]] = {}
    for ir in islice(found, tries):
        if len(points) == WIDER * count:
            break
        estimate = estimate_cost(ir, compute_placement(ir))
        if known.is_worth_trying(ir, estimate.least_ns):
            points.setdefault(program_digest(ir), (_cost_step(estimate.cost_ns) if known.ranks else 0, ir))
    ranked = sorted(points.values(), key=lambda item: item[0])
    return tuple(ir for _, ir in ranked[:count])


def _cost_step(cost: float) -> int:
    """A cost rounded to steps of some percent: below that, points keep the order in which they came."""
    return round(log(cost) / log(EQUAL_RATIO))
