"""Finds instructions that read what the previous instruction of the same engine wrote, and must wait for it.

An engine is a pipeline: instructions start one behind another, but one that reads the previous result waits
until that result has left the pipeline. Instructions longer than the pipeline are not affected.
"""

from __future__ import annotations

import numpy as np

from nki_sim.operators.model import ON_CHIP
from nki_sim.program.ir import Program
from nki_sim.targets import Target

PIPELINES = ("vector", "scalar", "gpsimd")
"""Engines with a documented interval; products that accumulate in PSUM follow each other without delay."""


def pipeline_ns(engine: str, target: Target) -> float:
    """Time from an instruction's start until an instruction that reads its result can start on the same
    engine.
    """
    return target.dependent_cycles / target.clock_ghz(engine) if engine in PIPELINES else 0.0


class ChipResults:
    """The on-chip tensors that each instruction writes and reads."""

    def __init__(self, program: Program) -> None:
        cells = program.cells
        on_chip = [item.buffer in ON_CHIP for item in program.operands]
        self._first: list[int] = cells.first.tolist()
        self._tensor: list[int] = cells.tensor.tolist()
        chip = np.array(on_chip, dtype=bool)[cells.operand] if on_chip else np.zeros(0, dtype=bool)
        self._writes: list[bool] = (chip & cells.writes).tolist()
        self._reads: list[bool] = (chip & cells.reads).tolist()

    def is_read_by(self, number: int, follower: int) -> bool:
        """Whether instruction `follower` reads a tensor that instruction `number` writes."""
        written = self._tensors_of(number, self._writes)
        return bool(written) and not written.isdisjoint(self._tensors_of(follower, self._reads))

    def _tensors_of(self, number: int, chosen: list[bool]) -> set[int]:
        places = range(self._first[number], self._first[number + 1])
        return {self._tensor[place] for place in places if chosen[place]}
