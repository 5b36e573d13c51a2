"""What a report says, as values: gathered from the log once, written down as HTML, Markdown or JSON."""

from __future__ import annotations

import difflib
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import isfinite
from typing import Any

from agentctl.reports.reproduction import NOTHING, Reproduction, changed_settings, reproduction
from agentctl.stats import figures
from agentctl.stats.facts import FactsWalk
from agentctl.views.candidate import candidate
from agentctl.views.path import Path, PathWalk
from agentctl.views.roofline import Roofline, roofline, target_of
from agentctl.views.run import RunView, Timed, run_view, timed
from agentctl.views.spending import Spending, SpendingWalk
from agentctl.views.timeline import Timeline, timeline
from agentctl.views.walk import walk
from state.events import RunCreated
from state.fold import RunState
from state.model import INITIAL_KEY, Candidate, StopReason
from state.quotable import quotable
from state.reader import LogReader
from state.records import Progress

FORMAT = 1
"""Of the JSON form; raised when a key changes its meaning or goes."""

EXAMPLES = 3
"""Of each way to fail, so many messages are shown."""

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Line:
    """A source line's part of the critical path, in ms, predicted or measured as the latency is."""

    line: int
    ms: float
    op: str


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel with its profile. `busy_ms` is how long each engine works.

    `lines` are the costliest of the critical path, `memory` the peaks. What the profile does not have is
    None or empty.
    """

    candidate: str
    author: str
    title: str
    technique: str | None
    source: str
    latency: Timed
    level: str
    bottleneck: str | None
    counters: dict[str, float]
    busy_ms: dict[str, float]
    timeline: Timeline | None
    roofline: Roofline | None
    lines: tuple[Line, ...]
    memory: dict[str, Json]
    rel_l2: dict[str, float]
    identity: str | None
    identity_reason: str


@dataclass(frozen=True, slots=True)
class Problem:
    """What is optimised. `dims` are those of the size that was run, `work` the least that any kernel does."""

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
class Failure:
    """A way in which kernels failed: its code, how many did, and what some of them were told."""

    code: str
    stage: str
    count: int
    techniques: tuple[str, ...]
    examples: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Tried:
    """What came of all attempts: `discarded` counts correct ones by why they were not kept."""

    techniques: tuple[Json, ...]
    discarded: dict[str, int]
    failures: tuple[Failure, ...]


@dataclass(frozen=True, slots=True)
class Environment:
    """Where this was made: versions as the log has them, and who wrote the report, when."""

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
class Document:
    """A report. What the run has not come to is None or empty."""

    format: int
    run: RunView
    problem: Problem
    initial: Kernel | None
    best: Kernel | None
    path: Path
    diff: str
    tried: Tried
    figures: Json
    spending: Spending
    reproduction: Reproduction
    environment: Environment


def document(
    reader: LogReader,
    run: str,
    *,
    version: str,
    now: str,
    progress: Progress | None = None,
) -> Document:
    """Gather the report of a run; `version` is this program's, `now` the time that it is written, in UTC.

    The run's events are read once; `progress` is told of it.

    Raises:
        StreamUnknown: there is no such run.
    """
    import seeds

    state = reader.state(run)
    (row,) = reader.listed(run)
    files = {path: reader.blob(digest) for path, digest in state.problem.files.items()}
    problem = None
    with suppress(seeds.SeedsError):  # of another version's form: there is a report nevertheless
        problem = seeds.from_files(files)
    known = (
        problem is not None
        and problem.name in seeds.problems()
        and seeds.load(problem.name).digest == problem.digest
    )
    initial, best = (_kernel(reader, run, one) for one in (state.initial, state.best))
    view, attempts = _public(run_view(run, state)), reader.attempts(run)
    facts, path, spending = FactsWalk(reader.blob), PathWalk(), SpendingWalk(run)
    for _ in walk(reader, run, facts, path, spending, progress=progress):
        pass
    found = figures.of_run(facts.facts(row, attempts), figures.FAST_AT)
    return Document(
        format=FORMAT,
        run=view,
        problem=_problem(problem, state, builtin=known) if problem else _unread(state),
        initial=initial,
        best=best,
        path=path.path(run),
        diff=_diff(initial, best),
        tried=_tried(attempts, found),
        figures=found,
        spending=spending.spending(reader),
        reproduction=reproduction(run, state, problem, builtin=known, forked=row["parent"] is not None)
        if problem
        else NOTHING,
        environment=_environment(reader, state, view, version=version, now=now),
    )


def _public(view: RunView) -> RunView:
    """Return a run's numbers without what people and providers said of it: that may name machines."""
    return replace(view, reason=view.reason if view.reason in set(StopReason) else None)


