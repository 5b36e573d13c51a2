"""Checks a traced program against the rules, and explains its predicted latency topic by topic, as text."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict

from nki_sim import targets
from nki_sim.cli.profile import explain_forecast
from nki_sim.cli.profile_text import PROFILE_TOPICS, format_topic
from nki_sim.timing import counters
from nki_sim.timing.bottleneck import MAX_WHAT_IFS
from nki_sim.timing.forecast import Forecast, forecast_program
from nki_sim.timing.uncertainty import predict_interval
from nki_sim.timing.what_if import WhatIf, format_evidence, what_ifs
from remote.judge.input_cache import InputCache
from remote.judge.job import CheckJob, ExplainJob, ExplainReply, JudgeOutcome
from remote.judge.rejection import RejectedError
from seeds.spec import ProblemWork
from state.model import KernelExplanation
from targets.nki.bounds import minimal_work
from targets.nki.judge.program import check_program, read_program, run_timing, timing_error
from targets.nki.raising.raiser import make_canonical

WHAT_IF = "what_if"
"""The topic that takes predictions of its own."""
CANONICAL = "canonical"
"""The topic that alone asks for the kernel's canonical form instead; it has no text and no latency."""


def explain_program(job: ExplainJob, reply: bytes, inputs: InputCache) -> ExplainReply:
    """Return why the program takes its predicted time, or which rule it breaks."""
    check = CheckJob(spec=job.spec, size=job.size, target=job.target)
    refusal = check_program(check, reply, inputs)
    if refusal is not None:
        return ExplainReply(result=refusal)
    program = read_program(reply)
    if set(job.topics) == {CANONICAL}:
        form = make_canonical(program, job.source)
        return ExplainReply(result=KernelExplanation(instructions=len(program.lines), canonical=form))
    untimed = timing_error(program)
    if untimed is not None:
        return ExplainReply(result=KernelExplanation(instructions=len(program.lines), error=untimed))
    target = targets.load(job.target)
    try:
        found = run_timing(lambda: forecast_program(program, target))
    except RejectedError as rejected:
        outcome = JudgeOutcome(verdict=rejected.verdict, stage="timing", error=rejected.error)
        return ExplainReply(result=outcome)
    return ExplainReply(result=_explain(job, found, job.spec.minimal_work(job.size)))


def _explain(job: ExplainJob, found: Forecast, work: ProblemWork) -> KernelExplanation:
    interval = predict_interval(found)
    few = len(found.compiled.program) <= MAX_WHAT_IFS
    ifs = what_ifs(found) if few or WHAT_IF in job.topics else None
    explanation = explain_forecast(found, minimal_work(work, found.target), ifs)
    report = {
        "kernel": job.spec.name,
        "target": job.target,
        "predicted": asdict(interval),
        "instructions": len(found.compiled.program),
        "counters": counters.profile_counters(found),
        "what_ifs": [asdict(item) for item in ifs or ()],
        "explanation": explanation,
    }
    return KernelExplanation(
        latency_ms=interval.latency_ms,
        lo_ms=interval.lo_ms,
        hi_ms=interval.hi_ms,
        instructions=len(found.compiled.program),
        bottleneck=explanation["bottleneck"],
        unlike=interval.unlike,
        topics={topic: _render_topic(topic, report, job, ifs=ifs) for topic in _known_topics(job.topics)},
    )


def _render_topic(
    topic: str, report: dict[str, object], job: ExplainJob, *, ifs: Sequence[WhatIf] | None
) -> str:
    if topic == WHAT_IF:
        assert ifs is not None
        latency = report["predicted"]["latency_ms"]  # type: ignore[index]
        rows = [f"{latency:.6g} ms predicted as it is"]
        rows += [
            f"{one.latency_ms:.6g} ms ({-one.saved_percent:+.1f} %) with {one.assumption}; "
            f"{format_evidence(one.measured_pairs, one.pairs_within)}"
            for one in ifs
        ]
        return "\n".join(rows)
    return "\n".join(format_topic(topic, report, job.source)).strip("\n")


def _known_topics(wanted: Collection[str]) -> list[str]:
    return [topic for topic in PROFILE_TOPICS if topic in wanted]
