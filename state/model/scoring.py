"""End-to-end scoring: a user's command scores a program with a run's kernel swapped in."""

from __future__ import annotations

import re
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, StringConstraints, model_validator

from state.model.base import FrozenModel

KERNEL_PLACEHOLDER = "{kernel}"
"""In an argument of the command: stands for the path of the kernel's file."""

Argument = Annotated[str, StringConstraints(min_length=1, max_length=4096)]


def _validate_pattern(text: str) -> str:
    try:
        found = re.compile(text)
    except re.error as error:
        raise ValueError(f"not a regular expression: {error}") from error
    if found.groups != 1:
        raise ValueError("it must have one group, around the number")
    return text


MetricPattern = Annotated[
    str, StringConstraints(min_length=1, max_length=500), AfterValidator(_validate_pattern)
]
JsonPath = Annotated[
    str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*((\.[A-Za-z0-9_]+)|(\[\d+\]))*$", max_length=200)
]


class ScoreConfig(FrozenModel):
    """A command that scores a kernel inside the user's own program; without a command there is no score.

    It runs on the host with the user's rights, and so does the kernel's Python, outside of any jail; only
    kernels that the judge found correct get there. The metric is what `pattern` finds in the output (its one
    group, each match is a sample), or `json_path` (a number or a list of numbers, in the last JSON object
    printed). With neither, it is the command's run time in milliseconds.
    """

    command: tuple[Argument, ...] = Field(
        default=(), max_length=64, description="program and arguments; {kernel} stands for the kernel's file"
    )
    folder: str | None = Field(
        default=None, min_length=1, max_length=4096, description="folder on the host that the command runs in"
    )
    pattern: MetricPattern | None = Field(
        default=None, description="regular expression whose one group is the number, in the command's output"
    )
    json_path: JsonPath | None = Field(
        default=None,
        description="where the number, or a list of them, is in the JSON that the command prints",
    )
    better: Literal["lower", "higher"] = Field(
        default="lower", description="which numbers are better: a latency's are lower, a throughput's higher"
    )
    use: Literal["gate", "objective"] = Field(
        default="gate",
        description="gate: the winner must reach run.score.least_ratio; objective: it replaces the latency",
    )
    runs: int = Field(default=3, ge=1, le=100, description="runs of each kernel, in turns with the baseline")
    least_ratio: float = Field(
        default=1.0, gt=0, le=100, description="gate: how many times as good as the first kernel it must be"
    )
    timeout_seconds: float = Field(
        default=600.0, gt=0, le=86_400, description="how long one run of the command may take"
    )

    @model_validator(mode="after")
    def _require_one_metric(self) -> Self:
        if self.pattern is not None and self.json_path is not None:
            raise ValueError("set either pattern or json_path")
        if self.command and not any(KERNEL_PLACEHOLDER in argument for argument in self.command):
            raise ValueError(
                f"no argument of command has {KERNEL_PLACEHOLDER}: no kernel would be swapped in"
            )
        return self
