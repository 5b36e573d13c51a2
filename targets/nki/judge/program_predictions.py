"""What the model says of traced programs without judging them: a latency each, or why there is none.

No numerics, no identity, and of the rules only what a forecast cannot do without: a program that is predicted
fast may be wrong. What is to compete is judged. At other dimensions than those of a size a kernel may leave
things out that it does at that size, so the rules are held there that see what is not written.
"""

from __future__ import annotations

from nki_sim import protocol, targets
from nki_sim.timing.forecast import forecast_program
from remote.judge.job import LintJob, PredictJob
from remote.judge.rejection import RejectedError
from state.model import ErrorInfo, PredictedLatency
from targets.nki.judge import rules
from targets.nki.judge.normalise import code_digest
from targets.nki.judge.program import (
    read_program,
    require_hardware_rules,
    require_plausible_latency,
    run_timing,
    timing_error,
)


def predict_programs(job: PredictJob, replies: bytes) -> tuple[PredictedLatency, ...]:
    """One answer for each kernel of a batch whose turn came, in order."""
    return tuple(_predict_program(job, reply) for reply in protocol.split_replies(replies)[: job.count])


def lint_sources(job: LintJob) -> tuple[PredictedLatency, ...]:
    """Of each text why the static rules refuse it, or the digest by which the judge knows duplicates."""
    return tuple(_lint_source(source.encode()) for source in job.sources)


def _lint_source(source: bytes) -> PredictedLatency:
    error = rules.find_first_offence(source)
    return PredictedLatency(code=code_digest(source)) if error is None else PredictedLatency(error=error)


def _predict_program(job: PredictJob, reply: bytes) -> PredictedLatency:
    instructions = 0
    try:
        program = read_program(reply)
        instructions = len(program.lines)
        error = timing_error(program)
        if error is not None:
            return PredictedLatency(instructions=instructions, error=error)
        target = targets.load(job.target)
        if job.size is None:
            require_hardware_rules(program, target)
        latency_ms = run_timing(lambda: forecast_program(program, target)).latency_ms
        if job.size is not None:
            require_plausible_latency(latency_ms, job.spec, job.size, job.target)
        return PredictedLatency(latency_ms=latency_ms, instructions=instructions)
    except RejectedError as rejected:
        return PredictedLatency(instructions=instructions, error=rejected.error)
    except MemoryError:
        text = "forecasting the kernel needs more memory than allowed"
        return PredictedLatency(
            instructions=instructions, error=ErrorInfo(code="out_of_memory", message=text)
        )
