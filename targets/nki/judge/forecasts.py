"""What the model says of traced programs without judging them: a latency each, or why there is none.

No numerics, no identity, and of the rules only what a forecast cannot do without: a program that is predicted
fast may be wrong. What is to compete is judged. At other dimensions than those of a size a kernel may leave
things out that it does at that size, so the rules are held there that see what is not written.
"""

from __future__ import annotations

from nki_sim import protocol, targets
from nki_sim.timing.forecast import forecast
from remote.judge.job import Forecasts, Texts
from remote.judge.rejection import RejectedError
from state.model import ErrorInfo, Predicted
from targets.nki.judge import rules
from targets.nki.judge.normalise import code_digest
from targets.nki.judge.program import obey_hardware, plausible, read_program, timed, untimed_error


def forecasts(job: Forecasts, replies: bytes) -> tuple[Predicted, ...]:
    """One answer for each kernel of a batch whose turn came, in order."""
    return tuple(_forecast(job, reply) for reply in protocol.split_replies(replies)[: job.count])


def readings(job: Texts) -> tuple[Predicted, ...]:
    """Of each text why the static rules refuse it, or the digest by which the judge knows duplicates."""
    return tuple(_reading(source.encode()) for source in job.sources)


def _reading(source: bytes) -> Predicted:
    error = rules.offence(source)
    return Predicted(code=code_digest(source)) if error is None else Predicted(error=error)


def _forecast(job: Forecasts, reply: bytes) -> Predicted:
    instructions = 0
    try:
        program = read_program(reply)
        instructions = len(program.lines)
        error = untimed_error(program)
        if error is not None:
            return Predicted(instructions=instructions, error=error)
        target = targets.load(job.target)
        if job.size is None:
            obey_hardware(program, target)
        latency_ms = timed(lambda: forecast(program, target)).latency_ms
        if job.size is not None:
            plausible(latency_ms, job.spec, job.size, job.target)
        return Predicted(latency_ms=latency_ms, instructions=instructions)
    except RejectedError as rejected:
        return Predicted(instructions=instructions, error=rejected.error)
    except MemoryError:
        text = "forecasting the kernel needs more memory than allowed"
        return Predicted(instructions=instructions, error=ErrorInfo(code="out_of_memory", message=text))
