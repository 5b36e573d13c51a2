"""What all evaluators share: read a request, refuse one that cannot be judged, and describe the result.

Nothing here runs anything. `EvaluationContext` is one evaluation in progress, wherever its kernel runs.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import lru_cache

from remote.cache import code_digest
from remote.errors import InfrastructureError
from remote.evaluator import BlobReader, EvaluationAnswer
from remote.judge import suite
from remote.judge.job import HostOutputs, JudgeJob, JudgeOutcome
from remote.references import ReferenceFiles
from remote.sandbox import JailResult
from seeds import Problem, SeedsError, build_problem
from state.errors import BlobMissing
from state.model import (
    Digest,
    ErrorInfo,
    Evaluation,
    EvaluationRequest,
    Level,
    ProblemRef,
    Verdict,
    digest_of,
)
from targets.base import UnknownTargetError
from targets.registry import load_target

FULL = "full"
LEVELS: Mapping[Level, int | None] = {Level.SLICES: 0, Level.ONE_SEED: 1, Level.WHOLE: None}
"""Number of seeds judged on whole outputs, by level (None: all, and `suite.WHOLE_SETS`).

Tiles of all sets are judged at every level.
"""
_NARROW_FLOATS = frozenset({"bfloat16", "float16", "float8"})


@dataclass
class EvaluationContext:
    """One evaluation in progress; its `level` rises when the kernel is suspiciously fast.

    `device_s` is the device time used, in seconds, as far as the evaluator knows it. `base` is the source of
    the kernel that this one was made from.
    """

    request: EvaluationRequest
    problem: Problem
    source: bytes
    level: Level
    stage_ms: dict[str, float] = field(default_factory=dict)
    device_s: float | None = None
    base: bytes | None = None

    @asynccontextmanager
    async def time_stage(self, stage: str) -> AsyncIterator[None]:
        started = time.perf_counter()
        try:
            yield
        finally:
            self.stage_ms[stage] = (time.perf_counter() - started) * 1e3


def select_input_sets(run: EvaluationContext, secret: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the input sets whose outputs a level compares: on whole outputs, and on tiles.

    The home's `secret` decides about one of them.
    """
    spec = run.problem.spec
    seeds = spec.seeds[: LEVELS[run.level]]
    # The first seed is also judged in tiles: most wrong kernels fail there already.
    rest = [str(seed) for seed in spec.seeds if seed not in seeds[1:]]
    audited = suite.WHOLE_SETS if run.level is Level.WHOLE else ()
    hidden = suite.secret_set(secret)
    return (*map(str, seeds), *audited), (*rest, hidden, *suite.adversarial_sets(spec))


def may_round(run: EvaluationContext) -> bool:
    """Whether a kernel's text names a narrower type than the problem has."""
    spec = run.problem.spec
    known = {item.dtype for item in (*spec.inputs, *spec.outputs)}
    return any(
        name.encode() in run.source for name in _NARROW_FLOATS if not any(name in one for one in known)
    )


def read_blob(blobs: BlobReader, digest: Digest) -> bytes:
    try:
        data = blobs.get_blob(digest)
    except BlobMissing as error:
        raise InfrastructureError("bad_blob", f"blob {digest} is missing", retryable=False) from error
    if digest_of(data) != digest:
        raise InfrastructureError("bad_blob", f"blob {digest} does not have this digest", retryable=False)
    return data


def read_problem(blobs: BlobReader, ref: ProblemRef) -> Problem:
    files = tuple((path, read_blob(blobs, digest)) for path, digest in sorted(ref.files.items()))
    problem = _parse_problem(files)
    if problem.digest != ref.digest:
        text = f"the files of problem {ref.name} do not have its digest"
        raise InfrastructureError("bad_problem", text, retryable=False)
    return problem


@lru_cache(maxsize=16)
def _parse_problem(files: tuple[tuple[str, bytes], ...]) -> Problem:
    try:
        return build_problem(dict(files))
    except SeedsError as error:
        raise InfrastructureError("bad_problem", str(error), retryable=False) from error


def lint_kernel(source: bytes, target: str) -> JudgeOutcome | None:
    error = load_target(target).language.lint(source)
    return None if error is None else JudgeOutcome(verdict=Verdict.LINT_ERROR, stage="lint", error=error)


def rejected_outcome(
    verdict: Verdict, stage: str, code: str, message: str, *, line: int | None = None, hint: str | None = None
) -> JudgeOutcome:
    return JudgeOutcome(
        verdict=verdict, stage=stage, error=ErrorInfo(code=code, message=message, line=line, hint=hint)
    )


