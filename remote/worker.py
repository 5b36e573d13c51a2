"""The trusted worker: `python -m remote.worker MEMORY_BYTES INPUT_BYTES` judges until its stdin ends.

One per slot, kept between evaluations so that NumPy is loaded and inputs are drawn once. It reads traced
programs, never a kernel's Python. It dies with the process that started it.
"""

from __future__ import annotations

import ctypes
import resource
import signal
import sys

from pydantic import TypeAdapter

from remote import framing
from remote.judge.drawn import InputCache, digests
from remote.judge.job import Draws, Forecasts, Job, Matches, Reply, Ruled, Texts, Timed
from remote.judge.matching import TooSlowError, matches
from remote.judge.numerics import BadReferenceError
from remote.judge.program_judge import load_judge
from remote.judge.returned import BadPiecesError, UnsureError
from state.model import ErrorInfo

_SET_PARENT_DEATH_SIGNAL = 1


def _die_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)


_JOB: TypeAdapter[Job | Forecasts | Texts | Timed | Ruled | Draws | Matches] = TypeAdapter(
    Job | Forecasts | Texts | Timed | Ruled | Draws | Matches
)


def answer(header: bytes, payload: bytes, inputs: InputCache) -> Reply:
    """Judge one job; whatever goes wrong that is not the kernel's fault is a failure, never a verdict."""
    try:
        job = _JOB.validate_json(header)
        if isinstance(job, Draws):
            return Reply(digests=digests(job))
        if isinstance(job, Matches):
            return Reply(matches=matches(job))
        judge = load_judge(job.target)
        if isinstance(job, Forecasts):
            return Reply(forecasts=tuple(judge.forecasts(job, payload)))
        if isinstance(job, Texts):
            return Reply(forecasts=tuple(judge.readings(job)))
        if isinstance(job, Timed):
            return judge.timeline(job, payload)
        if isinstance(job, Ruled):
            return Reply(outcome=judge.refusal(job, payload, inputs))
        return Reply(outcome=judge.judge(job, payload, inputs))
    except UnsureError as error:
        return Reply(unsure=error.places)
    except TooSlowError as error:
        return Reply(failure=ErrorInfo(code="pattern_too_slow", message=str(error)))
    except BadPiecesError as error:
        return Reply(failure=ErrorInfo(code="bad_pieces", message=str(error)))
    except BadReferenceError as error:
        return Reply(failure=ErrorInfo(code="bad_reference", message=str(error)))
    except Exception as error:  # noqa: BLE001  a defect of ours must not look like one of the kernel's
        text = f"{type(error).__name__}: {error}"
        return Reply(failure=ErrorInfo(code="worker_failed", message=text[:2000]))


def main() -> None:
    """Answer jobs on stdin with outcomes on stdout."""
    memory_bytes, input_bytes = int(sys.argv[1]), int(sys.argv[2])
    _die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that owns this one
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    inputs = InputCache(input_bytes)
    while (message := framing.read(sys.stdin.buffer)) is not None:
        reply = answer(*message, inputs)
        sys.stdout.buffer.write(framing.pack(reply.model_dump_json().encode()))
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
