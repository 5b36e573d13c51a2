"""The program side of the judge: checks rules, outputs, formula and time of NKI programs.

The trusted worker loads `NkiJudge`. Everything that needs no program (inputs, references, tolerances, and
what hosts show) is in `remote.judge`. Open `program.py` first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
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


class NkiJudge:
    """Answers the worker's jobs on NKI kernels."""

    def load(self) -> None:
        """Import the simulator and all stages."""
        from targets.nki.judge import program  # noqa: F401

    def judge_program(
        self, job: JudgeJob, reply: bytes, inputs: InputCache, parts: JudgedParts
    ) -> JudgeOutcome:
        """Take a tracer's reply through every stage."""
        from targets.nki.judge.program import judge_program

        return judge_program(job, reply, inputs, parts)

    def find_refusal(self, job: CheckJob, reply: bytes, inputs: InputCache) -> JudgeOutcome | None:
        """Return the outcome for a program that breaks a rule; None for the others."""
        from targets.nki.judge.program import check_program

        return check_program(job, reply, inputs)

    def predict_latencies(self, job: PredictJob, replies: bytes) -> Sequence[PredictedLatency]:
        """Predict the latency of each program in a tracer's replies."""
        from targets.nki.judge.program_predictions import predict_programs

        return predict_programs(job, replies)

    def read_sources(self, job: LintJob) -> Sequence[PredictedLatency]:
        """Return for each text the reason for refusing it, or the digest of its code."""
        from targets.nki.judge.program_predictions import lint_sources

        return lint_sources(job)

    def render_timeline(self, job: TimelineJob, reply: bytes) -> TimelineReply:
        """Return the times of all instructions, as Chrome trace events."""
        from targets.nki.judge.timelines import predict_timeline

        return predict_timeline(job, reply)

    def explain_program(self, job: ExplainJob, reply: bytes, inputs: InputCache) -> ExplainReply:
        """Return why the program takes its predicted time, or which rule it breaks."""
        from targets.nki.judge.explanations import explain_program

        return explain_program(job, reply, inputs)
