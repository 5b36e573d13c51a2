"""Step `benchmark`: one round of timing on one NeuronCore, several kernels taking turns.

Payload: `artefacts` (keys of compiled kernels; a candidate and what it is compared with), `key`, `spec`,
`set` and `shapes` as for `execute`, `warmups`, `runs`. Answer: per kernel its samples in milliseconds, in
the order in which they were taken. Nothing is summed up here: home does that.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from remote.hostside import devices
from remote.hostside.steps import compiling, drawing, libraries
from remote.hostside.steps.task import Task


def run(folder: Path) -> None:
    """Take the samples: kernel by kernel, run by run. A `dry` round is of a device that needs no inputs."""
    task = Task(folder)
    libraries.use(task)
    payload, spec = task.payload, drawing.Spec(task.payload["spec"])
    dry = bool(payload.get("dry"))
    inputs = [] if dry else drawing.load(drawing.drawn(task, spec, payload["set"]), spec)
    samples: list[list[float]] = [[] for _ in payload["artefacts"]]
    with contextlib.ExitStack() as stack:
        loaded = [
            stack.enter_context(devices.opened(task, compiling.artefact(task, key)))
            for key in payload["artefacts"]
        ]
        for device in () if dry else loaded:
            device.run([array.reshape(shape) for array, shape in zip(inputs, payload["shapes"])])
            device.times(payload["warmups"], 0)
        for _ in range(payload["runs"]):
            for device, own in zip(loaded, samples):
                own.extend(device.times(0, 1))
    task.answer({"samples_ms": samples, "core": task.core})
