"""Predicts when each instruction of a traced program runs, as Chrome trace events for tracing tools."""

from __future__ import annotations

import io

from nki_sim.calibration import load_calibrated
from nki_sim.timing import chrome_trace
from nki_sim.timing.forecast import forecast_program
from remote.judge.job import TimelineJob, TimelineReply
from remote.judge.rejection import RejectedError
from targets.nki.judge.program import read_program, run_timing, timing_error


def predict_timeline(job: TimelineJob, reply: bytes) -> TimelineReply:
    """Return the predicted run of the program in a tracer's reply, or why there is none."""
    try:
        program = read_program(reply)
        error = timing_error(program)
        if error is not None:
            return TimelineReply(result=error)
        target = load_calibrated(job.target, job.constants)
        found = run_timing(lambda: forecast_program(program, target))
    except RejectedError as rejected:
        return TimelineReply(result=rejected.error)
    text = io.StringIO()
    chrome_trace.write_chrome_trace(found, text)
    return TimelineReply(result=text.getvalue())
