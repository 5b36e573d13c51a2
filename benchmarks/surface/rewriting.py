"""What the rewrite engine comes to on a workload, as `benchmarks/search.py` runs it.

It begins at the kernel that a problem gives; for a workload that is no problem, at the lowering of its
default knobs.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from agentctl.bench.runs import BenchJob, JobBudget, run_job
from benchmarks.surface.workloads import Workload
from targets.nki.knobs.tuning.problem import FULL, problem_files

CANDIDATES = 100
"""Kernels that are judged at most, as many as `benchmarks/search.py` has judged unless told."""

KEPT = ("initial_ms", "best_ms", "looked_at", "evaluated", "seconds", "in_time")


def rewritten(workload: Workload, target: str, minutes: float) -> dict[str, Any]:
    """The first and the best kernel of one run, and what it took.

    Raises:
        RuntimeError: the run left no result.
    """
    with as_problem(workload, target) as problem:
        found = run_job(BenchJob(problem, FULL, target, seed=0), JobBudget(CANDIDATES, minutes))
    return {name: found[name] for name in KEPT}


@contextmanager
def as_problem(workload: Workload, target: str) -> Iterator[str]:
    """The problem that a workload is, by its name, or else by a folder that is there meanwhile."""
    if isinstance(workload.shapes, str):
        yield workload.shapes
        return
    with TemporaryDirectory(prefix="workload-") as folder:
        for name, data in problem_files(workload.graph(target), workload.reference).items():
            Path(folder, name).write_bytes(data)
        yield folder
