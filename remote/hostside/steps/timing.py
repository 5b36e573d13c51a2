"""Step `benchmark`: one round of timing on one device core, with several kernels taking turns.

Payload: `artefacts` (keys of compiled kernels: a candidate and what it is compared with), `key`, `spec`,
`set` and `shapes` as for `execute`, `warmups`, `runs`. Answer: per kernel its samples in milliseconds, in the
order in which they were taken; or the `error` of a kernel that failed. Home does all statistics.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any, Sequence

from remote.hostside import devices
from remote.hostside.steps import compiling, drawing, libraries
from remote.hostside.task import StepTask


def run(folder: Path) -> None:
    """Take the samples, alternating between kernels. A `dry` round is for a device that needs no inputs."""
    task = StepTask(folder)
    libraries.import_archives(task)
    payload, spec = task.payload, drawing.ResolvedSpec(task.payload["spec"])
    dry = bool(payload.get("dry"))
    inputs = [] if dry else drawing.load_inputs(drawing.draw_inputs(task, spec, payload["set"]), spec)
    try:
        task.write_answer({"samples_ms": _take_samples(task, inputs, dry=dry), "core": task.core})
    except devices.KernelFaultError as fault:
        task.write_answer({"error": fault.told})


def _take_samples(task: StepTask, inputs: Sequence[Any], *, dry: bool) -> list[list[float]]:
    """Return the samples of each kernel, in milliseconds.

    Raises:
        devices.KernelFaultError: one of them failed.
    """
    payload = task.payload
    samples: list[list[float]] = [[] for _ in payload["artefacts"]]
    with contextlib.ExitStack() as stack:
        loaded = [
            stack.enter_context(devices.open_kernel(task, compiling.find_artefact(task, key)))
            for key in payload["artefacts"]
        ]
        for device in () if dry else loaded:
            device.run([array.reshape(shape) for array, shape in zip(inputs, payload["shapes"])])
            device.time_runs(payload["warmups"], 0)
        for _ in range(payload["runs"]):
            for device, own in zip(loaded, samples):
                own.extend(device.time_runs(0, 1))
    return samples
