"""When each instruction of a traced program would run, as Chrome trace events: what tracing tools draw."""

from __future__ import annotations

import io

from nki_sim import targets
from nki_sim.timing import chrome
from nki_sim.timing.forecast import forecast
from remote.judge.job import Reply, Timed
from remote.judge.rejection import RejectedError
from targets.nki.judge.program import read_program, timed, untimed_error


def timeline(job: Timed, reply: bytes) -> Reply:
    """The predicted run of the program in a tracer's reply, or why there is none."""
    try:
        program = read_program(reply)
        error = untimed_error(program)
        if error is not None:
            return Reply(rejected=error)
        found = timed(lambda: forecast(program, targets.load(job.target)))
    except RejectedError as rejected:
        return Reply(rejected=rejected.error)
    text = io.StringIO()
    chrome.write(found, text)
    return Reply(timeline=text.getvalue())
