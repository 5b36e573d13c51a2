"""The compiler of each namespace: the current one keeps what the kernel says, the legacy one rewrites it."""

from __future__ import annotations

from nki_sim.compiler.compiled import Compiled, unchanged
from nki_sim.program.ir import Program
from nki_sim.targets import Target


def compiled(program: Program, target: Target) -> Compiled:
    """The instructions that run on a target."""
    del target
    return unchanged(program)
