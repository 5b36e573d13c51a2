"""A run of few events, written out: what the tests of statistics count by hand.

It starts from a kernel of 12 ms. A kernel's latency says what it is: the same number is the same kernel.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from state.events import (
    BeamSelected,
    CallCompleted,
    CallFailed,
    CallLost,
    CallStarted,
    EvaluationCompleted,
    EvaluationStarted,
    Event,
    ExecutionFailed,
    ExecutionStarted,
    KernelDiscarded,
    KernelKept,
    KernelProposed,
    MemoryCurated,
    PlanFailed,
    PlanProposed,
    PlanStarted,
    RoundCompleted,
    RoundStarted,
    RunCreated,
    RunForked,
)
from state.log import EventLog
from state.model import (
    INITIAL_KEY,
    PREFILTERED,
    Amount,
    Attempt,
    BeamEntry,
    BeamRole,
    Benchmark,
    Candidate,
    ErrorInfo,
    Evaluation,
    LatencyBounds,
    Plan,
    Prediction,
    ProblemRef,
    Rebase,
    RunConfig,
    SlotAssignment,
    Tokens,
    Verdict,
    digest_of,
)
from state.reader import LogReader
from state.records import NewEvent

FIRST_MS = 12.0
TOKENS = Tokens(input=100, cached=40, output=10)
COST = 0.25
"""What an answer costs, in USD."""
RESERVED = Amount(usd=1.0, tokens=500, calls=1)
BOUNDS = LatencyBounds(plain_ms=1.0, tight_ms=2.0)
REQUEST = digest_of(b"request")
WRONG = ErrorInfo(code="mismatch", message="wrong")
HELD = ErrorInfo(code=PREFILTERED, message="not run on a host")

BIG, SMALL = "x/big", "y/small"


def problem(name: str) -> ProblemRef:
    return ProblemRef(name=name, digest=digest_of(name.encode()), files={})


class History:
    """Appends to one run of a log; what it has done, in `run`'s own stream."""

    def __init__(self, log: EventLog, run: str) -> None:
        self.log = log
        self.run = run
        self.prices: dict[str, float | None] = {}

    def say(self, *events: Event) -> None:
        self.log.append_now([NewEvent(self.run, event) for event in events])

    def begin(self, name: str = "matmul", *, correct: bool = True) -> History:
        config = RunConfig(problem=name)
        self.say(
            RunCreated(
                config=config,
                problem=problem(name),
                kernel=digest_of(b"kernel"),
                bounds=BOUNDS,
                toolchain="sim-1",
                code_version="0",
            )
        )
        self.judge("r0.b0.p0.k0.f0", FIRST_MS if correct else None)
        if correct:
            self.keep(INITIAL_KEY.candidate_id, FIRST_MS)
            self.say(BeamSelected(round=0, beam=(entry(INITIAL_KEY.candidate_id, FIRST_MS),)))
        return self

    def fork(self, parent: str, rebase: Rebase | None = None) -> History:
        """Continue `parent` from its last event."""
        with LogReader.open(self.log.home) as reader:
            at = reader.run_seq(parent)
            cut = reader.event_hash(parent, at)
        self.say(RunForked(parent=parent, parent_seq=at, parent_hash=cut, rebase=rebase))
        return self

    def round(self, number: int, *models: str, parent: str = INITIAL_KEY.candidate_id) -> None:
        """Start a round, with a slot for each model."""
        slots = (
            SlotAssignment(
                slot=slot, parent=parent, planner=model.split("/")[0], model=model, plans=2, implementations=1
            )
            for slot, model in enumerate(models)
        )
        self.say(RoundStarted(round=number, slots=tuple(slots)))

    def plan(
        self, key: str, technique: str | None, *, model: str = BIG, calls: Iterable[str] = ("ok",)
    ) -> None:
        """Plan, asking as `calls` says; without a technique it comes to nothing."""
        key = f"{key}.planner"
        self.say(PlanStarted(key=key, request=REQUEST))
        self.ask(key, "planner", model, calls)
        if technique is None:
            self.say(PlanFailed(key=key, error=ErrorInfo(code="no_block", message="no block")))
            return
        self.say(PlanProposed(key=key, plan=planned(technique)))

    def kernel(
        self,
        candidate: str,
        latency_ms: float | None,
        *,
        model: str = BIG,
        calls: Iterable[str] = ("ok",),
        made: bool = True,
        predicted_ms: float | None = None,
    ) -> None:
        """Propose a kernel and have it judged, as `judge` says. Not `made`, there is none."""
        key = f"{candidate}.executor"
        self.say(ExecutionStarted(key=key, request=REQUEST))
        role = "executor" if candidate.endswith("f0") else "repairer"
        self.ask(key, role, model, calls)
        if not made:
            self.say(ExecutionFailed(key=key, error=ErrorInfo(code="not_python", message="no Python")))
            return
        self.say(KernelProposed(key=key, source=source(latency_ms), author=model))
        self.judge(candidate, latency_ms, predicted_ms)

    def ask(self, key: str, role: str, model: str, calls: Iterable[str]) -> None:
        """Make attempts at answers: `ok` is one and ends a question, `lost` and kinds of failure are none."""
        question, attempt = 0, 1
        for came in calls:
            at: dict[str, Any] = {
                "key": key, "call": question, "attempt": attempt, "role": role, "model": model,
            }  # fmt: skip
            self.say(CallStarted(**at, request=REQUEST, reserved=RESERVED), outcome(came, at, self.prices))
            question, attempt = (question + 1, 1) if came == "ok" else (question, attempt + 1)

    def judge(self, candidate: str, latency_ms: float | None, predicted_ms: float | None = None) -> None:
        """Judge a kernel: wrong without a latency, unless a pre-filter predicted one and held it back."""
        key = f"{candidate}.evaluator"
        fault = WRONG if predicted_ms is None else HELD
        self.say(
            EvaluationStarted(key=key, request=REQUEST),
            EvaluationCompleted(
                key=key,
                cache_key=digest_of(f"{self.run} {candidate}".encode()),
                evaluation=Evaluation(
                    verdict=Verdict.INCORRECT if latency_ms is predicted_ms is None else Verdict.CORRECT,
                    stage="numerics",
                    code=source(latency_ms),
                    error=fault if latency_ms is None else None,
                    benchmark=None if latency_ms is None else benchmark(latency_ms),
                    target="trn2",
                    toolchain="sim-1",
                ),
                predicted_ms=None if latency_ms is None else predicted_ms,
            ),
        )

    def keep(self, candidate: str, latency_ms: float) -> None:
        one = entry(candidate, latency_ms).candidate
        self.say(KernelKept(candidate=one, role=BeamRole.ELITE, speedup=None))

    def close(
        self, number: int, kept: dict[str, float], *, gained: Sequence[str] = (), dropped: Sequence[str] = ()
    ) -> None:
        """End a round: the beam, in which those kept are new, and who of the attempts gained."""
        for candidate, latency_ms in kept.items():
            self.keep(candidate, latency_ms)
        for candidate in dropped:
            self.say(KernelDiscarded(candidate=candidate, reason="slower"))
        beam = {INITIAL_KEY.candidate_id: FIRST_MS, **kept}
        self.say(
            BeamSelected(round=number, beam=tuple(entry(*one) for one in beam.items())),
            MemoryCurated(round=number, memory=()),
            RoundCompleted(
                round=number,
                attempts=tuple(attempt(one, number, gained=one in gained) for one in (*kept, *dropped)),
            ),
        )


