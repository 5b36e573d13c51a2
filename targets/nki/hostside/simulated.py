"""The simulator as a host's device: traces kernels in a jail, computes their outputs, predicts their time.

All times are predictions, so repeated samples are equal. The probe reports that this device is simulated.
"""

from __future__ import annotations

import resource
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from remote.hostside.devices import KernelFaultError, LoadedKernel
from remote.hostside.devices.jail import describe_result, run_in_jail
from remote.hostside.task import StepTask


def probe_device() -> dict[str, Any]:
    """Return that nothing is lacking: the simulator comes with each job."""
    return {"lacking": []}


def compile_kernel(task: StepTask, libraries: Mapping[str, Path], to: Path) -> dict[str, Any]:
    """Trace the kernel; the artefact is the tracer's reply, which may also hold the kernel's error."""
    from remote.jail_backends import JailedProgram, JailLimits

    program = JailedProgram(
        "nki_sim.tracer",
        ("--out-fd",),
        packages=(libraries["nki_sim.zip"] / "nki_sim",),
        site_packages=True,  # NumPy, for kernels that import it
        fills_memory=True,
        limits=JailLimits(**task.payload["limits"]),
        hash_seed=task.payload.get("hash_seed"),
    )
    result = run_in_jail(program, task.payload["request"].encode(), task.payload.get("strength"))
    to.write_bytes(result.answer)
    return describe_result(result)


def open_device(task: StepTask, artefact: Path) -> LoadedKernel:
    """Return the simulator with a traced program, which is checked as it is read."""
    most = int(task.payload["memory_bytes"])
    resource.setrlimit(resource.RLIMIT_AS, (most, most))  # the same limit as for home's own workers
    return _SimulatedKernel(artefact.read_bytes(), task.payload["target"], task.payload["work"])


class _SimulatedKernel(LoadedKernel):
    def __init__(self, reply: bytes, target: str, work: int) -> None:
        from nki_sim import protocol

        self._program = protocol.parse_reply(reply)
        self._target, self._work = target, work
        self._ms: float | None = None

    def run(self, inputs: Sequence[Any]) -> Sequence[Any]:
        from nki_sim.errors import InputError, KernelError
        from nki_sim.running import numerics
        from nki_sim.running.work import WorkAllowance

        try:
            return numerics.run(self._program, list(inputs), allowance=WorkAllowance(self._work))
        except (KernelError, InputError) as error:
            raise KernelFaultError(
                {
                    "type": type(error).__name__,
                    "code": error.code,
                    "message": getattr(error, "message", str(error)),
                    "line": getattr(error, "line", 0),
                    "hint": getattr(error, "hint", ""),
                }
            ) from error
        except MemoryError as error:
            message = "the kernel's tensors need more memory than there is"
            raise KernelFaultError(
                {"type": "MemoryError", "code": "out_of_memory", "message": message, "line": 0, "hint": ""}
            ) from error

    def time_runs(self, warmups: int, runs: int) -> list[float]:  # noqa: ARG002  a prediction needs no warm-up
        from nki_sim import targets
        from nki_sim.timing.forecast import forecast_program

        if runs and self._ms is None:
            self._ms = forecast_program(self._program, targets.load(self._target)).latency_ms
        return [self._ms] * runs if self._ms is not None else []
