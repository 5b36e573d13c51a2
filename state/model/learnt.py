"""What runs hand on to later runs: sequences of changes that paid, and what they are alike by."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, JsonValue

from state.model.base import Digest, Frozen
from state.model.search import Step

Factor = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Tags(Frozen):
    """What problems, and the kernels that runs begin with, are compared by; none of it is a name.

    `operators` are the instructions of the initial kernel and the functions that they apply, sorted.
    `dtypes` are those of the inputs, sorted; `extents` the logarithms to base 2 of the problem's dimensions,
    rounded, the largest first.
    """

    target: str
    operators: tuple[str, ...]
    dtypes: tuple[str, ...]
    extents: tuple[int, ...]


class Leg(Frozen):
    """Steps that were carried out on the kernel `source`, one after the other, and judged together.

    `speedup` is what they came to as judged; the speed-ups of the steps are what was predicted of each.
    """

    source: Digest
    steps: tuple[Step, ...] = Field(min_length=1)
    speedup: Factor


class LearntSequence(Frozen):
    """What led from the kernel that a run began with to its best, leg by leg, and where that is to be seen.

    At `run_seq` of `run` the best kernel was kept. `arguments` are what its kernels are called with: shape
    and data type of an array, numbers as they are. `speedup` is that of all legs together.
    """

    run: str
    run_seq: int = Field(ge=1)
    problem: str
    tags: Tags
    arguments: tuple[JsonValue, ...]
    speedup: Factor
    legs: tuple[Leg, ...] = Field(min_length=1)

    @property
    def place(self) -> str:
        """Where the kernel was kept that it led to, as RUN@SEQ."""
        return f"{self.run}@{self.run_seq}"

    @property
    def steps(self) -> tuple[Step, ...]:
        """All steps, in order."""
        return tuple(step for leg in self.legs for step in leg.steps)