def outcome(came: str, at: dict[str, Any], prices: dict[str, float | None]) -> Event:
    cost = prices.get(at["model"], COST)
    answer = digest_of(b"answer")
    match came:
        case "ok":
            return CallCompleted(
                **at, cost_usd=cost, tokens=TOKENS, charged_tokens=TOKENS.total, answer=answer,
                answered_by="model", stop_reason="end", ms=2000.0,
            )  # fmt: skip
        case "lost":
            return CallLost(**at, cost_usd=RESERVED.usd, charged_tokens=RESERVED.tokens, reason="killed")
    return CallFailed(**at, cost_usd=0.0, kind=came, error=ErrorInfo(code=came, message=came), ms=500.0)


def planned(technique: str) -> Plan:
    return Plan(technique=technique, site="", title=technique, prediction=Prediction(speedup=1.1))


def source(latency_ms: float | None) -> str:
    return digest_of(f"{latency_ms}".encode())


def benchmark(latency_ms: float) -> Benchmark:
    return Benchmark(latency_ms=latency_ms, lo_ms=latency_ms, hi_ms=latency_ms, predicted=True, samples=1)


def entry(candidate: str, latency_ms: float) -> BeamEntry:
    one = Candidate(
        id=candidate, parent=None, lineage=candidate, round=int(candidate[1]), source=source(latency_ms),
        code=source(latency_ms), technique=None, title="", benchmark=benchmark(latency_ms), profile=None,
        bottleneck=None,
    )  # fmt: skip
    return BeamEntry(candidate=one, role=BeamRole.ELITE)


def attempt(candidate: str, number: int, *, gained: bool) -> Attempt:
    return Attempt(
        candidate=candidate, parent=INITIAL_KEY.candidate_id, technique="", site="", code=None, verdict=None,
        error=None, speedup=None, gained=gained, round=number,
    )  # fmt: skip


def one_round(log: EventLog, run: str = "first", name: str = "matmul") -> History:
    """A run after its first round.

    BIG's first plan hoists, and fails once before it comes; its kernel of 8 ms takes two answers, and is
    kept as a gain. Its second, by blocks, is wrong, and mended to one of 10 ms that is not kept. SMALL's
    first plan is none, twice over; its second hoists to nothing: a call is lost, and what follows is no
    kernel.
    """
    told = History(log, run).begin(name)
    told.round(1, BIG, SMALL)
    told.plan("r1.b0.p0.k0.f0", "hoist", calls=("server", "ok"))
    told.kernel("r1.b0.p0.k0.f0", 8.0, calls=("ok", "ok"))
    told.plan("r1.b0.p1.k0.f0", "blocks")
    told.kernel("r1.b0.p1.k0.f0", None)
    told.kernel("r1.b0.p1.k0.f1", 10.0)
    told.plan("r1.b1.p0.k0.f0", None, model=SMALL, calls=("ok", "ok"))
    told.plan("r1.b1.p1.k0.f0", "hoist", model=SMALL)
    told.kernel("r1.b1.p1.k0.f0", None, model=SMALL, calls=("lost", "ok"), made=False)
    told.close(1, {"r1.b0.p0.k0.f0": 8.0}, gained=["r1.b0.p0.k0.f0"], dropped=["r1.b0.p1.k0.f1"])
    return told
