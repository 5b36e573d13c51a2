"""What home makes of each kind of device that hosts have: how kernels are compiled, how times are judged.

A target brings the kinds that its hosts may report (`targets.base.Parts.devices`).
"""

from __future__ import annotations

from typing import Protocol, cast

from remote.asked import Run
from remote.judge.job import Outcome
from remote.local import LocalEvaluator
from remote.ssh.facts import DeviceFacts
from remote.ssh.steps import Compiled, Steps
from targets.base import import_part
from targets.registry import load_families


class Device(Protocol):
    """One kind of device, on one host."""

    async def compile(self, steps: Steps, run: Run) -> Compiled | Outcome:
        """Have the kernel compiled; the verdict where it cannot be."""
        ...

    async def timed(self, steps: Steps, run: Run, compiled: Compiled, outcome: Outcome) -> Outcome:
        """Return the outcome on a correct kernel, with its time and profile."""
        ...

    async def clock(
        self, steps: Steps, run: Run, compiled: Compiled, *, core: int | None = None
    ) -> tuple[float, ...]:
        """Return one round of samples, in milliseconds; `core` is the one to wait for first.

        Raises:
            KernelFailedError: the device did not take the kernel.
        """
        ...


def of(facts: DeviceFacts, local: LocalEvaluator) -> Device:
    """Return how the device of a host is used."""
    part = next(
        target.parts.devices[facts.device_kind]
        for target in load_families()
        if facts.device_kind in target.parts.devices
    )
    return cast("Device", import_part(part)(facts, local))
