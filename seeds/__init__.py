"""The problems: a folder each under `problems/` with spec, NumPy reference and initial NKI kernel.

Here live the loader, the spec with its faults, and the inputs that seeds stand for. What does not live here:
judging a kernel (`remote`), simulating one (`nki_sim`). Problem folders are data and never on `sys.path`.
Open `problem.py` first.
"""

from __future__ import annotations

from seeds.errors import SeedsError, SpecError, UnknownProblemError, UnknownSizeError
from seeds.problem import Problem, build_problem, builtin_problems, load_problem
from seeds.spec import ArgumentSpec, InputSpec, ProblemSpec, ProblemWork

__all__ = [
    "ArgumentSpec",
    "InputSpec",
    "Problem",
    "ProblemSpec",
    "ProblemWork",
    "SeedsError",
    "SpecError",
    "UnknownProblemError",
    "UnknownSizeError",
    "build_problem",
    "builtin_problems",
    "load_problem",
]
