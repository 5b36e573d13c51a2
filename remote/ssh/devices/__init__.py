"""What home makes of each kind of device that hosts have: how kernels are compiled, how times are judged.

`simulated` stands in where a host has no SDK; `neuron` is the vendor's. Open `simulated.py` first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from remote.asked import Run
from remote.judge.job import Outcome
from remote.local import LocalEvaluator
from remote.ssh.facts import DeviceFacts
from remote.ssh.steps import Compiled, Steps


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
    return _KINDS[facts.device_kind](facts, local)


def _simulated(facts: DeviceFacts, local: LocalEvaluator) -> Device:
    from remote.ssh.devices.simulated import Simulated

    return Simulated(local)


def _neuron(facts: DeviceFacts, local: LocalEvaluator) -> Device:
    from remote.ssh.devices.neuron import Neuron

    return Neuron(facts, local)


_KINDS: dict[str, Callable[[DeviceFacts, LocalEvaluator], Device]] = {
    "nki_sim": _simulated,
    "neuron": _neuron,
}
