"""The embedded evaluator: kernels traced in a jail on this machine, judged and timed by the simulator.

One evaluation: static rules in this process; the kernel's Python in the jail, once; everything else in a
worker that sees only the program. The reference's outputs come from a jail of their own, once per problem.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import nki_sim
from nki_sim import targets
from nki_sim.errors import TargetError
from remote.cache import needed
from remote.errors import InfrastructureError, NoTimelineError
from remote.evaluator import Blobs, EvaluationAnswer, PredictionRequest
from remote.judge import rules, suite
from remote.judge.job import Job, Outcome, Timed
from remote.judge.normalise import code_digest
from remote.pool import WorkerLimits, WorkerPool
from remote.predictions import Predictor
from remote.references import References, ReferenceStore
from remote.sandbox import JailResult, run_jailed
from remote.tracing import trace_request
from remote.walls import JailedProgram, JailStrength, Limits, jail_strength
from seeds import Problem, SeedsError, from_files
from state.errors import BlobMissing
from state.model import (
    TRUSTED_AUTHORS,
    Digest,
    ErrorInfo,
    Evaluation,
    EvaluationRequest,
    Level,
    Predicted,
    ProblemRef,
    Verdict,
    digest_of,
)

FULL = "full"
LEVELS: Mapping[Level, int | None] = {Level.SLICES: 0, Level.ONE_SEED: 1, Level.WHOLE: None}
"""How many seeds are judged on whole outputs (None: all, and `suite.WHOLE`); tiles of all sets are."""


@dataclass
class _Run:
    """One evaluation under way; its `level` rises when the kernel is too good."""

    request: EvaluationRequest
    problem: Problem
    source: bytes
    level: Level
    stage_ms: dict[str, float] = field(default_factory=dict)

    @asynccontextmanager
    async def at(self, stage: str) -> AsyncIterator[None]:
        started = time.perf_counter()
        try:
            yield
        finally:
            self.stage_ms[stage] = (time.perf_counter() - started) * 1e3


class LocalEvaluator:
    """Judges kernels on this machine; every latency is predicted.

    `slots` evaluations run at a time, the others wait. Where only a weak jail is available, kernels
    that a model wrote are refused unless `allow_weak_jail`. `home` holds the cache of
    reference outputs, and the secret that decides where outputs are looked at, unless `secret` is given.
    """

    name = "sim"

    def __init__(
        self,
        *,
        home: Path,
        slots: int | None = None,
        allow_weak_jail: bool = False,
        jail_limits: Limits | None = None,
        worker_limits: WorkerLimits | None = None,
        strength: JailStrength | None = None,
        secret: str | None = None,
    ) -> None:
        count = slots or os.cpu_count() or 1
        self._strength = strength or jail_strength()
        self._allow_weak_jail = allow_weak_jail
        self._jail_limits = jail_limits or Limits()
        self._slots = asyncio.Semaphore(count)
        self._workers = WorkerPool(worker_limits or WorkerLimits.for_slots(count))
        self._predictor = Predictor(self._workers, self._slots)
        self._references = ReferenceStore(home, strength=self._strength, secret=secret, jails=count)

    @property
    def worker_pids(self) -> tuple[int, ...]:
        """Process ids of the workers alive."""
        return self._workers.pids

    def toolchain(self) -> str:
        """Return the simulator's name, version and model version."""
        return nki_sim.toolchain()

    async def evaluate(self, request: EvaluationRequest, blobs: Blobs, /) -> EvaluationAnswer:
        """Judge one candidate; cancelling it kills its jail and its worker.

        Raises:
            InfrastructureError: no verdict could be reached, through no fault of the kernel.
        """
        source = _blob(blobs, request.source)
        run = _Run(request, _problem(blobs, request.problem), source, request.level)
        _check_request(run)
        async with self._slots:
            outcome = await self._judge(run)
        return _answer(run, outcome, self.toolchain())

    async def predict(self, request: PredictionRequest, blobs: Blobs, /) -> list[Predicted]:
        """Predict kernels without judging them; cancelling it kills their jail and its worker.

        Raises:
            InfrastructureError: they could not be looked at.
        """
        problem = _problem(blobs, request.problem)
        check_sizes(problem, request.size, request.target)
        self._admit(request.author)
        return await self._predictor.predict(request, problem, self._jailed)

    async def timeline(self, request: EvaluationRequest, blobs: Blobs, /) -> bytes:
        """Return the predicted run of one kernel as Chrome trace events; nothing is judged.

        The names in it are the kernel's. Cancelling it kills its jail and its worker.

        Raises:
            NoTimelineError: the kernel breaks a rule, or the model cannot time it.
            InfrastructureError: it could not be looked at.
        """
        run = _Run(request, _problem(blobs, request.problem), _blob(blobs, request.source), request.level)
        _check_request(run)
        refused = _lint(run.source)
        async with self._slots:
            if refused is None:
                self._admit(request.author)
                result = await self._trace(run)
                refused = _ended_badly(result)
            if refused is not None:
                raise NoTimelineError(refused.error.message if refused.error else refused.verdict.value)
            return await self._workers.time(Timed(target=request.target), result.answer)

    async def aclose(self) -> None:
        """Kill every worker."""
        await self._workers.aclose()

    async def _judge(self, run: _Run) -> Outcome:
        async with run.at("lint"):
            refused = _lint(run.source)
        if refused is not None:
            return refused
        self._admit(run.request.author)
        async with run.at("jail"):
            result = await self._trace(run)
            if result.asleep:
                result = await self._trace(run)  # as it cannot be put down to the machine twice
        ended = _ended_badly(result)
        if ended is not None:
            return ended
        outcome = await self._compare(run, result.answer)
        wanted = needed(run.request, outcome.benchmark)
        if wanted is not run.level:
            run.level = wanted
            outcome = await self._compare(run, result.answer)
        return outcome

    async def _trace(self, run: _Run) -> JailResult:
        dims = run.problem.spec.dims(run.request.size)
        asked = trace_request(run.source.decode(), run.problem, dims, run.request.target)
        return await self._jailed(asked)

    async def _jailed(self, request: bytes, *flags: str) -> JailResult:
        return await run_jailed(self._tracer(*flags), request, strength=self._strength)

    async def _compare(self, run: _Run, reply: bytes) -> Outcome:
        """Judge a traced program on what the level asks for."""
        spec, size = run.problem.spec, run.request.size
        seeds = spec.seeds[: LEVELS[run.level]]
        async with run.at("references"):
            # The first seed also in tiles: most wrong kernels need no more than that.
            rest = [str(seed) for seed in spec.seeds if seed not in seeds[1:]]
            sets = (*rest, *suite.adversarial(spec))
            audited = suite.WHOLE if run.level is Level.WHOLE else ()
            wholes = (*map(str, seeds), *audited)
            found = await self._references.get(run.problem, size, wholes=wholes, tiles=sets, expression=True)
        job = _job(run, found, self._references.secret)
        try:
            outcome = await self._workers.judge(job, reply)
        except InfrastructureError as error:
            if error.code == "bad_reference":
                # A file of the cache may be damaged; the next attempt starts from the reference itself.
                self._references.forget(run.problem, run.request.size)
            raise
        run.stage_ms.update(outcome.stage_ms)
        return outcome

    def _admit(self, author: str) -> None:
        trusted = author in TRUSTED_AUTHORS
        if self._strength is JailStrength.WEAK and not trusted and not self._allow_weak_jail:
            text = (
                f"only a weak jail works here, so kernels written by {author} are not run; "
                "install bubblewrap or set daemon.allow_weak_jail"
            )
            raise InfrastructureError("weak_jail", text, retryable=False)

    def _tracer(self, *flags: str) -> JailedProgram:
        package = Path(nki_sim.__file__).parent
        return JailedProgram(
            "nki_sim.tracer",
            (*flags, "--out-fd"),
            packages=(package,),
            site_packages=True,  # NumPy, which is loaded for kernels that import it
            fills_memory=True,
            limits=self._jail_limits,
        )


