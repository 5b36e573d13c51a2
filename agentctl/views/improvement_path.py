"""The path of improvements: a run's best kernels one after the other, how each came about, and what was
undone.

There are two lines. `bests` are the kernels that were the best when they were kept, in order of time.
`line` are those that led to the current best, each made from the one before; some of these were never
the best themselves.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from agentctl.views.run import LatencyInterval, latency_of
from agentctl.views.walk import walk_events
from state.events import (
    CallEnded,
    EffectEnded,
    EvaluationCompleted,
    KernelKept,
    KernelProposed,
    KernelRefuted,
    KernelReverted,
    PlanProposed,
    ReflectionRecorded,
    RunForked,
    effect_key,
)
from state.model import Candidate, EffectKey, Plan, Reflection, Role
from state.quotable_errors import quotable_message
from state.reader import LogReader
from state.records import ProgressCallback, RecordedEvent

STEP_SEPARATOR = "; "
"""Separates the rewrites in the title of a sequence."""


@dataclass(frozen=True, slots=True)
class Improvement:
    """A kernel on the path. Latencies are in ms; `seconds` count from the start of the run.

    `at` is the event that kept the kernel (RUN@SEQ), `time` its time in UTC. `evaluations` counts the
    verdicts and `spent_usd` the money up to then (None if a price is unknown). `speedup` is over its
    parent and `total` over the initial kernel, None where they do not compare. `expected` is the
    prediction of its plan, `reason` the plan's reason, and `lesson` what the run noted afterwards.
    `source` is a blob's digest.
    """

    candidate: str
    parent: str | None
    round: int
    at: str
    time: str
    seconds: float
    evaluations: int
    spent_usd: float | None
    author: str
    technique: str | None
    title: str
    rewrites: tuple[str, ...]
    note: str
    latency: LatencyInterval
    level: str
    bottleneck: str | None
    speedup: float | None
    total: float | None
    wins_percent: float | None
    expected: float | None
    reason: str
    grade: str | None
    lesson: str | None
    source: str
    profile: str | None


@dataclass(frozen=True, slots=True)
class RemovedKernel:
    """A kernel that was removed: `kind` is refuted (the best was wrong) or reverted (a lineage
    diverged).

    `restored` is the kernel that replaced it, None if none was left. `reason` may be exported: it has
    the judge's own words, but only the code of an error of a device or a compiler.
    """

    at: str
    time: str
    kind: str
    candidate: str
    restored: str | None
    reason: str


@dataclass(frozen=True, slots=True)
class BestChange:
    """The best kernel became `best` (None: none is left); `taken_back` is set if the previous one was
    wrong.
    """

    best: Improvement | None
    taken_back: RemovedKernel | None


@dataclass(frozen=True, slots=True)
class VerdictPoint:
    """The n-th verdict: the kernel's latency if it is correct and has one, and the best latency after it."""

    evaluations: int
    seconds: float
    candidate: str
    verdict: str
    ms: float | None
    best_ms: float | None


@dataclass(frozen=True, slots=True)
class ImprovementPath:
    """A run's path from its initial kernel to its best; empty if there is none."""

    run: str
    predicted: bool | None
    bests: tuple[Improvement, ...]
    line: tuple[Improvement, ...]
    taken_back: tuple[RemovedKernel, ...]
    turns: tuple[BestChange, ...]
    points: tuple[VerdictPoint, ...]


def load_improvement_path(
    reader: LogReader, run: str, *, progress: ProgressCallback | None = None
) -> ImprovementPath:
    """Return the path of a run, including its ancestors' part.

    After a fork that judges differently the path starts again, because earlier latencies do not compare.

    Raises:
        StreamUnknown: there is no such run.
    """
    found = PathWalk()
    for _ in walk_events(reader, run, found, progress=progress):
        pass
    return found.build_path(run)


