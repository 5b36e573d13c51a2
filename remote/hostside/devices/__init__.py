"""The devices that run kernels on a host: the vendor's, or a simulator where there is no SDK.

A device compiles a kernel in a jail, and runs the result without any of the kernel's Python. The payload
names the device (`device`), as the probe found it. Devices are modules of targets, which the archive brings
along (`installed.py`). Each has `probe_device`, `compile_kernel` and `open_device`, and may have:

- `list_cores()`: the numbers of the cores that can be leased; none where there is no device;
- `CORE_VARIABLE`: the environment variable that shows a step its core only;
- `PACKAGES`: the packages whose versions matter;
- `profile_kernel(task, artefact)`: the profiler's name and its summary as printed.
"""

from __future__ import annotations

import contextlib
import importlib
from pathlib import Path
from typing import Any, Iterator, Mapping, Sequence

from remote.hostside import installed
from remote.hostside.task import StepTask


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


def probe_device(kind: str) -> dict[str, Any]:
    """Return the facts about a kind of device here, and in words what is `lacking`."""
    found: dict[str, Any] = _import_device(kind).probe_device()
    return found


def profile_kernel(task: StepTask, artefact: Path) -> tuple[str, str]:
    """Return the profiler's name and its summary as printed.

    Raises:
        OSError: there is no profiler, or it failed.
    """
    tool, summary = _load_device_module(task).profile_kernel(task, artefact)
    return tool, summary


def package_names() -> list[str]:
    """Return the packages whose versions matter to the devices."""
    return [name for kind in installed.DEVICES for name in getattr(_import_device(kind), "PACKAGES", ())]


def list_cores() -> list[int]:
    """Return the numbers of the device cores of this machine; empty without a device."""
    for kind in installed.DEVICES:
        cores: list[int] = getattr(_import_device(kind), "list_cores", list)()
        if cores:
            return cores
    return []


def core_variables() -> list[str]:
    """Return the environment variables that show a step its core only."""
    found = [getattr(_import_device(kind), "CORE_VARIABLE", "") for kind in installed.DEVICES]
    return [name for name in found if name]


def _load_device_module(task: StepTask) -> Any:
    return _import_device(task.payload["device"])


def _import_device(kind: str) -> Any:
    if kind not in installed.DEVICES:
        raise ValueError("no device %r; there are %s" % (kind, ", ".join(sorted(installed.DEVICES))))
    return importlib.import_module(installed.DEVICES[kind])
