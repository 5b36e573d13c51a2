"""The problems to optimise: folders under `problems/` with spec, NumPy reference and initial kernel.

This room loads problems, checks their specs and draws their inputs from seeds. Judging a kernel is the job of
`remote`, simulating one that of a target. Problem folders are data and are never on `sys.path`. Open
`problem.py` first.
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
