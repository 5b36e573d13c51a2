"""The program side of the judge: NKI programs against rules, numbers, the reference's formula, and the clock.

The trusted worker loads `NkiJudge`. What needs no program, inputs, truths, tolerances and what hosts show, is
in `remote.judge`. Open `program.py` first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from remote.judge.drawn import InputCache
    from remote.judge.job import Forecasts, Job, Outcome, Reply, Ruled, Texts, Timed
    from state.model import Predicted


class NkiJudge:
    """Answers the worker's jobs on NKI kernels."""

    def judge(self, job: Job, reply: bytes, inputs: InputCache) -> Outcome:
        """Take a tracer's reply through every stage."""
        from targets.nki.judge.program import judge

        return judge(job, reply, inputs)

    def refusal(self, job: Ruled, reply: bytes, inputs: InputCache) -> Outcome | None:
        """Return the outcome on a program that breaks a rule; None for the others."""
        from targets.nki.judge.program import refusal

        return refusal(job, reply, inputs)

    def forecasts(self, job: Forecasts, replies: bytes) -> Sequence[Predicted]:
        """Predict the latency of each program in a tracer's replies."""
        from targets.nki.judge.forecasts import forecasts

        return forecasts(job, replies)

    def readings(self, job: Texts) -> Sequence[Predicted]:
        """Return of each text why it is refused, or the digest of its code."""
        from targets.nki.judge.forecasts import readings

        return readings(job)

    def timeline(self, job: Timed, reply: bytes) -> Reply:
        """Return when each instruction would run, as Chrome trace events."""
        from targets.nki.judge.timelines import timeline

        return timeline(job, reply)
