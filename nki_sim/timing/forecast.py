"""A prediction of one kernel: the traced program, what its compiler makes of it, and when that runs."""

from __future__ import annotations

from dataclasses import dataclass

from nki_sim.collecting import rarely_collecting
from nki_sim.compiler.compile import compiled
from nki_sim.compiler.compiled import Compiled
from nki_sim.errors import KernelError
from nki_sim.program.ir import Program
from nki_sim.targets import Target
from nki_sim.timing.schedule import Timeline, schedule


@dataclass(frozen=True, eq=False)
class Forecast:
    """What profile, explanation, uncertainty and comparison are functions of. All times are predicted."""

    traced: Program
    compiled: Compiled
    target: Target
    timeline: Timeline

    @property
    def latency_ms(self) -> float:
        """Predicted time of the whole kernel."""
        return self.timeline.latency_ms


def forecast(program: Program, target: Target) -> Forecast:
    """Compile a traced program and schedule what runs.

    Loops whose rounds data decide are timed as one round, see `untimed`.

    Raises:
        ScheduleError: the program does not fit on the chip.
    """
    with rarely_collecting():
        made = compiled(program, target)
    return Forecast(program, made, target, schedule(made.program, target))


def untimed(program: Program) -> KernelError | None:
    """Why the model cannot say how long a program takes, with the line of the loop; None when it can."""
    if not program.loops:
        return None
    text = "data decide how often a loop runs, and with it how long the kernel takes"
    hint = "give the loop bounds that are known from the shapes"
    return KernelError("latency_unknown", text, int(program.lines[min(program.partners)]), hint)