def begin_evaluation(request: EvaluationRequest, blobs: BlobReader) -> EvaluationContext:
    """Read what a request names, and refuse one that cannot be judged.

    Raises:
        InfrastructureError: bad_blob, bad_problem, not_shape_generic, or an unknown size or target.
    """
    source, problem = read_blob(blobs, request.source), read_problem(blobs, request.problem)
    check_sizes(problem, request.size, request.target)
    return EvaluationContext(request, problem, source, request.level, base=_read_base(request, blobs))


def _read_base(request: EvaluationRequest, blobs: BlobReader) -> bytes | None:
    """The source of the kernel that this one was made from; a log may no longer have it."""
    if request.base is None:
        return None
    try:
        return read_blob(blobs, request.base)
    except InfrastructureError:
        return None


def check_sizes(problem: Problem, size: str, target: str) -> None:
    """Refuse a size or a target at which a problem cannot be judged.

    Raises:
        InfrastructureError: not_shape_generic, or the code for an unknown size or target.
    """
    spec = problem.spec
    if size != FULL and FULL in spec.sizes and not spec.shape_generic:
        text = f"{spec.name} is not shape-generic: a verdict at size {size} says nothing about {FULL}"
        raise InfrastructureError("not_shape_generic", text, retryable=False)
    try:
        spec.dims(size)
        load_target(target)
    except (SeedsError, UnknownTargetError) as error:
        raise InfrastructureError(error.code, str(error), retryable=False) from error


def tracer_failure(result: JailResult) -> JudgeOutcome | None:
    """The verdict on a kernel that made its tracer fail; None when there is a reply to read."""
    if result.cpu_exhausted:
        # CPU time, not the clock: a kernel in an endless loop uses it up however busy the machine is.
        return rejected_outcome(
            Verdict.TIMEOUT, "trace", "cpu_limit", "tracing the kernel used up its CPU time"
        )
    if result.asleep:
        text = "the kernel waits for something that never comes, twice"
        return rejected_outcome(Verdict.TIMEOUT, "trace", "asleep", text, hint="compute, and nothing else")
    if result.was_killed:
        raise InfrastructureError("jail_killed", "the jail was killed from outside (out of memory?)")
    if result.was_starved:
        text = f"the tracer was cut off: {result.describe_end()}"
        raise InfrastructureError("jail_starved", text)
    if result.truncated:
        text = "the traced program is larger than allowed"
        return rejected_outcome(Verdict.COMPILE_ERROR, "trace", "program_too_large", text)
    if not result.answer:
        text = f"the kernel ended the tracer (status {result.exit_status}) and left no program"
        return rejected_outcome(Verdict.COMPILE_ERROR, "trace", "no_program", text)
    return None


def make_judge_job(
    run: EvaluationContext,
    found: ReferenceFiles,
    secret: str,
    *,
    shown: HostOutputs | None = None,
    device: bool = False,
) -> JudgeJob:
    wholes = {name: tuple(map(str, paths)) for name, paths in found.wholes.items()}
    return JudgeJob(
        spec=run.problem.spec,
        problem=run.problem.digest,
        size=run.request.size,
        target=run.request.target,
        references={int(name): paths for name, paths in wholes.items() if name.isdecimal()},
        whole_sets={name: paths for name, paths in wholes.items() if not name.isdecimal()},
        instead_of_seeds=suite.ROUNDING_SET
        if run.level is Level.ONE_SEED and suite.ROUNDING_SET in wholes
        else "",
        excerpts={name: str(path) for name, path in found.tiles.items()},
        expression=str(found.expression),
        secret=secret,
        shown=shown,
        device=device,
    )


def make_answer(run: EvaluationContext, outcome: JudgeOutcome, toolchain: str) -> EvaluationAnswer:
    profile = None if outcome.profile is None else outcome.profile.encode()
    evaluation = Evaluation(
        verdict=outcome.verdict,
        stage=outcome.stage,
        code=code_digest(run.source, run.request.target),
        error=outcome.error,
        rel_l2=outcome.rel_l2,
        identity=outcome.identity,
        benchmark=outcome.benchmark,
        profile=None if profile is None else digest_of(profile),
        bottleneck=outcome.bottleneck,
        target=run.request.target,
        toolchain=toolchain,
        level=run.level,
        stability=outcome.stability,
        warnings=outcome.warnings,
    )
    artefacts = {} if profile is None else {digest_of(profile): profile}
    return EvaluationAnswer(
        evaluation=evaluation, artefacts=artefacts, stage_ms=run.stage_ms, device_seconds=run.device_s
    )
