"""One kernel of a run: what was planned, expected, tried and found, and how it ended."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from agentctl.views.run import LatencyInterval, latency_of
from agentctl.views.series import require_event
from daemon.errors import DaemonError
from daemon.profiles import parse_counters
from state.errors import BlobMissing
from state.events import (
    EvaluationCompleted,
    EvaluationFailed,
    ExecutionFailed,
    ExperienceRecorded,
    KernelDiscarded,
    KernelKept,
    PlanFailed,
    PlanProposed,
    ReflectionRecorded,
)
from state.fold import RunState
from state.model import (
    INITIAL_KEY,
    PERSON,
    Benchmark,
    EffectKey,
    ErrorInfo,
    Evaluation,
    Plan,
    Role,
    Verdict,
)
from state.reader import LogReader
from state.records import RecordedEvent

INITIAL, BEST = "initial", "best"
"""Names that stand for a candidate of any run."""


@dataclass(frozen=True, slots=True)
class PlanPrediction:
    """What the plan predicted: a speedup over the parent, a counter and its direction, and the reason."""

    speedup: float
    counter: str | None
    direction: int
    reason: str


@dataclass(frozen=True, slots=True)
class StepView:
    """One rewrite of a plan that is a sequence; `speedup` is the prediction for this rewrite alone."""

    technique: str
    site: str
    title: str
    speedup: float


@dataclass(frozen=True, slots=True)
class FailureReason:
    """Why something failed."""

    code: str
    message: str
    line: int | None
    hint: str | None


@dataclass(frozen=True, slots=True)
class Judgement:
    """One verdict at a level. `role` says when it was given: after the proposal, before the beam or
    before the end.

    `rel_l2` are relative errors by seed. `identity` is `proven` or `tested`; `identity_reason` says why
    it was not proven. `cached_from` is the RUN@SEQ whose verdict was reused. `stage_ms` are the
    durations of the stages.
    """

    role: str
    level: str
    verdict: str
    stage: str
    error: FailureReason | None
    rel_l2: dict[str, float]
    identity: str | None
    identity_reason: str
    cached_from: str | None
    stage_ms: dict[str, float]
    place: str


@dataclass(frozen=True, slots=True)
class Lesson:
    """What the run noted about the attempt: its prediction against the outcome, graded by arithmetic."""

    grade: str
    predicted_speedup: float
    actual_speedup: float | None
    lesson: str
    operator: str
    bottleneck: str
    place: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateView:
    """Everything that the log has about a candidate; what is missing (so far) is None or empty.

    A plan that nobody made is one too, under the id of its first kernel: `planner_failed` is true.

    `parents` leads from the initial kernel to the parent. `verdict` is the judge's final verdict;
    `refuted` is true if an earlier one was correct. `speedup` is over the parent, `wins_percent` how
    sure it is, in percent, that the kernel is faster than the parent, and `gain` the factor over
    the initial kernel. `history` is true if its latency is from before a fork that judges differently.
    `places` maps each kind of fact to its event, as RUN@SEQ.
    """

    run: str
    id: str
    round: int
    slot: int
    repair: int
    author: str | None
    planner: str | None
    model: str | None
    parent: str | None
    parents: tuple[str, ...]
    children: tuple[str, ...]
    repairs: tuple[str, ...]
    technique: str | None
    site: str | None
    title: str | None
    note: str
    steps: tuple[StepView, ...]
    expected: PlanPrediction | None
    detail: Any
    failure: FailureReason | None
    verdict: str | None
    refuted: bool
    judgements: tuple[Judgement, ...]
    level: str | None
    latency: LatencyInterval | None
    speedup: float | None
    wins_percent: float | None
    gain: float | None
    history: bool
    bottleneck: str | None
    decision: str | None
    reason: str | None
    role: str | None
    duplicate_of: str | None
    against: str | None
    against_wins_percent: float | None
    lesson: Lesson | None
    experience: str | None
    source_digest: str | None
    source: str | None
    profile_digest: str | None
    profile: dict[str, Any] | None
    counters: dict[str, float]
    places: dict[str, str]

    @property
    def planner_failed(self) -> bool:
        """Whether there is no kernel because there is no plan; `failure` says why."""
        return self.failure is not None and self.expected is None and "kernel" not in self.places

    @property
    def benchmark(self) -> Benchmark | None:
        """The kernel's latency as the value that the log stores."""
        return self.latency.benchmark if self.latency else None

    def wins_percent_over(self, other: CandidateView) -> float | None:
        """Return how sure it is, in percent, that this kernel is faster than another; None without draws."""
        mine, theirs = self.benchmark, other.benchmark
        return mine.wins_percent(theirs) if mine and theirs else None


def resolve_candidate(state: RunState, name: str) -> str:
    """Return the id of a candidate; `initial` and `best` are accepted too.

    Raises:
        DaemonError: the run has no best kernel yet.
    """
    if name == INITIAL:
        return INITIAL_KEY.candidate_id
    if name != BEST:
        return name
    if state.best is None:
        raise DaemonError("there is no correct kernel yet", code="no_kernel")
    return state.best.id


