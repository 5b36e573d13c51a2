"""The judge's worker side for kernels that ran on a device: compares outputs with the reference."""

from __future__ import annotations

from collections.abc import Sequence

from remote.judge.host_trials import ReturnedOutputs
from remote.judge.input_cache import InputCache
from remote.judge.job import (
    CheckJob,
    JudgeJob,
    JudgeOutcome,
    LintJob,
    PredictJob,
    TimelineJob,
    TimelineReply,
)
from remote.judge.judged_parts import JudgedParts
from remote.judge.rejection import RejectedError
from state.model import ErrorInfo, FormulaIdentity, PredictedLatency, Verdict
from targets.registry import load_target

_NO_FORMULA = "machine code shows no formula: outputs of all input sets were compared"
NOT_PREDICTED = ErrorInfo(
    code="not_predicted", message="kernels of this target are run, there is no model of them"
)


class OutputJudge:
    """Judges outputs, of kernels in any language."""

    def load(self) -> None:
        """Do nothing: all is imported."""

    def judge_program(
        self, job: JudgeJob, reply: bytes, inputs: InputCache, parts: JudgedParts
    ) -> JudgeOutcome:
        """Compare what was returned with the reference; only `job` is used: a host has what is long."""
        del reply, inputs, parts
        errors: dict[int, float] = {}
        returned = ReturnedOutputs(job, errors)
        try:
            returned.compare()
        except RejectedError as rejected:
            return JudgeOutcome(
                verdict=rejected.verdict, stage="numerics", error=rejected.error, rel_l2=errors
            )
        return JudgeOutcome(
            verdict=Verdict.CORRECT,
            stage="numerics",
            rel_l2=errors,
            identity=FormulaIdentity(verdict="tested", reason=_NO_FORMULA),
            stability=returned.stability,
        )

    def find_refusal(self, job: CheckJob, reply: bytes, inputs: InputCache) -> JudgeOutcome | None:
        """Return None: there is no program to check."""
        del job, reply, inputs
        return None

    def predict_latencies(self, job: PredictJob, replies: bytes) -> Sequence[PredictedLatency]:
        """Return the reason why there are no predictions, for each kernel."""
        del replies
        return [PredictedLatency(error=NOT_PREDICTED) for _ in range(job.count)]

    def read_sources(self, job: LintJob) -> Sequence[PredictedLatency]:
        """Return for each text why it is refused, or the digest of its code."""
        language = load_target(job.target).language
        errors = [language.lint(source.encode()) for source in job.sources]
        return [
            PredictedLatency(error=error, code=None if error else language.code_digest(source.encode()))
            for source, error in zip(job.sources, errors, strict=True)
        ]

    def render_timeline(self, job: TimelineJob, reply: bytes) -> TimelineReply:
        """Return the reason why there is no timeline."""
        del job, reply
        return TimelineReply(result=NOT_PREDICTED)
