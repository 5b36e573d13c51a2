"""What a target gives the trusted worker: a judge of programs in its own form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, cast

from remote.judge.drawn import InputCache
from remote.judge.job import Forecasts, Job, Outcome, Reply, Ruled, Texts, Timed
from state.model import Predicted
from targets.base import import_part
from targets.registry import load_target


class ProgramJudge(Protocol):
    """Judges what a target's tracer replied, in the worker; nothing may depend on a clock or on chance."""

    def judge(self, job: Job, reply: bytes, inputs: InputCache) -> Outcome:
        """Take a tracer's reply through every stage; the outcome names the one that decided.

        Raises:
            BadReferenceError: the problem's reference, or a file of it, is at fault.
            UnsureError: what a host showed does not tell.
            BadPiecesError: what a host showed is not what it was asked for.
        """
        ...

    def refusal(self, job: Ruled, reply: bytes, inputs: InputCache) -> Outcome | None:
        """Return the outcome on a program that breaks a rule, before anybody runs it; None for the others."""
        ...

    def forecasts(self, job: Forecasts, replies: bytes) -> Sequence[Predicted]:
        """Predict the latency of each program in a tracer's replies."""
        ...

    def readings(self, job: Texts) -> Sequence[Predicted]:
        """Return of each text why static rules refuse it, or the digest of its code."""
        ...

    def timeline(self, job: Timed, reply: bytes) -> Reply:
        """Return the predicted run of a program as Chrome trace events, or why there is none."""
        ...


def load_judge(target: str) -> ProgramJudge:
    """Return the judge of a target's programs."""
    part = load_target(target).parts.judge
    assert part is not None, f"{target} has no judge of programs"
    return cast("ProgramJudge", import_part(part)())
