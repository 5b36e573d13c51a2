"""Predicts a latency for each traced program without judging it, or says why there is none.

There are no numerics, no identity, and only the rules that a prediction depends on: a program that is
predicted fast may be wrong. Kernels that compete are judged. At dimensions that no size has, a kernel may
skip work that it does at a size, so there the rules that detect unwritten data are checked too.
"""

from __future__ import annotations

from nki_sim import protocol
from nki_sim.calibration import load_calibrated
from nki_sim.timing.forecast import forecast_program
from remote.judge.job import LintJob, PredictJob
from remote.judge.rejection import RejectedError
from state.model import CanonicalKernel, ErrorInfo, PredictedLatency
from targets.nki.judge import rules
from targets.nki.judge.normalise import code_digest
from targets.nki.judge.program import (
    read_program,
    require_hardware_rules,
    require_plausible_prediction,
    run_timing,
    timing_error,
)
from targets.nki.raising.raiser import make_canonical


def predict_programs(job: PredictJob, replies: bytes) -> tuple[PredictedLatency, ...]:
    """Return one answer for each kernel of a batch whose turn came, in order."""
    listed = protocol.split_replies(replies)[: job.count]
    found = tuple(_predict_program(job, reply) for reply in listed)
    if not job.sources:
        return found
    return tuple(
        one.model_copy(update={"canonical": _raise_reply(reply, source)})
        for one, reply, source in zip(found, listed, job.sources, strict=False)
    )


def lint_sources(job: LintJob) -> tuple[PredictedLatency, ...]:
    """Return for each text the static rules' refusal, or the digest by which the judge finds duplicates."""
    return tuple(_lint_source(source.encode()) for source in job.sources)


def _lint_source(source: bytes) -> PredictedLatency:
    error = rules.find_first_offence(source)
    return PredictedLatency(code=code_digest(source)) if error is None else PredictedLatency(error=error)


def _raise_reply(reply: bytes, source: str) -> CanonicalKernel | None:
    """Return the canonical form of a traced kernel; None if there is no program."""
    try:
        program = read_program(reply)
    except RejectedError:
        return None
    return make_canonical(program, source)


def _predict_program(job: PredictJob, reply: bytes) -> PredictedLatency:
    instructions = 0
    try:
        program = read_program(reply)
        instructions = len(program.lines)
        error = timing_error(program)
        if error is not None:
            return PredictedLatency(instructions=instructions, error=error)
        target = load_calibrated(job.target, job.constants)
        if job.size is None:
            require_hardware_rules(program, target)
        latency_ms = run_timing(lambda: forecast_program(program, target)).latency_ms
        if job.size is not None:
            require_plausible_prediction(latency_ms, job.spec, job.size, job.target)
        return PredictedLatency(latency_ms=latency_ms, instructions=instructions)
    except RejectedError as rejected:
        return PredictedLatency(instructions=instructions, error=rejected.error)
    except MemoryError:
        text = "forecasting the kernel needs more memory than allowed"
        return PredictedLatency(
            instructions=instructions, error=ErrorInfo(code="out_of_memory", message=text)
        )
