"""The content of a report as values: collected from the log once, rendered as HTML, Markdown or JSON."""

from __future__ import annotations

import difflib
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import isfinite
from typing import Any

from agentctl.reports.reproduction import (
    NO_REPRODUCTION,
    Reproduction,
    changed_settings,
    reproduction_commands,
)
from agentctl.stats import figures
from agentctl.stats.facts import FactsWalk
from agentctl.views.candidate import load_candidate
from agentctl.views.improvement_path import ImprovementPath, PathWalk
from agentctl.views.profile_findings import wasted_messages
from agentctl.views.roofline import KernelRoofline, kernel_roofline, profile_target
from agentctl.views.run import LatencyInterval, RunView, latency_of, run_view
from agentctl.views.spending import Spending, SpendingWalk
from agentctl.views.timeline import BusyTimeline, busy_timeline
from agentctl.views.walk import walk_events
from state.events import RunCreated
from state.fold import RunState
from state.model import INITIAL_KEY, Candidate, StopReason
from state.quotable_errors import quotable_attempt_error
from state.reader import LogReader
from state.records import ProgressCallback

FORMAT = 1
"""The version of the JSON form; increase it when a key is removed or changes its meaning."""

MAX_EXAMPLES = 3
"""The number of example messages per failure mode."""

JsonDict = dict[str, Any]


@dataclass(frozen=True, slots=True)
class LineCost:
    """A source line's share of the critical path, in ms; predicted or measured, as the latency is."""

    line: int
    ms: float
    op: str


@dataclass(frozen=True, slots=True)
class KernelReport:
    """A kernel with its profile. `busy_ms` is how long each engine works.

    `lines` are the most expensive ones of the critical path, `memory` the peaks, `wasted` what it does in
    vain, in words. What the profile lacks is None or empty.
    """

    candidate: str
    author: str
    title: str
    technique: str | None
    source: str
    latency: LatencyInterval
    level: str
    bottleneck: str | None
    counters: dict[str, float]
    busy_ms: dict[str, float]
    timeline: BusyTimeline | None
    roofline: KernelRoofline | None
    lines: tuple[LineCost, ...]
    memory: dict[str, JsonDict]
    wasted: tuple[str, ...]
    rel_l2: dict[str, float]
    identity: str | None
    identity_reason: str


@dataclass(frozen=True, slots=True)
class ProblemReport:
    """The problem. `dims` are those of the size that was run, `work` is the least that any kernel must do."""

    name: str
    formula: str
    size: str
    dims: dict[str, int]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    rel_l2: float | None
    seeds: tuple[int, ...]
    builtin: bool
    digest: str
    work: dict[str, Any]
    peaks: dict[str, float]


@dataclass(frozen=True, slots=True)
class FailureMode:
    """A way in which kernels failed: its code, how many failed so, and some of their messages."""

    code: str
    stage: str
    count: int
    techniques: tuple[str, ...]
    examples: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AttemptSummary:
    """The results of all attempts: `discarded` counts correct kernels by why they were not kept."""

    techniques: tuple[JsonDict, ...]
    discarded: dict[str, int]
    failures: tuple[FailureMode, ...]


@dataclass(frozen=True, slots=True)
class Environment:
    """How the report was made: versions as the log has them, and the time and version of the report."""

    toolchain: str
    started_with: str
    written_with: str
    written: str
    began: str
    evaluator: str
    target: str
    planners: tuple[str, ...]
    models: tuple[str, ...]
    changed_settings: dict[str, Any]
    problem_digest: str
    state_hash: str


@dataclass(frozen=True, slots=True)
class ReportDocument:
    """A report; what the run does not have is None or empty."""

    format: int
    run: RunView
    problem: ProblemReport
    initial: KernelReport | None
    best: KernelReport | None
    path: ImprovementPath
    diff: str
    tried: AttemptSummary
    figures: JsonDict
    spending: Spending
    reproduction: Reproduction
    environment: Environment


