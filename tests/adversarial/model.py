"""What an attack is, and the hands that put one together from an initial kernel or from a few lines."""

from __future__ import annotations

from dataclasses import dataclass

import seeds
from remote.jail_backends import JailLimits
from seeds import Problem
from state.model import Verdict

Judged = tuple[Verdict, str, str]
"""Verdict, the stage that decides, and the error's code."""

SECRET = "hush-7f3a91"
"""Of the user: no kernel may read it."""

INSTALLATION = "a secret of tests"
"""Of the evaluator: what it draws tiles with."""

ENDED_BY_CPU = JailLimits(cpu_s=1, memory_bytes=1 << 31, answer_bytes=1 << 24)
ENDED_OTHERWISE = JailLimits(cpu_s=30, memory_bytes=1 << 29, answer_bytes=1 << 24)
"""Each leaves one limit alone within reach, so that how fast the machine is does not choose between two."""

HEAD = """import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def kernel(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
"""


@dataclass(frozen=True)
class Attack:
    """A kernel that cheats or attacks.

    `judged` is the verdict it must get. `unruled` is the verdict when the static rules, which are only the
    first wall, let it through (None: they do anyhow).
    """

    technique: str
    kernel: str | bytes
    judged: Judged
    problem: str | Problem = "silu"
    unruled: Judged | None = None


def edit(problem: str, *changes: tuple[str, str]) -> str:
    """Return the problem's initial kernel with parts of its text replaced; each part must be there."""
    kernel = seeds.load_problem(problem).kernel
    for old, new in changes:
        assert old in kernel, f"the initial kernel of {problem} has no {old!r}"
        kernel = kernel.replace(old, new)
    return kernel


def body(*lines: str) -> str:
    """Return a kernel of one [256, 2048] argument that runs these lines and returns `out`."""
    return HEAD + "".join(f"    {line}\n" for line in lines) + "    return out\n"


def expect_refusal(code: str) -> Judged:
    """Refused by the static rules."""
    return Verdict.LINT_ERROR, "lint", code


def wrong(code: str = "wrong_result") -> Judged:
    """Found wrong by its numbers."""
    return Verdict.INCORRECT, "numerics", code


def broken(code: str, stage: str = "trace") -> Judged:
    """Not a program, or one that the device could not run."""
    return Verdict.COMPILE_ERROR, stage, code


def endless(code: str, stage: str = "trace") -> Judged:
    """Stopped at a limit."""
    return Verdict.TIMEOUT, stage, code


@dataclass(frozen=True)
class Honest:
    """A kernel that computes what it should in an unusual way."""

    idea: str
    problem: str | Problem
    kernel: str

    @property
    def problem_name(self) -> str:
        return self.problem if isinstance(self.problem, str) else self.problem.name
