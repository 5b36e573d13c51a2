"""The functions that `agentctl tune` calls: read a workload's file as a problem, export a run's files."""

from __future__ import annotations

from targets.nki.knobs.export.export import check_root, export_run
from targets.nki.knobs.export.figures import PeakScale
from targets.nki.knobs.tuning.workload import (
    add_graph,
    load_workload,
    workload_problem,
    workload_reference,
)

__all__ = [
    "PeakScale",
    "add_graph",
    "check_root",
    "export_run",
    "load_workload",
    "workload_problem",
    "workload_reference",
]