def gather_report(
    reader: LogReader,
    run: str,
    *,
    owned: bool,
    version: str,
    now: str,
    progress: ProgressCallback | None = None,
) -> ReportDocument:
    """Collect the report of a run; `version` is this program's, `now` the time of writing in UTC.

    `owned` says whether somebody owns the home: an unfinished run of a home without owner is interrupted.

    The run's events are read once; `progress` is called meanwhile.

    Raises:
        StreamUnknown: there is no such run.
    """
    import seeds

    state = reader.run_state(run)
    (row,) = reader.run_rows(run)
    files = {path: reader.get_blob(digest) for path, digest in state.problem.files.items()}
    problem = None
    # a problem of another version may be unreadable; the report is made all the same
    with suppress(seeds.SeedsError):
        problem = seeds.build_problem(files)
    known = (
        problem is not None
        and problem.name in seeds.builtin_problems()
        and seeds.load_problem(problem.name).digest == problem.digest
    )
    initial, best = (_kernel_report(reader, run, one) for one in (state.initial, state.best))
    view, attempts = _redact_view(run_view(run, state, owned=owned)), reader.attempt_rows(run)
    facts, path, spending = FactsWalk(reader.get_blob), PathWalk(), SpendingWalk(run)
    for _ in walk_events(reader, run, facts, path, spending, progress=progress):
        pass
    found = figures.run_figures(facts.build_facts(row, attempts), figures.FAST_AT)
    return ReportDocument(
        format=FORMAT,
        run=view,
        problem=_problem_report(problem, state, builtin=known) if problem else _unreadable_problem(state),
        initial=initial,
        best=best,
        path=path.build_path(run),
        diff=_source_diff(initial, best),
        tried=_attempt_summary(attempts, found),
        figures=found,
        spending=spending.build_spending(reader),
        reproduction=reproduction_commands(
            run, state, problem, builtin=known, forked=row["parent"] is not None
        )
        if problem
        else NO_REPRODUCTION,
        environment=_report_environment(reader, state, view, version=version, now=now),
    )


def _redact_view(view: RunView) -> RunView:
    """Return a run's numbers without free text of people and providers, which may name machines."""
    return replace(view, reason=view.reason if view.reason in set(StopReason) else None)


def _kernel_report(reader: LogReader, run: str, one: Candidate | None) -> KernelReport | None:
    """Return the report of the initial or best kernel; its level is the state's, which audits may raise."""
    latency = latency_of(one.benchmark) if one is not None else None
    if one is None or latency is None:
        return None
    found = load_candidate(reader, run, one.id)
    profile = found.profile if isinstance(found.profile, dict) else {}
    judged = next((said for said in reversed(found.judgements) if said.rel_l2), None)
    proof = next((said for said in reversed(found.judgements) if said.identity), None)
    return KernelReport(
        candidate=one.id,
        author=one.author,
        title=one.title,
        technique=one.technique,
        source=found.source or "",
        latency=latency,
        level=one.level.value,
        bottleneck=one.bottleneck,
        counters=_finite_numbers(found.counters),
        busy_ms=_finite_numbers(profile.get("busy_ms")),
        timeline=busy_timeline(profile),
        roofline=kernel_roofline(_finite_numbers(found.counters), profile_target(profile)),
        lines=tuple(_line_costs(profile.get("top_lines"))),
        memory=_dict_values(profile.get("memory")),
        wasted=wasted_messages(profile),
        rel_l2=judged.rel_l2 if judged else {},
        identity=proof.identity if proof else None,
        identity_reason=proof.identity_reason if proof else "",
    )


def _finite_numbers(found: object) -> dict[str, float]:
    items = found.items() if isinstance(found, dict) else ()
    return {
        str(name): float(value) for name, value in items if type(value) in (int, float) and isfinite(value)
    }


def _dict_values(found: object) -> dict[str, JsonDict]:
    items = found.items() if isinstance(found, dict) else ()
    return {str(name): value for name, value in items if isinstance(value, dict)}


def _line_costs(found: object) -> Iterable[LineCost]:
    for one in found if isinstance(found, list) else ():
        if isinstance(one, dict) and type(one.get("line")) is int and type(one.get("ms")) in (int, float):
            yield LineCost(one["line"], float(one["ms"]), str(one.get("op", "")))