def _kernel(reader: LogReader, run: str, one: Candidate | None) -> Kernel | None:
    """Return one of the kernels that the run goes by; its level is the state's, which audits raise."""
    latency = timed(one.benchmark) if one is not None else None
    if one is None or latency is None:
        return None
    found = candidate(reader, run, one.id)
    profile = found.profile if isinstance(found.profile, dict) else {}
    judged = next((said for said in reversed(found.judgements) if said.rel_l2), None)
    proof = next((said for said in reversed(found.judgements) if said.identity), None)
    return Kernel(
        candidate=one.id,
        author=one.author,
        title=one.title,
        technique=one.technique,
        source=found.source or "",
        latency=latency,
        level=one.level.value,
        bottleneck=one.bottleneck,
        counters=_numbers(found.counters),
        busy_ms=_numbers(profile.get("busy_ms")),
        timeline=timeline(profile),
        roofline=roofline(_numbers(found.counters), target_of(profile)),
        lines=tuple(_lines(profile.get("top_lines"))),
        memory=_tables(profile.get("memory")),
        rel_l2=judged.rel_l2 if judged else {},
        identity=proof.identity if proof else None,
        identity_reason=proof.identity_reason if proof else "",
    )


def _numbers(found: object) -> dict[str, float]:
    items = found.items() if isinstance(found, dict) else ()
    return {
        str(name): float(value) for name, value in items if type(value) in (int, float) and isfinite(value)
    }


def _tables(found: object) -> dict[str, Json]:
    items = found.items() if isinstance(found, dict) else ()
    return {str(name): value for name, value in items if isinstance(value, dict)}


def _lines(found: object) -> Iterable[Line]:
    for one in found if isinstance(found, list) else ():
        if isinstance(one, dict) and type(one.get("line")) is int and type(one.get("ms")) in (int, float):
            yield Line(one["line"], float(one["ms"]), str(one.get("op", "")))


def _problem(problem: Any, state: RunState, *, builtin: bool) -> Problem:
    from targets.registry import load_target, target_names

    spec, size, target = problem.spec, state.config.size, state.config.target
    work, peaks = spec.work_at(size), load_target(target).peaks if target in target_names() else None
    dims = spec.dims(size)
    return Problem(
        name=spec.name,
        formula=spec.formula,
        size=size,
        dims=dict(dims),
        inputs=tuple(f"{one.name} {list(one.resolve(dims))} {one.dtype}" for one in spec.inputs),
        outputs=tuple(f"{one.name} {list(one.resolve(dims))} {one.dtype}" for one in spec.outputs),
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
            "bandwidth_gb_s": peaks.bandwidth_gb_s,
            "matmul_tflops": peaks.matmul_tflops,
            "other_gflops": peaks.other_gflops,
        },
    )


def _unread(state: RunState) -> Problem:
    """Return what a run knows of a problem whose files this program cannot read."""
    return Problem(
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


def _diff(initial: Kernel | None, best: Kernel | None) -> str:
    if initial is None or best is None:
        return ""
    old, new = (one.source.rstrip("\n").split("\n") for one in (initial, best))
    return "\n".join(difflib.unified_diff(old, new, initial.candidate, best.candidate, lineterm=""))


def _tried(attempts: Sequence[Json], found: Json) -> Tried:
    rows = [row for row in attempts if row["candidate"] != INITIAL_KEY.candidate]
    discarded = Counter(
        str(row["reason"])
        for row in rows
        if row["decision"] == "discarded" and row["verdict"] == "correct" and row["reason"]
    )
    return Tried(tuple(found["techniques"]), dict(discarded.most_common()), tuple(_failures(rows)))


def _failures(rows: Sequence[Json]) -> Iterable[Failure]:
    """Return the ways in which kernels failed, the most frequent first."""
    groups: dict[tuple[str, str], list[Json]] = defaultdict(list)
    for row in rows:
        if row["error_code"] is not None and row["verdict"] != "correct":
            groups[row["error_code"], row["stage"] or "proposal"].append(row)
    for (code, stage), failed in sorted(groups.items(), key=lambda pair: (-len(pair[1]), pair[0])):
        messages = list(dict.fromkeys(filter(None, map(quotable, failed))))
        techniques = sorted({row["technique"] for row in failed if row["technique"]})
        yield Failure(code, stage, len(failed), tuple(techniques), tuple(messages[:EXAMPLES]))


def _environment(reader: LogReader, state: RunState, view: RunView, *, version: str, now: str) -> Environment:
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
