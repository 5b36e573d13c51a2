"""The result of compilation: the instructions that run, and the traced instruction behind each."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nki_sim.program.ir import Ints, Program

TRACED, SAVE, RELOAD, LOAD_AGAIN = range(4)
"""Origin of an instruction: the kernel, saving a tile, reading it back, or repeating a load."""


@dataclass(frozen=True, eq=False)
class CompiledProgram:
    """A program as its compiler leaves it.

    `program` is what runs. `sources[i]` is the traced instruction that instruction i stands for or, for
    traffic that the compiler adds, the one that needed it. `origins[i]` says which of the two it is.
    """

    program: Program
    sources: Ints
    origins: Ints


def compile_unchanged(program: Program) -> CompiledProgram:
    """Wrap a program that runs as it was traced."""
    count = len(program)
    return CompiledProgram(program, np.arange(count), np.full(count, TRACED))
