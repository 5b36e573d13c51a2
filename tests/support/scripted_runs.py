"""Scripted runs: whole, legal histories of any length, made of nothing but their parameters.

The log's benchmark appends them and its tests kill, edit and replay them. They have a real run's mix of
events and sizes: plans, kernels, evaluations with profiles, decisions and learning, round after round.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

from state.events import (
    BeamSelected,
    EvaluationCompleted,
    EvaluationStarted,
    Event,
    ExecutionFailed,
    ExecutionStarted,
    GuardCheckpointed,
    KernelDiscarded,
    KernelKept,
    KernelProposed,
    MemoryCurated,
    PlanProposed,
    PlanStarted,
    ProfileRecorded,
    RoundCompleted,
    RoundStarted,
    RunCompleted,
    RunCreated,
)
from state.log import EventLog
from state.model import (
    INITIAL_KEY,
    Attempt,
    BeamEntry,
    BeamRole,
    Benchmark,
    Candidate,
    Checkpoint,
    EffectKey,
    ErrorInfo,
    Evaluation,
    Experience,
    ExperienceKind,
    LatencyBounds,
    Plan,
    Prediction,
    ProblemRef,
    Role,
    RunConfig,
    SlotAssignment,
    StopReason,
    Usage,
    Verdict,
    digest_of,
)
from state.records import NewEvent, RecordedEvent

TECHNIQUES = ("hoist_loads", "block_sizes", "loop_interchange", "wider_dma", "fuse_activation")
COUNTERS = ("tensor_engine_active_percent", "dma_active_percent", "hbm_read_bytes", "sbuf_spill_bytes", "mfu")
LINES = "".join(f"    tile_{n} = nl.load(lhs[i * 128 : i * 128 + 128, {n} * 512])\n" for n in range(40))


class Step(NamedTuple):
    """One append of a history: an event and the blobs it names."""

    event: Event
    blobs: tuple[bytes, ...] = ()


class ScriptedRun:
    """Makes one run's history; equal parameters make equal histories."""

    def __init__(self, *, seed: int = 0, rounds: int = 2, slots: int = 2, plans: int = 3) -> None:
        self.rounds = rounds
        self.slots = slots
        self.plans = plans
        self._random = random.Random(seed)
        self._beam: tuple[Candidate, ...] = ()

    def steps(self) -> Iterator[Step]:
        """Yield the whole run, from RunCreated to RunCompleted."""
        yield from self.beginning()
        for round_ in range(1, self.rounds + 1):
            yield from self.round_steps(round_)
        yield Step(RunCompleted(reason=StopReason.ROUNDS))

    def beginning(self) -> Iterator[Step]:
        """Yield what comes before the first round."""
        source = _source("initial")
        files = {"spec.toml": b'name = "matmul"\n', "reference.py": b"def reference(a, b): return a @ b\n"}
        problem = ProblemRef(
            name="matmul", digest=digest_of(b"problem"), files={k: digest_of(v) for k, v in files.items()}
        )
        yield Step(
            RunCreated(
                config=RunConfig(problem="matmul"),
                problem=problem,
                kernel=digest_of(source),
                bounds=LatencyBounds(plain_ms=1.5, tight_ms=2.0),
                toolchain="sim-1",
                code_version="0.1.0",
            ),
            (source, *files.values()),
        )
        yield from self._evaluation(INITIAL_KEY, source, 12.0, correct=True)
        first = self._candidate(INITIAL_KEY, source, 12.0)
        yield Step(KernelKept(candidate=first, role=BeamRole.ELITE, speedup=None))
        self._beam = (first,)
        yield Step(BeamSelected(round=0, beam=self._entries()))

    def round_steps(self, round_: int) -> Iterator[Step]:
        """Yield one round: its effects in slot order, its decisions, its barrier."""
        yield self.start_round(round_)
        for slot in range(self.slots):
            yield from self.slot_steps(round_, slot)
        yield from self.closing(round_)

    def start_round(self, round_: int) -> Step:
        """Return the step that starts a round; its lanes may then run side by side."""
        self._parents = [self._beam[slot % len(self._beam)] for slot in range(self.slots)]
        self._found: list[Candidate] = []
        self._attempts: list[Attempt] = []
        slots = (
            SlotAssignment(slot=n, parent=c.id, planner="builtin", plans=self.plans, implementations=1)
            for n, c in enumerate(self._parents)
        )
        return Step(RoundStarted(round=round_, slots=tuple(slots)))

    def slot_steps(self, round_: int, slot: int) -> Iterator[Step]:
        """Yield one slot's effects, each after the one it follows from."""
        for plan in range(self.plans):
            yield from self._attempt(EffectKey(round_, slot, plan, 0, 0, Role.PLANNER), self._parents[slot])

    def _attempt(self, at: EffectKey, parent: Candidate) -> Iterator[Step]:
        technique = self._random.choice(TECHNIQUES)
        latency_ms = parent.latency_ms * self._random.uniform(0.85, 1.2)
        fate = self._random.random()
        verdict = Verdict.CORRECT if fate > 0.3 else Verdict.INCORRECT if fate > 0.1 else None
        yield from self._plan(at, technique)
        executor = at.for_role(Role.EXECUTOR)
        source = _source(f"{at.candidate_id} {self._random.random()}")
        request = _request("execute", at)
        yield Step(ExecutionStarted(key=str(executor), request=digest_of(request)), (request,))
        error = None
        if verdict is None:
            error = ErrorInfo(code="not_applicable", message="no load to hoist", hint="choose another site")
            yield Step(ExecutionFailed(key=str(executor), error=error))
        else:
            event = KernelProposed(key=str(executor), source=digest_of(source), note=technique)
            yield Step(event, (source,))
            yield from self._evaluation(at.for_role(Role.EVALUATOR), source, latency_ms, correct=fate > 0.3)
        if verdict is Verdict.CORRECT:
            self._found.append(self._candidate(at, source, latency_ms, parent))
        self._attempts.append(
            Attempt(
                candidate=at.candidate_id,
                parent=parent.id,
                technique=technique,
                site="loop 1",
                code=None if verdict is None else digest_of(source + b"code"),
                verdict=verdict,
                error=error,
                speedup=parent.latency_ms / latency_ms if verdict is Verdict.CORRECT else None,
                round=at.round,
            )
        )

    def _plan(self, at: EffectKey, technique: str) -> Iterator[Step]:
        request = _request("plan", at)
        yield Step(PlanStarted(key=str(at), request=digest_of(request), reserved_usd=0.02), (request,))
        prediction = Prediction(speedup=1.1, counter=COUNTERS[0], direction=1, reason="the loads repeat")
        plan = Plan(technique=technique, site="loop 1", title=f"{technique} in loop 1", prediction=prediction)
        usage = Usage(cost_usd=0.0125, input_tokens=4200, output_tokens=310)
        yield Step(PlanProposed(key=str(at), plan=plan, usage=usage))

    def _evaluation(
        self, at: EffectKey, source: bytes, latency_ms: float, *, correct: bool
    ) -> Iterator[Step]:
        request = _request("evaluate", at)
        profile = json.dumps({name: self._random.random() for name in COUNTERS}).encode()
        yield Step(EvaluationStarted(key=str(at), request=digest_of(request)), (request,))
        evaluation = Evaluation(
            verdict=Verdict.CORRECT if correct else Verdict.INCORRECT,
            stage="benchmark" if correct else "correctness",
            code=digest_of(source + b"code"),
            error=None if correct else ErrorInfo(code="mismatch", message="relative L2 0.1 above 2e-5"),
            rel_l2=dict.fromkeys((0, 21, 42, 63, 84), 3.1e-07 if correct else 0.1),
            benchmark=_benchmark(latency_ms) if correct else None,
            profile=digest_of(profile) if correct else None,
            bottleneck="memory" if correct else None,
            target="trn2",
            toolchain="sim-1",
        )
        stages = {"parse": 0.4, "trace": 31.2, "correctness": 540.0, "benchmark": 22.5}
        key = digest_of(source + b"cache")
        event = EvaluationCompleted(key=str(at), evaluation=evaluation, cache_key=key, stage_ms=stages)
        yield Step(event, (profile,) if correct else ())
        if correct:
            counters = {name: self._random.random() for name in COUNTERS}
            yield Step(ProfileRecorded(key=str(at), profile=digest_of(profile), counters=counters))

    def closing(self, round_: int) -> Iterator[Step]:
        """Yield what ends a round: its decisions and its barrier."""
        found = sorted(self._found, key=lambda candidate: EffectKey.parse(f"{candidate.id}.planner"))
        known = {candidate.id: candidate for candidate in (*self._beam, *found)}
        ranked = sorted(known.values(), key=lambda candidate: (candidate.latency_ms, candidate.id))
        before = {candidate.id for candidate in self._beam}
        self._beam = tuple(ranked[: self.slots])
        for candidate in found:
            if candidate in self._beam:
                yield Step(KernelKept(candidate=candidate, role=BeamRole.ELITE, speedup=1.05))
            else:
                yield Step(KernelDiscarded(candidate=candidate.id, reason="not_selected"))
        for candidate in self._beam:
            if candidate.id not in before:
                mark = Checkpoint(lineage=candidate.lineage, candidate=candidate)
                yield Step(GuardCheckpointed(checkpoint=mark))
        yield Step(BeamSelected(round=round_, beam=self._entries()))
        yield Step(MemoryCurated(round=round_, memory=self._memory()))
        yield Step(
            RoundCompleted(
                round=round_, attempts=tuple(sorted(self._attempts, key=lambda attempt: attempt.candidate))
            )
        )

    def _entries(self) -> tuple[BeamEntry, ...]:
        return tuple(BeamEntry(candidate=candidate, role=BeamRole.ELITE) for candidate in self._beam)

    def _memory(self) -> tuple[Experience, ...]:
        best = self._beam[0]
        return (
            Experience(
                kind=ExperienceKind.POSITIVE,
                technique=TECHNIQUES[0],
                slow=best.source,
                fast=best.source,
                speedup=1.1,
                summary="loads that do not use the loop's index belong outside it",
                cites=(best.id,),
            ),
        )

    def _candidate(
        self, at: EffectKey, source: bytes, latency_ms: float, parent: Candidate | None = None
    ) -> Candidate:
        return Candidate(
            id=at.candidate_id,
            parent=None if parent is None else parent.id,
            lineage="r0.b0.p0.k0.f0" if parent is None else parent.lineage,
            round=at.round,
            source=digest_of(source),
            code=digest_of(source + b"code"),
            technique=None if parent is None else TECHNIQUES[0],
            title="" if parent is None else "hoist the loads of lhs",
            benchmark=_benchmark(latency_ms),
            profile=None,
            bottleneck="memory",
        )


def append_run(log: EventLog, run: str, **parameters: int) -> list[RecordedEvent]:
    """Append a whole scripted run, a few events at a time; `parameters` are those of `ScriptedRun`."""
    steps = ScriptedRun(**parameters).steps()
    stored: list[RecordedEvent] = []
    while batch := list(islice(steps, 16)):
        blobs = [blob for step in batch for blob in step.blobs]
        stored += log.append_now([NewEvent(run, step.event) for step in batch], blobs=blobs)
    return stored


def _benchmark(latency_ms: float) -> Benchmark:
    return Benchmark(
        latency_ms=latency_ms, lo_ms=latency_ms * 0.9, hi_ms=latency_ms * 1.1, predicted=True, samples=1
    )


def _source(mark: str) -> bytes:
    return f"@nki.jit\ndef kernel(lhs, rhs):  # {mark}\n{LINES}    return out\n".encode()


def _request(kind: str, at: EffectKey) -> bytes:
    return json.dumps({"kind": kind, "candidate": at.candidate_id, "target": "trn2", "size": "full"}).encode()