@dataclass(slots=True)
class PathWalk:
    """One pass over a run's events that collects its path."""

    types: ClassVar[tuple[str, ...]] = (
        "RunCreated", "RunForked", "PlanProposed", "KernelProposed", "EvaluationCompleted", "KernelKept",
        "KernelReverted", "KernelRefuted", "ReflectionRecorded", "CallCompleted", "CallFailed", "CallLost",
    )  # fmt: skip

    began_us: int = 0
    spent_usd: float | None = 0.0
    evaluations: int = 0
    initial: Candidate | None = None
    best: Candidate | None = None
    plans: dict[EffectKey, Plan] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    faults: dict[str, str] = field(default_factory=dict)
    candidates: dict[str, Candidate] = field(default_factory=dict)
    kept: dict[str, Improvement] = field(default_factory=dict)
    bests: list[str] = field(default_factory=list)
    taken_back: list[RemovedKernel] = field(default_factory=list)
    turns: list[tuple[str | None, RemovedKernel | None]] = field(default_factory=list)
    points: list[VerdictPoint] = field(default_factory=list)

    def add_event(self, item: RecordedEvent) -> None:
        """Process the next event."""
        self.began_us = self.began_us or item.ts_us
        match item.event:
            case RunForked(rebase=rebase) if rebase is not None:
                self._restart_path(item)
            case PlanProposed(plan=plan) as event:
                self.plans[effect_key(event)] = plan
            case KernelProposed(note=note) as event:
                self.notes[effect_key(event).candidate_id] = note
            case EvaluationCompleted() as event:
                self._add_verdict(item, event)
            case KernelKept():
                self._add_kept(item, item.event)
            case KernelReverted() as event:
                self._add_removed(
                    item, "reverted", event.dropped, restored=event.restored, reason=event.reason
                )
            case KernelRefuted() as event:
                self._apply_refuted(item, event)
            case ReflectionRecorded(key=key, reflection=reflection):
                self._add_reflection(EffectKey.parse(key).candidate_id, reflection)
            case _:
                self._add_cost(item.event)

    def _restart_path(self, item: RecordedEvent) -> None:
        self.began_us = item.ts_us
        self.initial = self.best = None
        for held in (self.bests, self.points, self.taken_back, self.turns):
            held.clear()
        self.kept.clear()
        self.candidates.clear()

    def _add_cost(self, event: object) -> None:
        cost: float | None = 0.0
        match event:
            case CallEnded(cost_usd=usd):
                cost = usd
            case EffectEnded(usage=usage):
                cost = usage.cost_usd
        self.spent_usd = None if self.spent_usd is None or cost is None else self.spent_usd + cost

    def _add_verdict(self, item: RecordedEvent, event: EvaluationCompleted) -> None:
        self._add_cost(event)
        key, said = effect_key(event), event.evaluation
        if said.error is not None:
            told = quotable_message(said.stage, said.error.code, said.error.message)
            self.faults[key.candidate_id] = told or said.error.code
        if key.role is not Role.EVALUATOR:
            return
        self.evaluations += 1
        self.points.append(
            VerdictPoint(
                evaluations=self.evaluations,
                seconds=self._seconds_since_start(item),
                candidate=key.candidate_id,
                verdict=said.verdict.value,
                ms=said.benchmark.latency_ms if said.is_correct and said.benchmark else None,
                best_ms=self.best.latency_ms if self.best else None,
            )
        )

    def _seconds_since_start(self, item: RecordedEvent) -> float:
        return max(0.0, (item.ts_us - self.began_us) / 1e6)

    def _add_kept(self, item: RecordedEvent, event: KernelKept) -> None:
        one = event.candidate
        self.initial = self.initial or one
        self.candidates[one.id] = one
        self.kept[one.id] = self._build_improvement(item, one, event.speedup)
        is_simpler = self.best is not None and event.replaces == self.best.id
        if self.best is None or one.latency_ms < self.best.latency_ms or is_simpler:
            self.best = one
            self.bests.append(one.id)
            self.turns.append((one.id, None))

    def _build_improvement(self, item: RecordedEvent, one: Candidate, speedup: float | None) -> Improvement:
        plan = self._find_plan(one.id)
        parent = self.candidates.get(one.parent or "")
        assert self.initial is not None
        titles = tuple(one.title.split(STEP_SEPARATOR))
        return Improvement(
            candidate=one.id,
            parent=one.parent,
            round=one.round,
            at=item.event_id,
            time=item.time.isoformat(timespec="seconds"),
            seconds=self._seconds_since_start(item),
            evaluations=self.evaluations,
            spent_usd=self.spent_usd,
            author=one.author,
            technique=one.technique,
            title=one.title,
            rewrites=titles if plan is not None and plan.steps else (one.title,),
            note=self.notes.get(one.id, ""),
            latency=_require_latency(one),
            level=one.level.value,
            bottleneck=one.bottleneck,
            speedup=speedup if parent is not None else None,
            total=self.initial.latency_ms / one.latency_ms,
            wins_percent=one.benchmark.wins_percent(parent.benchmark) if parent else None,
            expected=plan.prediction.speedup if plan else None,
            reason=plan.prediction.reason if plan else "",
            grade=None,
            lesson=None,
            source=one.source,
            profile=one.profile,
        )

    def _find_plan(self, candidate: str) -> Plan | None:
        key = EffectKey.parse(f"{candidate}.{Role.PLANNER}")
        return self.plans.get(key._replace(implementation=0, repair=0))

    def _add_removed(
        self, item: RecordedEvent, kind: str, candidate: str, *, restored: str | None, reason: str
    ) -> None:
        time = item.time.isoformat(timespec="seconds")
        self.taken_back.append(RemovedKernel(item.event_id, time, kind, candidate, restored, reason))

    def _apply_refuted(self, item: RecordedEvent, event: KernelRefuted) -> None:
        restored = event.best.id if event.best else None
        why = self.faults.get(event.candidate, event.error.code)
        self._add_removed(item, "refuted", event.candidate, restored=restored, reason=why)
        self.best = event.best
        self.bests = [name for name in self.bests if name != event.candidate]
        self.turns.append((restored, self.taken_back[-1]))

    def _add_reflection(self, candidate: str, reflection: Reflection) -> None:
        known = self.kept.get(candidate)
        if known is not None:
            told = replace(known, grade=reflection.grade.value, lesson=reflection.lesson)
            self.kept[candidate] = told

    def build_path(self, run: str) -> ImprovementPath:
        """Return the collected path."""
        return ImprovementPath(
            run=run,
            predicted=self.best.benchmark.predicted if self.best else None,
            bests=tuple(self.kept[name] for name in self.bests if name in self.kept),
            line=tuple(self._winning_line()),
            taken_back=tuple(self.taken_back),
            turns=tuple(BestChange(self.kept.get(name or ""), back) for name, back in self.turns),
            points=tuple(self._points_with_best()),
        )

    def _winning_line(self) -> list[Improvement]:
        found: list[Improvement] = []
        name = self.best.id if self.best else None
        while name is not None and name in self.kept and all(one.candidate != name for one in found):
            found.append(self.kept[name])
            name = self.kept[name].parent
        return found[::-1]

    def _points_with_best(self) -> Iterator[VerdictPoint]:
        """Yield each verdict with the best latency after it, although kernels are kept only when their
        round ends.
        """
        low: float | None = None
        refuted = {one.candidate for one in self.taken_back if one.kind == "refuted"}
        for point in self.points:
            counts = point.ms is not None and point.candidate in self.kept and point.candidate not in refuted
            low = min(one for one in (low, point.ms) if one is not None) if counts else low
            yield replace(point, best_ms=low)


def _require_latency(one: Candidate) -> LatencyInterval:
    found: Any = latency_of(one.benchmark)
    assert isinstance(found, LatencyInterval)
    return found
