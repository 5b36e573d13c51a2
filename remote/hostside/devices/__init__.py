"""The devices that run kernels on a host: the vendor's, or the simulator where there is no SDK.

A device compiles a kernel in a jail, and runs the result without any of the kernel's Python. The payload
names the device (`device`), as the probe found it. To add one, write a module with `compile_kernel` and
`open_device` and add a line to `_DEVICES`. Open `simulated.py` first.
"""

from __future__ import annotations

import contextlib
import importlib
from pathlib import Path
from typing import Any, Iterator, Mapping, Sequence

from remote.hostside.task import StepTask

_DEVICES = {"nki_sim": "simulated", "neuron": "neuron"}


class KernelFaultError(Exception):
    """The kernel failed while it ran. `told` has `type`, `code`, `message`, `line` and `hint`."""

    def __init__(self, told: Mapping[str, Any]) -> None:
        super().__init__(str(told.get("message")))
        self.told = dict(told)


class LoadedKernel:
    """A compiled kernel that is loaded on a device."""

    def run(self, inputs: Sequence[Any]) -> Sequence[Any]:
        """Return the outputs for these arrays.

        Raises:
            KernelFaultError: the kernel failed.
        """
        raise NotImplementedError

    def time_runs(self, warmups: int, runs: int) -> list[float]:
        """Return the milliseconds of `runs` runs, after `warmups` untimed ones, on the last inputs."""
        raise NotImplementedError

    def close(self) -> None:
        """Release what the kernel holds."""


@contextlib.contextmanager
def open_kernel(task: StepTask, artefact: Path) -> Iterator[LoadedKernel]:
    """Load a compiled kernel on the core that the job has leased."""
    device: LoadedKernel = _load_device_module(task).open_device(task, artefact)
    try:
        yield device
    finally:
        device.close()


def compile_kernel(task: StepTask, libraries: Mapping[str, Path], to: Path) -> dict[str, Any]:
    """Compile a job's kernel, write the result to `to`, and return how the jailed program ended."""
    ended: dict[str, Any] = _load_device_module(task).compile_kernel(task, libraries, to)
    return ended


def _load_device_module(task: StepTask) -> Any:
    name = task.payload["device"]
    if name not in _DEVICES:
        raise ValueError("no device %r; there are %s" % (name, ", ".join(sorted(_DEVICES))))
    return importlib.import_module("remote.hostside.devices." + _DEVICES[name])