def _problem_report(problem: Any, state: RunState, *, builtin: bool) -> ProblemReport:
    from targets.registry import load_target, target_names

    spec, size, target = problem.spec, state.config.size, state.config.target
    work, peaks = spec.minimal_work(size), load_target(target).peaks if target in target_names() else None
    dims = spec.dims(size)
    return ProblemReport(
        name=spec.name,
        formula=spec.formula,
        size=size,
        dims=dict(dims),
        inputs=tuple(f"{one.name} {list(one.resolve_shape(dims))} {one.dtype}" for one in spec.inputs),
        outputs=tuple(f"{one.name} {list(one.resolve_shape(dims))} {one.dtype}" for one in spec.outputs),
        rel_l2=spec.rel_l2,
        seeds=spec.seeds,
        builtin=builtin,
        digest=problem.digest,
        work={
            "bytes": work.total_bytes,
            "matmul_flops": work.matmul_flops,
            "other_flops": work.other_flops,
            "matmul_dtype": work.matmul_dtype,
        },
        peaks={}
        if peaks is None
        else {
            "bandwidth_gb_s": peaks.bandwidth_for(work.total_bytes),
            "matmul_tflops": peaks.products_tflops(work),
            "other_gflops": peaks.other_gflops,
        },
    )


def _unreadable_problem(state: RunState) -> ProblemReport:
    """Return what a run knows about a problem whose files this program cannot read."""
    return ProblemReport(
        name=state.problem.name,
        formula="",
        size=state.config.size,
        dims={},
        inputs=(),
        outputs=(),
        rel_l2=None,
        seeds=(),
        builtin=False,
        digest=state.problem.digest,
        work={},
        peaks={},
    )


def _source_diff(initial: KernelReport | None, best: KernelReport | None) -> str:
    if initial is None or best is None:
        return ""
    old, new = (one.source.rstrip("\n").split("\n") for one in (initial, best))
    return "\n".join(difflib.unified_diff(old, new, initial.candidate, best.candidate, lineterm=""))


def _attempt_summary(attempts: Sequence[JsonDict], found: JsonDict) -> AttemptSummary:
    rows = [row for row in attempts if row["candidate"] != INITIAL_KEY.candidate_id]
    discarded = Counter(
        str(row["reason"])
        for row in rows
        if row["decision"] == "discarded" and row["verdict"] == "correct" and row["reason"]
    )
    return AttemptSummary(
        tuple(found["techniques"]), dict(discarded.most_common()), tuple(_failure_modes(rows))
    )


def _failure_modes(rows: Sequence[JsonDict]) -> Iterable[FailureMode]:
    """Return the ways in which kernels failed, the most frequent first."""
    groups: dict[tuple[str, str], list[JsonDict]] = defaultdict(list)
    for row in rows:
        if row["error_code"] is not None and row["verdict"] != "correct":
            groups[row["error_code"], row["stage"] or "proposal"].append(row)
    for (code, stage), failed in sorted(groups.items(), key=lambda pair: (-len(pair[1]), pair[0])):
        messages = list(dict.fromkeys(filter(None, map(quotable_attempt_error, failed))))
        techniques = sorted({row["technique"] for row in failed if row["technique"]})
        yield FailureMode(code, stage, len(failed), tuple(techniques), tuple(messages[:MAX_EXAMPLES]))


def _report_environment(
    reader: LogReader, state: RunState, view: RunView, *, version: str, now: str
) -> Environment:
    (first,) = reader.read(stream=view.id, limit=1)
    created = first.event
    return Environment(
        toolchain=state.toolchain,
        started_with=created.code_version if isinstance(created, RunCreated) else "",
        written_with=version,
        written=now,
        began=first.time.isoformat(timespec="seconds"),
        evaluator=state.config.evaluator,
        target=state.config.target,
        planners=state.config.planner,
        models=tuple(sorted(state.models)),
        changed_settings=changed_settings(state.config),
        problem_digest=state.problem.digest,
        state_hash=view.state_hash,
    )