def load_candidate(reader: LogReader, run: str, name: str, *, at: int | None = None) -> CandidateView:
    """Return what the log has about one candidate of a run, by its id, or as `initial` or `best`.

    With `at`, return it as it was after that event of the run.

    Raises:
        DaemonError: the run has none of that name (yet), or no such event.
        state.errors.StreamUnknown: there is no such run.
    """
    return _CandidateReader(reader, run, name, at).build_view()


class _CandidateReader:
    """Reads what the log says about one candidate, event by event."""

    def __init__(self, reader: LogReader, run: str, name: str, at: int | None) -> None:
        self.reader, self.run, self.at = reader, run, at
        self.state = reader.run_state(run, None if at is None else require_event(reader, run, at).run_seq)
        self.name = name = resolve_candidate(self.state, name)
        self.rows = rows = {str(row["candidate"]): row for row in reader.attempt_rows(run, upto=at)}
        row = rows.get(name, {} if name == INITIAL_KEY.candidate_id else self._failed_plan_row())
        if row is None:
            raise DaemonError.for_unknown_name(
                "candidate", name, (*rows, INITIAL, BEST), code="unknown_candidate"
            )
        self.row = row
        self.key = EffectKey.parse(f"{name}.{Role.EXECUTOR}")
        self.places: dict[str, str] = {}

    def _failed_plan_row(self) -> dict[str, Any] | None:
        """Return the row of the plan whose first kernel has this name, if its planner failed."""
        for row in self.reader.failed_plan_rows(self.run, upto=self.at):
            key = EffectKey(row["round"], row["slot"], row["plan"], 0, 0, Role.PLANNER)
            if key.candidate_id == self.name:
                return row
        return None

    def build_view(self) -> CandidateView:
        row, judged = self.row, self._find_judgements()
        plan, failure = self._find_plan(), self._find_failure()
        benchmark = self._first_benchmark(self.name)
        parent = self._first_benchmark(row["parent"]) if row.get("parent") else None
        initial = self.state.initial.benchmark if self.state.initial else None
        compares = not row.get("history")
        decided = self._find_decision()
        source = self._source_digest()
        profile = self._load_profile()
        return CandidateView(
            run=self.run,
            id=self.name,
            round=self.key.round,
            slot=self.key.slot,
            repair=self.key.repair,
            author=row.get("author") or (PERSON if self.name == INITIAL_KEY.candidate_id else None),
            planner=row.get("planner"),
            model=row.get("model"),
            parent=row.get("parent"),
            parents=self._trace_parents(),
            children=tuple(one for one, other in self.rows.items() if other["parent"] == self.name),
            repairs=self._list_repairs(),
            technique=plan.technique if plan else None,
            site=plan.site if plan else None,
            title=plan.title if plan else None,
            note=row.get("note") or "",
            steps=tuple(
                StepView(one.technique, one.site, one.title, one.speedup)
                for one in (plan.steps if plan else ())
            ),
            expected=_plan_prediction(plan),
            detail=plan.detail if plan else None,
            failure=failure,
            verdict=_final_verdict(judged),
            refuted=any(one.verdict == Verdict.CORRECT for one in judged)
            and _final_verdict(judged) != Verdict.CORRECT,
            judgements=judged,
            level=row.get("level"),
            latency=latency_of(benchmark),
            speedup=row.get("speedup"),
            wins_percent=benchmark.wins_percent(parent) if benchmark and parent and compares else None,
            gain=initial.latency_ms / benchmark.latency_ms if initial and benchmark and compares else None,
            history=not compares,
            bottleneck=row.get("bottleneck"),
            decision=row.get("decision"),
            reason=row.get("reason"),
            role=row.get("role"),
            duplicate_of=row.get("duplicate_of"),
            against=decided.against if isinstance(decided, KernelDiscarded) else None,
            against_wins_percent=decided.wins_percent if isinstance(decided, KernelDiscarded) else None,
            lesson=self._find_lesson(),
            experience=self._find_experience(),
            source_digest=source,
            source=self._load_text(source),
            profile_digest=row.get("profile"),
            profile=None if profile is None else json.loads(profile),
            counters={} if profile is None else parse_counters(profile),
            places=self.places,
        )

    def _find_outcome(self, key: EffectKey, what: str) -> Any:
        """Return the outcome of an effect and record its place; None if there is none."""
        item = self.reader.event_by_key(self.run, f"{key}#outcome", self.at)
        return None if item is None else self._note_place(item, what)

    def _note_place(self, item: RecordedEvent, what: str) -> Any:
        self.places[what] = f"{item.stream}@{item.run_seq}"
        return item.event

    def _find_plan(self) -> Plan | None:
        event = self._find_outcome(self.key._replace(implementation=0, repair=0, role=Role.PLANNER), "plan")
        return event.plan if isinstance(event, PlanProposed) else None

    def _find_failure(self) -> FailureReason | None:
        """Return why there is no plan, no kernel, or no verdict."""
        first = self.key._replace(implementation=0, repair=0)
        for key, what in (
            (first.for_role(Role.PLANNER), "plan"),
            (self.key, "kernel"),
            (self.key.for_role(Role.EVALUATOR), "evaluation"),
        ):
            event = self._find_outcome(key, what)
            if isinstance(event, (PlanFailed, ExecutionFailed, EvaluationFailed)):
                return _failure_reason(event.error)
        return None

    def _find_judgements(self) -> tuple[Judgement, ...]:
        found = []
        for role in (Role.EVALUATOR, Role.VERIFIER, Role.AUDITOR):
            event = self._find_outcome(self.key.for_role(role), role.value)
            if isinstance(event, EvaluationCompleted):
                found.append(_judgement_view(role, event, self.places[role.value]))
        return tuple(found)

    def _first_benchmark(self, name: str) -> Benchmark | None:
        """Return the latency of a candidate with its draws, from its first verdict."""
        item = self.reader.event_by_key(self.run, f"{name}.{Role.EVALUATOR}#outcome", self.at)
        event = item.event if item else None
        return event.evaluation.benchmark if isinstance(event, EvaluationCompleted) else None

    def _find_decision(self) -> KernelKept | KernelDiscarded | None:
        decided_at = self.row.get("decided_at")
        item = self.reader.run_event(self.run, decided_at) if decided_at else None
        event = self._note_place(item, "decision") if item else None
        return event if isinstance(event, (KernelKept, KernelDiscarded)) else None

    def _find_lesson(self) -> Lesson | None:
        event = self._find_outcome(self.key.for_role(Role.REFLECTOR), "reflection")
        if not isinstance(event, ReflectionRecorded):
            return None
        said = event.reflection
        return Lesson(
            said.grade.value, said.predicted_speedup, said.actual_speedup, said.lesson, said.operator,
            said.bottleneck, self.places["reflection"],
        )  # fmt: skip

    def _find_experience(self) -> str | None:
        event = self._find_outcome(self.key.for_role(Role.SUMMARIZER), "experience")
        if not isinstance(event, ExperienceRecorded) or event.experience is None:
            return None
        return event.experience.summary

    def _source_digest(self) -> str | None:
        if self.name == INITIAL_KEY.candidate_id:
            return self.state.kernel
        found: str | None = self.row.get("source")
        return found

    def _load_profile(self) -> bytes | None:
        try:
            return self.reader.get_blob(self.row["profile"]) if self.row.get("profile") else None
        except BlobMissing:
            return None

    def _load_text(self, digest: str | None) -> str | None:
        try:
            return None if digest is None else self.reader.get_blob(digest).decode(errors="replace")
        except BlobMissing:
            return None

    def _trace_parents(self) -> tuple[str, ...]:
        """Return the ancestors of the kernel, oldest first."""
        line: list[str] = []
        parent = self.row.get("parent")
        while parent is not None and parent not in line:
            line.append(parent)
            parent = self.rows.get(parent, {}).get("parent")
        return tuple(reversed(line))

    def _list_repairs(self) -> tuple[str, ...]:
        """Return all tries of the same implementation, including this one; empty if there is only one."""
        tries = [self.key._replace(repair=number).candidate_id for number in range(self.key.repair + 1)]
        while (more := self.key._replace(repair=len(tries)).candidate_id) in self.rows:
            tries.append(more)
        return tuple(tries) if len(tries) > 1 else ()


def _plan_prediction(plan: Plan | None) -> PlanPrediction | None:
    if plan is None:
        return None
    said = plan.prediction
    return PlanPrediction(said.speedup, said.counter, said.direction, said.reason)


def _failure_reason(error: ErrorInfo) -> FailureReason:
    return FailureReason(error.code, error.message, error.line, error.hint)


def _judgement_view(role: Role, event: EvaluationCompleted, place: str) -> Judgement:
    said: Evaluation = event.evaluation
    return Judgement(
        role=role.value,
        level=said.level.value,
        verdict=said.verdict.value,
        stage=said.stage,
        error=_failure_reason(said.error) if said.error else None,
        rel_l2={str(seed): value for seed, value in said.rel_l2.items()},
        identity=said.identity.verdict if said.identity else None,
        identity_reason=said.identity.reason if said.identity else "",
        cached_from=event.cached_from,
        stage_ms=dict(event.stage_ms),
        place=place,
    )


def _final_verdict(judged: tuple[Judgement, ...]) -> str | None:
    """Return the final verdict: the first that is not correct, else correct."""
    wrong = [one.verdict for one in judged if one.verdict != Verdict.CORRECT]
    return wrong[0] if wrong else judged[-1].verdict if judged else None
