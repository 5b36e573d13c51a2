"""Results of benchmark runs: the file that holds them, their summary, and the rewrites that winners used."""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from agentctl.bench import arms
from agentctl.bench.runs import KERNEL_ONLY, BenchJob
from targets.base import PredictionError
from targets.registry import load_target, target_names

ResultRow = Mapping[str, Any]
RunResults = Mapping[str, ResultRow]
"""The result of each run, by `BenchJob.key`."""


def result_row(job: BenchJob, found: Mapping[str, Any]) -> dict[str, Any]:
    """Return the stored row of a run: which run it was, and its results.

    `own_kernel` says whether it started from a built-in problem's own kernel alone. If it started from a
    kernel file, `problem` is that file's name.
    """
    which = {"problem": job.name, "size": job.size, "target": job.target, "seed": job.seed, "arm": job.arm}
    is_own = job.starts == KERNEL_ONLY and not (job.kernel or job.is_path)
    return {**which, "starts": job.starts, "own_kernel": is_own, **found}


def starts_of(row: ResultRow) -> str:
    """Return what a run began with; older rows do not say it."""
    return str(row.get("starts", KERNEL_ONLY))


def read_results(path: Path | None) -> dict[str, ResultRow]:
    """Return the runs in a file; none if there is no file."""
    if path is None or not path.exists():
        return {}
    runs: dict[str, ResultRow] = json.loads(path.read_text(encoding="utf-8"))["runs"]
    return runs


def build_report(runs: RunResults) -> dict[str, Any]:
    """Return the content of the results file, including the runs."""
    return {
        "predicted": True,
        "model_error_percent": describe_errors({one["target"] for one in runs.values()}),
        "overall": summarize_results(runs.values()),
        "arms": arms.compare_arms(one for one in runs.values() if starts_of(one) == KERNEL_ONLY),
        "runs": runs,
    }


def write_results(path: Path | None, runs: RunResults) -> None:
    """Replace the file atomically, so that an interruption leaves the old or the new one."""
    if path is None:
        return
    new = path.with_name(f".{path.name}.new")
    new.write_text(json.dumps(build_report(runs), indent=1) + "\n", encoding="utf-8")
    new.replace(path)


def summarize_results(rows: Iterable[ResultRow]) -> dict[str, Any]:
    """Return geometric means of the beam's runs at full size, by target; None if there were none.

    Only runs from the built-in problems' own kernels count.
    """
    headline = [one for one in rows if (one["size"], one["arm"], one["own_kernel"]) == ("full", "beam", True)]
    made: dict[str, Any] = {}
    for target in target_names():
        mine = [one for one in headline if one["target"] == target]
        made[f"{target}_problems"] = len({one["problem"] for one in mine})
        for name in ("percent_of_peak", "percent_of_tight_bound", "speedup"):
            made[f"{target}_{name}"] = _geometric_mean(one[name] for one in mine)
        made[f"{target}_percent_of_model_bound"] = made[f"{target}_percent_of_tight_bound"]
        made[f"{target}_initial_percent_of_peak"] = _geometric_mean(
            100 * one["plain_bound_ms"] / one["initial_ms"] for one in mine
        )
    return made


def _geometric_mean(values: Iterable[float]) -> float | None:
    found = list(values)
    return statistics.geometric_mean(found) if found else None


def count_rewrites(rows: Iterable[ResultRow]) -> Counter[str]:
    """Return, for each rewrite of the engine, in how many lineages of the beam's winners it occurs,
    zeros included.
    """
    known = (name for target in target_names() for name in load_target(target).rewrites())
    counts = Counter(dict.fromkeys(known, 0))
    for one in rows:
        if one["arm"] == "beam":
            counts.update(set(one["techniques"]))
    return counts


def describe_errors(targets: Collection[str]) -> dict[str, dict[str, float] | None]:
    """Return, by target, how far predictions were from measurements; None where nothing was measured."""
    return {name: _describe_error(load_target(name).prediction_error) for name in sorted(targets)}


def _describe_error(error: PredictionError | None) -> dict[str, float] | None:
    if error is None:
        return None
    return {"median": error.median_percent, "worst": error.worst_percent, "kernels": error.kernels}