def _blob(blobs: Blobs, digest: Digest) -> bytes:
    try:
        data = blobs.get_blob(digest)
    except BlobMissing as error:
        raise InfrastructureError("bad_blob", f"blob {digest} is missing", retryable=False) from error
    if digest_of(data) != digest:
        raise InfrastructureError("bad_blob", f"blob {digest} does not have this digest", retryable=False)
    return data


def _problem(blobs: Blobs, ref: ProblemRef) -> Problem:
    files = tuple((path, _blob(blobs, digest)) for path, digest in sorted(ref.files.items()))
    problem = _parsed(files)
    if problem.digest != ref.digest:
        text = f"the files of problem {ref.name} do not have its digest"
        raise InfrastructureError("bad_problem", text, retryable=False)
    return problem


@lru_cache(maxsize=16)
def _parsed(files: tuple[tuple[str, bytes], ...]) -> Problem:
    try:
        return from_files(dict(files))
    except SeedsError as error:
        raise InfrastructureError("bad_problem", str(error), retryable=False) from error


def _lint(source: bytes) -> Outcome | None:
    error = rules.offence(source)
    return None if error is None else Outcome(verdict=Verdict.LINT_ERROR, stage="lint", error=error)


def _failed(
    verdict: Verdict, stage: str, code: str, message: str, *, line: int | None = None, hint: str | None = None
) -> Outcome:
    return Outcome(
        verdict=verdict, stage=stage, error=ErrorInfo(code=code, message=message, line=line, hint=hint)
    )


