"""The trusted worker: `python -m remote.worker MEMORY_BYTES INPUT_BYTES` judges until its stdin ends.

There is one per slot, kept between evaluations so that NumPy is loaded and inputs are drawn once. It reads
traced programs, never a kernel's Python. It dies with the process that started it.
"""

from __future__ import annotations

import ctypes
import resource
import signal
import sys

from pydantic import TypeAdapter

from remote import framing
from remote.judge.host_trials import BadPiecesError, UnsureError
from remote.judge.input_cache import InputCache, digest_input_sets
from remote.judge.job import (
    CheckJob,
    DigestJob,
    GrepJob,
    JudgeJob,
    JudgeReply,
    LintJob,
    PredictJob,
    TimelineJob,
)
from remote.judge.numerics import BadReferenceError
from remote.judge.pattern_search import PatternTooSlowError, search_texts
from remote.judge.program_judge import load_judge
from remote.judge.rejection import StageFailedError
from state.model import ErrorInfo

_SET_PARENT_DEATH_SIGNAL = 1


def _die_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)


_JOB: TypeAdapter[JudgeJob | PredictJob | LintJob | TimelineJob | CheckJob | DigestJob | GrepJob] = (
    TypeAdapter(JudgeJob | PredictJob | LintJob | TimelineJob | CheckJob | DigestJob | GrepJob)
)


def answer_job(header: bytes, payload: bytes, inputs: InputCache) -> JudgeReply:
    """Judge one job; whatever fails without the kernel's fault is a failure, never a verdict."""
    try:
        job = _JOB.validate_json(header)
        if isinstance(job, DigestJob):
            return JudgeReply(digests=digest_input_sets(job))
        if isinstance(job, GrepJob):
            return JudgeReply(matches=search_texts(job))
        judge = load_judge(job.target)
        if isinstance(job, PredictJob):
            return JudgeReply(forecasts=tuple(judge.predict_latencies(job, payload)))
        if isinstance(job, LintJob):
            return JudgeReply(forecasts=tuple(judge.read_sources(job)))
        if isinstance(job, TimelineJob):
            return judge.render_timeline(job, payload)
        if isinstance(job, CheckJob):
            return JudgeReply(outcome=judge.find_refusal(job, payload, inputs))
        return JudgeReply(outcome=judge.judge_program(job, payload, inputs))
    except UnsureError as error:
        return JudgeReply(unsure=error.places)
    except PatternTooSlowError as error:
        return JudgeReply(failure=ErrorInfo(code="pattern_too_slow", message=str(error)))
    except BadPiecesError as error:
        return JudgeReply(failure=ErrorInfo(code="bad_pieces", message=str(error)))
    except BadReferenceError as error:
        return JudgeReply(failure=ErrorInfo(code="bad_reference", message=str(error)))
    except StageFailedError as error:
        return JudgeReply(failure=ErrorInfo(code="worker_failed", message=str(error)[:2000]))
    except Exception as error:  # noqa: BLE001  a defect of ours must not look like one of the kernel's
        text = f"{type(error).__name__}: {error}"
        return JudgeReply(failure=ErrorInfo(code="worker_failed", message=text[:2000]))


def main() -> None:
    """Answer jobs from stdin on stdout."""
    memory_bytes, input_bytes = int(sys.argv[1]), int(sys.argv[2])
    _die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent process
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    inputs = InputCache(input_bytes)
    while (message := framing.read_message(sys.stdin.buffer)) is not None:
        reply = answer_job(*message, inputs)
        sys.stdout.buffer.write(framing.pack_message(reply.model_dump_json().encode()))
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
