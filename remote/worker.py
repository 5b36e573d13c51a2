"""The trusted worker: `python -m remote.worker MEMORY_BYTES INPUT_BYTES [TARGET]` judges till its stdin ends.

There is one per slot, kept between evaluations so that NumPy is loaded and inputs are drawn once. It reads
traced programs, never a kernel's Python. With a TARGET, it loads that one's judge before there is a job. It
dies with the process that started it.
"""

from __future__ import annotations

import ctypes
import resource
import signal
import sys
from collections.abc import Callable, Mapping
from typing import Any, assert_never

from pydantic import TypeAdapter

from remote import framing
from remote.judge.host_trials import BadPiecesError, UnsureError
from remote.judge.input_cache import InputCache, digest_input_sets
from remote.judge.job import (
    CheckJob,
    CheckReply,
    DigestJob,
    DigestReply,
    ExplainJob,
    FailureReply,
    GrepJob,
    GrepReply,
    Job,
    JudgeJob,
    JudgeOutcome,
    JudgeReply,
    LintJob,
    LintReply,
    PartsReply,
    PiecesNeeded,
    PredictJob,
    PredictReply,
    Reply,
    TimelineJob,
)
from remote.judge.judged_parts import JudgedParts
from remote.judge.numerics import BadReferenceError
from remote.judge.pattern_search import PatternTooSlowError, search_texts
from remote.judge.program_judge import load_judge
from remote.judge.rejection import StageFailedError
from state.model import ErrorInfo

_SET_PARENT_DEATH_SIGNAL = 1
_JOBS: TypeAdapter[Job] = TypeAdapter(Job)

Tell = Callable[[Mapping[str, Any]], None]
"""Takes parts of a judgement as they come."""


def _die_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)


def answer_job(header: bytes, payload: bytes, inputs: InputCache, tell: Tell | None = None) -> Reply:
    """Do one job; whatever fails without the kernel's fault is a failure, never a verdict."""
    try:
        return _perform_job(_JOBS.validate_json(header), payload, inputs, tell=tell)
    except PatternTooSlowError as error:
        return _failure("pattern_too_slow", str(error))
    except BadPiecesError as error:
        return _failure("bad_pieces", str(error))
    except BadReferenceError as error:
        return _failure("bad_reference", str(error))
    except StageFailedError as error:
        return _failure("worker_failed", str(error)[:2000])
    except Exception as error:  # noqa: BLE001  a defect of ours must not look like one of the kernel's
        return _failure("worker_failed", f"{type(error).__name__}: {error}"[:2000])


def _perform_job(job: Job, payload: bytes, inputs: InputCache, *, tell: Tell | None) -> Reply:
    match job:
        case JudgeJob():
            return JudgeReply(result=_judge_program(job, payload, inputs, tell=tell))
        case PredictJob():
            predictions = load_judge(job.target).predict_latencies(job, payload)
            return PredictReply(predictions=tuple(predictions))
        case LintJob():
            return LintReply(readings=tuple(load_judge(job.target).read_sources(job)))
        case TimelineJob():
            return load_judge(job.target).render_timeline(job, payload)
        case ExplainJob():
            return load_judge(job.target).explain_program(job, payload, inputs)
        case CheckJob():
            return CheckReply(refusal=load_judge(job.target).find_refusal(job, payload, inputs))
        case DigestJob():
            return DigestReply(digests=digest_input_sets(job))
        case GrepJob():
            return GrepReply(matches=search_texts(job))
        case _:
            assert_never(job)


def _judge_program(
    job: JudgeJob, payload: bytes, inputs: InputCache, *, tell: Tell | None
) -> JudgeOutcome | PiecesNeeded:
    judge = load_judge(job.target)
    if tell is not None:
        judge.load()
        tell({})  # the work begins
    try:
        return judge.judge_program(job, payload, inputs, JudgedParts(job.parts, tell))
    except UnsureError as error:
        return PiecesNeeded(places=error.places)


def _failure(code: str, message: str) -> FailureReply:
    return FailureReply(error=ErrorInfo(code=code, message=message))


def main() -> None:
    """Answer jobs from stdin on stdout."""
    memory_bytes, input_bytes = int(sys.argv[1]), int(sys.argv[2])
    _die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent process
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    inputs = InputCache(input_bytes)
    for target in sys.argv[3:]:
        load_judge(target).load()
    while (message := framing.read_message(sys.stdin.buffer)) is not None:
        _send(answer_job(*message, inputs, lambda parts: _send(PartsReply(parts=dict(parts)))))


def _send(reply: Reply) -> None:
    sys.stdout.buffer.write(framing.pack_message(reply.model_dump_json().encode()))
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
