"""The devices of hosts that run NKI kernels: the vendor's device, or the simulator as a stand-in.

`simulated` is used where a host has no SDK; `neuron` is the vendor's device, with its profiles. Open
`simulated.py` first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from remote.judge_service import JudgeService
    from remote.ssh.device_facts import DeviceFacts
    from remote.ssh.devices import HostDevice


def open_simulated(facts: DeviceFacts, judge: JudgeService) -> HostDevice:
    """Return the stand-in for a host without the vendor's SDK."""
    del facts
    from targets.nki.hosts.simulated import SimulatedDevice

    return SimulatedDevice(judge)


def open_neuron(facts: DeviceFacts, judge: JudgeService) -> HostDevice:
    """Return the vendor's device."""
    from targets.nki.hosts.neuron import NeuronDevice

    return NeuronDevice(facts, judge)
