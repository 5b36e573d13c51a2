"""A run in the files of the nki-kernel-agent design: checkpoints, experiments, optimisation memory.

`checkpoints/best_r<round>_<time>.py` are the kernels that were the best, one after the other,
`experiments.jsonl` has a line for each attempt, and `optimization_memory/rewrites.json` the experiences of
the run, as `agentctl memory import` takes them. What that design's readers look for has its name and its
meaning there; keys beside these say more.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from typing import Any

from agent_core.sequences import operators, setting
from agentctl.views.path import Improvement, Path, path_of
from daemon import rewrites
from daemon.profiles import counters_of
from state.errors import BlobMissing
from state.fold import RunState
from state.model import METRICS, Tags, Verdict
from state.quotable import quotable
from state.reader import LogReader
from state.records import Progress
from state.remembered import handed_on

NAME = "nki-kernel-agent"

IMPROVED, SAME = "improved", "no_improvement"
WRONG, BROKEN, REVERTED = "correctness_fail", "compile_fail", "divergence_revert"
"""The design's words for what became of an attempt."""

_TITLE, _PLAN, _ERROR = 50, 100, 500
"""Characters that the design keeps of a title, of a plan, of an error."""


def files(reader: LogReader, run: str, *, progress: Progress | None = None) -> dict[str, bytes]:
    """Return a run as files by path; `progress` is told of events, then of attempts.

    Raises:
        StreamUnknown: there is no such run.
        BlobMissing: the log has lost a kernel.
    """
    state, path = reader.state(run), path_of(reader, run, progress=progress)
    lines = [json.dumps(line) + "\n" for line in _experiments(reader, run, path, progress)]
    return {
        **{f"checkpoints/{name}": reader.blob(one.source) for name, one in _checkpoints(path)},
        "experiments.jsonl": "".join(lines).encode(),
        "optimization_memory/rewrites.json": _memory(reader, run, state).encode(),
    }


def _checkpoints(path: Path) -> Iterator[tuple[str, Improvement]]:
    taken: Counter[str] = Counter()
    for one in path.bests:
        stamp = datetime.fromisoformat(one.time).strftime("%Y%m%d_%H%M%S")
        name = f"best_r{one.round}_{stamp}"
        taken[name] += 1
        yield f"{name}{'' if taken[name] == 1 else f'_{taken[name]}'}.py", one


def _experiments(
    reader: LogReader, run: str, path: Path, progress: Progress | None
) -> Iterator[dict[str, Any]]:
    """Yield a line for each attempt at a kernel, in order; the initial kernel is none."""
    bests = {one.candidate for one in path.bests}
    reverted = {one.candidate for one in path.taken_back if one.kind == "reverted"}
    first = path.bests[0].latency.ms if path.bests else None
    rows = reader.attempts(run)
    for number, row in enumerate(rows):
        if progress is not None:
            progress(number, len(rows))
        if row["round"] == 0:
            continue
        latency_ms = row["latency_ms"] if row["verdict"] == Verdict.CORRECT else None
        score = 0.0 if first is None or latency_ms is None or row["history"] else first / latency_ms
        yield {
            "round": row["round"],
            "status": _status(row, bests, reverted),
            "latency_ms": latency_ms or 0.0,
            "score": score,
            "plan": (row["title"] or row["note"] or "")[:_PLAN],
            "error": (quotable(row) or row["error_code"] or "")[:_ERROR],
            "profile": _profile(reader, row["profile"]),
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


def _status(row: dict[str, Any], bests: set[str], reverted: set[str]) -> str:
    if row["candidate"] in reverted:
        return REVERTED
    if row["verdict"] == Verdict.CORRECT and row["reason"] != "refuted":
        return IMPROVED if row["candidate"] in bests else SAME
    return WRONG if row["verdict"] in (Verdict.CORRECT, Verdict.INCORRECT) else BROKEN


def _profile(reader: LogReader, digest: str | None) -> dict[str, float]:
    """Return the counters that the design asks profilers for; none where the log has lost them."""
    try:
        counters = counters_of(reader.blob(digest)) if digest else {}
    except (BlobMissing, ValueError):
        return {}
    return {name: counters[name] for name in METRICS if name in counters}


def _memory(reader: LogReader, run: str, state: RunState) -> str:
    """Return the run's optimisation memory; each entry has a title beside what `rewrites` writes."""
    tags = _tags(reader, state)
    found = [one for one in state.memory if one.summary.strip()]
    told = [handed_on(one, state, origin=run, tags=tags) for one in found]
    rows = [{"title": row["summary"][:_TITLE], **row} for row in json.loads(rewrites.written(told, reader))]
    return json.dumps(rows, indent=2) + "\n"


def _tags(reader: LogReader, state: RunState) -> Tags:
    """Return what the experiences are found by; of a problem that cannot be read, what its kernel calls."""
    import seeds

    kernel = reader.blob(state.kernel).decode(errors="replace")
    files = {path: reader.blob(digest) for path, digest in state.problem.files.items()}
    try:
        spec = seeds.from_files(files).spec
    except seeds.SeedsError:
        called = tuple(sorted(operators(kernel, state.config.target)))
        return Tags(target=state.config.target, operators=called, dtypes=(), extents=())
    return setting(spec, state.config.size, state.config.target, kernel).tags
