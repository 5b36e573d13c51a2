"""`agentctl migrate KERNEL`: writes a kernel anew in its target's canonical form, and judges the result.

The new kernel is made from what the old one does, so a kernel of an older namespace comes out in the current
one. The judge decides whether it computes the same; nothing is taken on trust.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentctl.app import Session
from agentctl.formatting import format_ms
from agentctl.kernel_predictions import open_predictor
from agentctl.run_flags import config_from_flags, read_kernel_source
from agentctl.verbs.try_ import await_within_deadline, evaluate_kernel
from daemon import exits
from daemon.config import Config
from state.model import Evaluation, PredictedLatency
from state.output_files import write_output

if TYPE_CHECKING:
    from agent_core.roles import Predict
    from seeds import Problem


def migrate_kernel(session: Session, kernel: Path, output: Path | None, flags: dict[str, Any]) -> int:
    """Write a kernel anew, to `output` or stdout; return the exit status: 0 if the judge finds it correct."""
    import seeds

    config = config_from_flags(session, flags)
    problem = seeds.load_problem(config.run.problem)
    before, after = asyncio.run(_predict_forms(session, config, problem, source=read_kernel_source(kernel)))
    form = before.canonical
    if form is None or form.source is None:
        error = before.error.message if before.error is not None else "its target has no canonical form"
        reason = form.reason if form is not None else error
        found = {"kernel": str(kernel), "source": None, "reason": reason}
        session.emit(found, f"{kernel} stays as it is: {reason}")
        return exits.FAILURE
    judged = asyncio.run(evaluate_kernel(session.home, config, problem, form.source.encode())).evaluation
    if output is not None:
        write_output(session.home, output, form.source.encode())
    same = after is not None and after.canonical is not None and after.canonical.program == form.program
    report: dict[str, Any] = {
        "kernel": str(kernel),
        "source": form.source,
        "output": None if output is None else str(output),
        "same_program": same,
        "before_ms": before.latency_ms,
        "after_ms": None if after is None else after.latency_ms,
        "verdict": judged.verdict.value,
        "identity": None if judged.identity is None else judged.identity.verdict,
    }
    text = _describe(kernel, judged, before, after, same=same)
    session.emit(report, text if output is not None else f"{form.source.rstrip()}\n\n# {text}")
    return exits.OK if judged.is_correct else exits.FAILURE


async def _predict_forms(
    session: Session, config: Config, problem: Problem, *, source: str
) -> tuple[PredictedLatency, PredictedLatency | None]:
    """Predict a kernel and its canonical form, if it has one; nothing is judged."""

    async def predict_both(predict: Predict) -> tuple[PredictedLatency, PredictedLatency | None]:
        (before,) = await predict([source], canonical=True)
        form = before.canonical
        if form is None or form.source is None:
            return before, None
        (after,) = await predict([form.source], canonical=True)
        return before, after

    async with open_predictor(session.home, config, problem) as predict:
        return await await_within_deadline(
            predict_both(predict), config.daemon, doing="predicting", wanted="prediction"
        )


def _describe(
    kernel: Path, judged: Evaluation, before: PredictedLatency, after: PredictedLatency | None, *, same: bool
) -> str:
    program = "the same program" if same else "another program"
    times = [one.latency_ms for one in (before, after) if one is not None and one.latency_ms is not None]
    spent = " before, ".join(format_ms(each) for each in times)
    text = f"{kernel} written anew: {judged.verdict.value}, {program}, predicted {spent} after"
    return text if judged.error is None else f"{text}; {judged.error.message} [{judged.error.code}]"
