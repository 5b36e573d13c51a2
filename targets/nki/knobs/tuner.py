"""What `agentctl tune` asks of the knob surface: a workload's file as a problem, and a run's files for
people."""

from __future__ import annotations

from targets.nki.knobs.export.export import check_root, export
from targets.nki.knobs.export.figures import Scale
from targets.nki.knobs.tuning.workload import load, problem_of

__all__ = ["Scale", "check_root", "export", "load", "problem_of"]
