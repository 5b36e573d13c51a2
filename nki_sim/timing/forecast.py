"""Predicts one kernel: the traced program, what its compiler makes of it, and when that runs."""

from __future__ import annotations

from dataclasses import dataclass

from nki_sim.compiler.compiled_program import CompiledProgram
from nki_sim.compiler.pass_pipeline import compile_program
from nki_sim.errors import KernelError
from nki_sim.garbage_collection import rare_garbage_collection
from nki_sim.program.ir import Program
from nki_sim.targets import Target
from nki_sim.timing.schedule import Timeline, schedule


@dataclass(frozen=True, eq=False)
class Forecast:
    """A prediction; profile, explanation, uncertainty and comparison use it. All times are predicted."""

    traced: Program
    compiled: CompiledProgram
    target: Target
    timeline: Timeline

    @property
    def latency_ms(self) -> float:
        """Predicted time of the whole kernel."""
        return self.timeline.latency_ms


def forecast_program(program: Program, target: Target) -> Forecast:
    """Compile a traced program and schedule the result.

    Loops with a data-dependent number of iterations are timed as one iteration; see `unknown_latency_error`.

    Raises:
        ScheduleError: the program does not fit on the chip.
    """
    with rare_garbage_collection():
        made = compile_program(program, target)
    return Forecast(program, made, target, schedule(made.program, target))


def unknown_latency_error(program: Program) -> KernelError | None:
    """Why the model cannot predict a program's time, with the line of the loop; None if it can."""
    if not program.loops:
        return None
    text = "data decide how often a loop runs, and with it how long the kernel takes"
    hint = "give the loop bounds that are known from the shapes"
    return KernelError("latency_unknown", text, int(program.lines[min(program.loop_partners)]), hint)