def _check_request(run: _Run) -> None:
    check_sizes(run.problem, run.request.size, run.request.target)


def check_sizes(problem: Problem, size: str, target: str) -> None:
    """Refuse a size or a target that a problem cannot be judged at.

    Raises:
        InfrastructureError: not_shape_generic, or the code of what is unknown.
    """
    spec = problem.spec
    if size != FULL and not spec.shape_generic:
        text = f"{spec.name} is not shape-generic: a verdict at size {size} says nothing about {FULL}"
        raise InfrastructureError("not_shape_generic", text, retryable=False)
    try:
        spec.dims(size)
        targets.load(target)
    except (SeedsError, TargetError) as error:
        raise InfrastructureError(error.code, str(error), retryable=False) from error


def _ended_badly(result: JailResult) -> Outcome | None:
    """The verdict on a kernel that ended its tracer; None when there is a reply to be read."""
    if result.cpu_exhausted:
        # CPU time, not the clock: a kernel that loops for ever uses it up however busy the machine is.
        return _failed(Verdict.TIMEOUT, "trace", "cpu_limit", "tracing the kernel used up its CPU time")
    if result.asleep:
        text = "the kernel waits for something that never comes, twice"
        return _failed(Verdict.TIMEOUT, "trace", "asleep", text, hint="compute, and nothing else")
    if result.killed:
        raise InfrastructureError("jail_killed", "the jail was killed from outside (out of memory?)")
    if result.truncated:
        text = "the traced program is larger than allowed"
        return _failed(Verdict.COMPILE_ERROR, "trace", "program_too_large", text)
    if not result.answer:
        text = f"the kernel ended the tracer (status {result.exit_status}) and left no program"
        return _failed(Verdict.COMPILE_ERROR, "trace", "no_program", text)
    return None


def _job(run: _Run, found: References, secret: str) -> Job:
    wholes = {name: tuple(map(str, paths)) for name, paths in found.wholes.items()}
    return Job(
        spec=run.problem.spec,
        problem=run.problem.digest,
        size=run.request.size,
        target=run.request.target,
        references={int(name): paths for name, paths in wholes.items() if name.isdecimal()},
        whole_sets={name: paths for name, paths in wholes.items() if not name.isdecimal()},
        excerpts={name: str(path) for name, path in found.tiles.items()},
        expression=str(found.expression),
        secret=secret,
    )


def _answer(run: _Run, outcome: Outcome, toolchain: str) -> EvaluationAnswer:
    profile = None if outcome.profile is None else outcome.profile.encode()
    evaluation = Evaluation(
        verdict=outcome.verdict,
        stage=outcome.stage,
        code=code_digest(run.source),
        error=outcome.error,
        rel_l2=outcome.rel_l2,
        identity=outcome.identity,
        benchmark=outcome.benchmark,
        profile=None if profile is None else digest_of(profile),
        bottleneck=outcome.bottleneck,
        target=run.request.target,
        toolchain=toolchain,
        level=run.level,
    )
    artefacts = {} if profile is None else {digest_of(profile): profile}
    return EvaluationAnswer(evaluation=evaluation, artefacts=artefacts, stage_ms=run.stage_ms)
