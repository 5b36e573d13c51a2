"""The protocol that a target implements for the trusted worker: a judge of programs in its own form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, cast

from remote.judge.input_cache import InputCache
from remote.judge.job import (
    CheckJob,
    ExplainJob,
    ExplainReply,
    JudgeJob,
    JudgeOutcome,
    LintJob,
    PredictJob,
    TimelineJob,
    TimelineReply,
)
from remote.judge.judged_parts import JudgedParts
from state.model import PredictedLatency
from targets.base import import_part
from targets.registry import load_target


class ProgramJudge(Protocol):
    """Judges a target's tracer replies, in the worker; results may not depend on a clock or on chance."""

    def load(self) -> None:
        """Import what judging needs; the first program then waits for nothing."""
        ...

    def judge_program(
        self, job: JudgeJob, reply: bytes, inputs: InputCache, parts: JudgedParts
    ) -> JudgeOutcome:
        """Take a tracer's reply through every stage; the outcome names the stage that decided.

        What takes long is asked of `parts`, which may know it already; the outcome must be the same.

        Raises:
            BadReferenceError: the problem's reference, or a file of it, is at fault.
            UnsureError: the sketches that a host showed cannot decide.
            BadPiecesError: what a host showed is not what home asked for.
        """
        ...

    def find_refusal(self, job: CheckJob, reply: bytes, inputs: InputCache) -> JudgeOutcome | None:
        """Return the outcome for a program that breaks a rule, before it runs; None for the others."""
        ...

    def predict_latencies(self, job: PredictJob, replies: bytes) -> Sequence[PredictedLatency]:
        """Predict the latency of each program in a tracer's replies."""
        ...

    def read_sources(self, job: LintJob) -> Sequence[PredictedLatency]:
        """Return for each text the reason why static rules refuse it, or the digest of its code."""
        ...

    def render_timeline(self, job: TimelineJob, reply: bytes) -> TimelineReply:
        """Return the predicted run of a program as Chrome trace events, or why there is none."""
        ...

    def explain_program(self, job: ExplainJob, reply: bytes, inputs: InputCache) -> ExplainReply:
        """Explain a program's predicted latency; the outcome instead if the program breaks a rule."""
        ...


def load_judge(target: str) -> ProgramJudge:
    """Return the judge of a target's programs."""
    part = load_target(target).parts.judge
    assert part is not None, f"{target} has no judge of programs"
    return cast("ProgramJudge", import_part(part)())
