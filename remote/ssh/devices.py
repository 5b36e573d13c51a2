"""How home uses each kind of device that hosts have: compiles kernels and judges times.

A target brings the kinds that its hosts may report (`HostParts` of `targets.base`).
"""

from __future__ import annotations

from typing import Protocol, cast

from remote.evaluation_context import EvaluationContext
from remote.judge.job import JudgeOutcome
from remote.judge_service import JudgeService
from remote.ssh.device_facts import DeviceFacts
from remote.ssh.steps import CompiledKernel, EvaluationSteps
from targets.base import import_part
from targets.registry import find_device


class HostDevice(Protocol):
    """One kind of device, on one host."""

    async def compile_kernel(
        self, steps: EvaluationSteps, run: EvaluationContext
    ) -> CompiledKernel | JudgeOutcome:
        """Compile the kernel; return the verdict where that fails."""
        ...

    async def measure_kernel(
        self, steps: EvaluationSteps, run: EvaluationContext, compiled: CompiledKernel, outcome: JudgeOutcome
    ) -> JudgeOutcome:
        """Return the outcome for a correct kernel, with its time and profile."""
        ...

    async def sample_times(
        self,
        steps: EvaluationSteps,
        run: EvaluationContext,
        compiled: CompiledKernel,
        *,
        core: int | None = None,
    ) -> tuple[float, ...]:
        """Return one round of samples, in milliseconds; `core` is the core to wait for first.

        Raises:
            KernelFailedError: the device did not accept the kernel.
        """
        ...


def create_device(facts: DeviceFacts, judge: JudgeService) -> HostDevice:
    """Return the object that uses the device of a host."""
    part = find_device(facts.device_kind)[1].home
    return cast("HostDevice", import_part(part)(facts, judge))
