"""Exports a run in the file layout of the nki-kernel-agent design: checkpoints, experiments, memory.

`checkpoints/best_r<round>_<time>`, with the suffix of the kernels' language, are the best kernels, one after
the other. `experiments.jsonl` has a line per attempt. `optimization_memory/rewrites.json` has the run's
experiences, as `agentctl memory import` reads them. Fields that readers of that design expect have its names
and meanings; other keys add more.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

from agent_core.sequences import collect_operators, describe_setting
from agentctl.views.improvement_path import Improvement, ImprovementPath, load_improvement_path
from daemon import experience_files
from daemon.profiles import parse_counters
from state.errors import BlobMissing
from state.experience_export import export_experience
from state.fold import RunState
from state.model import ProblemTags, Verdict
from state.quotable_errors import quotable_attempt_error
from state.reader import LogReader
from state.records import ProgressCallback
from targets.registry import kernel_suffix, profile_vocabulary

NAME = "nki-kernel-agent"

IMPROVED, SAME = "improved", "no_improvement"
WRONG, BROKEN, REVERTED = "correctness_fail", "compile_fail", "divergence_revert"
"""The design's words for the result of an attempt."""

_TITLE, _PLAN, _ERROR = 50, 100, 500
"""The design's maximum characters of a title, of a plan and of an error."""


def collect_run_files(
    reader: LogReader, run: str, *, progress: ProgressCallback | None = None
) -> dict[str, bytes]:
    """Return a run as files by path; `progress` is called for events, then for attempts.

    Raises:
        StreamUnknown: there is no such run.
        BlobMissing: the log has lost a kernel.
    """
    state, path = reader.run_state(run), load_improvement_path(reader, run, progress=progress)
    suffix = kernel_suffix(state.config.target)
    lines = [
        json.dumps(line) + "\n" for line in _experiment_rows(reader, run, state, path, progress=progress)
    ]
    return {
        **{
            f"checkpoints/{name}": reader.get_blob(one.source)
            for name, one in _checkpoint_files(path, suffix)
        },
        "experiments.jsonl": "".join(lines).encode(),
        "optimization_memory/rewrites.json": _memory_json(reader, run, state).encode(),
    }


def _checkpoint_files(path: ImprovementPath, suffix: str) -> Iterator[tuple[str, Improvement]]:
    taken: Counter[str] = Counter()
    for one in path.bests:
        stamp = datetime.fromisoformat(one.time).strftime("%Y%m%d_%H%M%S")
        name = f"best_r{one.round}_{stamp}"
        taken[name] += 1
        yield f"{name}{'' if taken[name] == 1 else f'_{taken[name]}'}{suffix}", one


def _experiment_rows(
    reader: LogReader,
    run: str,
    state: RunState,
    path: ImprovementPath,
    *,
    progress: ProgressCallback | None,
) -> Iterator[dict[str, Any]]:
    """Yield a line for each attempt at a kernel, in order; the initial kernel is not an attempt."""
    bests = {one.candidate for one in path.bests}
    reverted = {one.candidate for one in path.taken_back if one.kind == "reverted"}
    first = path.bests[0].latency.ms if path.bests else None
    known = profile_vocabulary(state.config.target).counters
    rows = reader.attempt_rows(run)
    for number, row in enumerate(rows):
        if progress is not None:
            progress(number, len(rows))
        if row["round"] == 0:
            continue
        latency_ms = row["latency_ms"] if row["verdict"] == Verdict.CORRECT else None
        score = 0.0 if first is None or latency_ms is None or row["history"] else first / latency_ms
        yield {
            "round": row["round"],
            "status": _attempt_status(row, bests, reverted),
            "latency_ms": latency_ms or 0.0,
            "score": score,
            "plan": (row["title"] or row["note"] or "")[:_PLAN],
            "error": (quotable_attempt_error(row) or row["error_code"] or "")[:_ERROR],
            "profile": _profile_counters(reader, row["profile"], known),
            "candidate": row["candidate"],
            "parent": row["parent"],
            "technique": row["technique"],
            "author": row["author"],
            "predicted": None if row["predicted"] is None else bool(row["predicted"]),
            "verdict": row["verdict"],
            "error_code": row["error_code"],
            "decision": row["decision"],
            "reason": row["reason"],
            "speedup": row["speedup"],
            "expected_speedup": row["predicted_speedup"],
        }


def _attempt_status(row: dict[str, Any], bests: set[str], reverted: set[str]) -> str:
    if row["candidate"] in reverted:
        return REVERTED
    if row["verdict"] == Verdict.CORRECT and row["reason"] != "refuted":
        return IMPROVED if row["candidate"] in bests else SAME
    return WRONG if row["verdict"] in (Verdict.CORRECT, Verdict.INCORRECT) else BROKEN


def _profile_counters(reader: LogReader, digest: str | None, known: Sequence[str]) -> dict[str, float]:
    """Return the counters of a profile that are `known`; none if the log has lost them."""
    try:
        counters = parse_counters(reader.get_blob(digest)) if digest else {}
    except (BlobMissing, ValueError):
        return {}
    return {name: counters[name] for name in known if name in counters}


def _memory_json(reader: LogReader, run: str, state: RunState) -> str:
    """Return the run's optimisation memory; each entry has a title besides what `experience_files` writes."""
    tags = _problem_tags(reader, state)
    found = [one for one in state.memory if one.summary.strip()]
    told = [export_experience(one, state, origin=run, tags=tags) for one in found]
    rows = [
        {"title": row["summary"][:_TITLE], **row}
        for row in json.loads(experience_files.render_experiences(told, reader))
    ]
    return json.dumps(rows, indent=2) + "\n"


def _problem_tags(reader: LogReader, state: RunState) -> ProblemTags:
    """Return the tags of the run's problem; if the problem cannot be read, the operators that its kernel
    calls.
    """
    import seeds

    first = state.initial.source if state.initial is not None else state.kernel
    kernel = "" if first is None else reader.get_blob(first).decode(errors="replace")
    files = {path: reader.get_blob(digest) for path, digest in state.problem.files.items()}
    try:
        spec = seeds.build_problem(files).spec
    except seeds.SeedsError:
        called = tuple(sorted(collect_operators(kernel, state.config.target)))
        return ProblemTags(target=state.config.target, operators=called, dtypes=(), extents=())
    return describe_setting(spec, state.config.size, state.config.target, kernel).tags
