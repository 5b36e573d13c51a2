"""Evaluates C kernels on this machine: compiles, runs and times them in the jail, and judges outputs at home.

A kernel is timed in turns with its parent, on the same inputs: its latency is
the parent's times the median ratio, so that drift and load of the machine cancel. A kernel that cannot be
told from its parent gets its parent's latency, and one that seems faster is measured a second time, which
counts.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from remote.evaluation_context import (
    EvaluationContext,
    rejected_outcome,
)
from remote.judge.comparison import describe_set
from remote.judge.job import JudgeOutcome
from remote.judge_service import JudgeService
from remote.registry import EvaluatorResources, EvaluatorSpec
from state.model import (
    Benchmark,
    ErrorInfo,
    Verdict,
)
from targets.c.compiler import BuiltKernel, KernelBuilder, find_compiler
from targets.c.foreign_runner import ForeignRunner
from targets.c.jailed.paired_times import Interval, compare_times
from targets.c.output_evaluator import OutputEvaluator
from targets.c.profile import describe_run
from targets.c.relations import find_broken_relation
from targets.c.runner import (
    ComparisonTask,
    ComputedOutputs,
    KernelFault,
    KernelRunner,
    TimingTask,
    have_same_outputs,
)
from targets.c.toolchain import HOST, CDevice
from targets.registry import load_target

UNSTABLE_RATIO = 0.25
"""Relative width of the interval of a median above which a kernel counts as unstable."""

_COUNTING_TASK = TimingTask(warmups=1, pairs=3, rounds=1)
"""Counts of instructions do not scatter, and emulators are slow."""
_TRIES = 3


@dataclass(frozen=True, slots=True)
class MeasuredKernel:
    """Times of a kernel in ns: its own, and its ratio to its parent if the two ran in turns. `counters` are
    what hardware counters say of one call.
    """

    time_ns: Interval
    ratio: Interval | None
    samples: int
    counters: Mapping[str, float] = field(default_factory=dict)


class UnsteadyError(Exception):
    """The times of a kernel scatter too much to say anything."""


class CpuEvaluator(OutputEvaluator):
    """Judges and measures kernels on a device, by default this machine's CPU; one kernel runs at a time."""

    def __init__(
        self,
        judge: JudgeService,
        *,
        task: TimingTask | None = None,
        device: CDevice = HOST,
        name: str = "cpu",
    ) -> None:
        super().__init__(judge)
        self.name = name
        self._device = device
        self._builder = KernelBuilder(judge.home, judge.strength, device.toolchain)
        foreign = ForeignRunner(judge.home, judge.strength, device) if device.toolchain.runner else None
        self._runner = KernelRunner(judge.strength, foreign)
        self._task = task or (TimingTask() if device.instruction_ns is None else _COUNTING_TASK)

    def toolchain(self) -> str:
        """Return compiler and device.

        Raises:
            InfrastructureError: no_compiler, no_runner.
        """
        return f"{find_compiler(self._device.toolchain).version}, {self._device.describe()}"

    async def build(self, run: EvaluationContext) -> BuiltKernel | JudgeOutcome:
        """Compile a kernel; return the verdict on one that does not compile.

        Raises:
            InfrastructureError: no_compiler, or the jail failed.
        """
        return await self._builder.build(run)

    async def compute(
        self, run: EvaluationContext, built: BuiltKernel, task: ComparisonTask
    ) -> ComputedOutputs:
        """Run a kernel on input sets, in order, until it fails on one.

        Raises:
            InfrastructureError: the jail failed.
        """
        return await self._runner.compute(built, run, task)

    async def check_relations(self, run: EvaluationContext, built: BuiltKernel) -> JudgeOutcome | None:
        """Return the verdict on a kernel that breaks a relation of the problem; None if it keeps them.

        Raises:
            InfrastructureError: the jail failed.
        """
        return await find_broken_relation(self._runner, run, built, secret=self._judge.references.secret)

    async def measure(
        self,
        run: EvaluationContext,
        built: BuiltKernel,
        outcome: JudgeOutcome,
        kept: Mapping[str, Sequence[bytes]],
    ) -> JudgeOutcome:
        """Time a correct kernel, in turns with its parent if that is known."""
        parent = await self._build_parent(run)
        try:
            found = await self._take_steady_times(run, built, parent, kept=kept)
            if isinstance(found, MeasuredKernel) and found.ratio is not None and found.ratio.high < 1:
                # A gain is believed when a second measurement shows it, and then that one counts.
                found = await self._take_steady_times(run, built, parent, kept=kept)
        except UnsteadyError as error:
            return rejected_outcome(Verdict.UNSTABLE, "benchmark", "unsteady", str(error))
        if isinstance(found, JudgeOutcome):
            return found
        counted = self._device.instruction_ns is not None
        benchmark = make_benchmark(found, run.request.base_ms, predicted=counted)
        work = run.problem.spec.minimal_work(run.request.size)
        rates = self._device.rates()
        profile, bottleneck = describe_run(
            work,
            found.time_ns,
            found.ratio,
            target=run.request.target,
            threads=built.threads,
            rates=rates,
            instruction_ns=self._device.instruction_ns,
            counted=found.counters,
        )
        bound_ms = load_target(run.request.target).tight_bound_ms(work) / built.threads
        warnings: tuple[ErrorInfo, ...] = ()
        if rates.measured and benchmark.latency_ms < bound_ms:
            told = f"{benchmark.latency_ms:.4g} ms, below the bound of {bound_ms:.4g} ms"
            text = f"measured {told} that follows from this machine's measured rates"
            warnings = (ErrorInfo(code="faster_than_bound", message=text),)
        fields: Mapping[str, Any] = {
            "stage": "benchmark", "benchmark": benchmark, "profile": profile, "bottleneck": bottleneck,
            "warnings": (*outcome.warnings, *warnings),
        }  # fmt: skip
        return outcome.model_copy(update=dict(fields))

    async def _build_parent(self, run: EvaluationContext) -> BuiltKernel | None:
        """Return the compiled kernel that this one was made from; None if it is not known, or no longer
        compiles."""
        if run.base is None or run.request.base_ms is None:
            return None
        built = await self._builder.build(run, run.base)
        return built if isinstance(built, BuiltKernel) else None

    async def _take_steady_times(
        self,
        run: EvaluationContext,
        built: BuiltKernel,
        parent: BuiltKernel | None,
        *,
        kept: Mapping[str, Sequence[bytes]],
    ) -> MeasuredKernel | JudgeOutcome:
        """Measure until the times are steady, at most `_TRIES` times: a machine's load passes.

        Raises:
            UnsteadyError: the times scatter too much.
        """
        for _ in range(_TRIES - 1):
            with contextlib.suppress(UnsteadyError):
                return await self._take_times(run, built, parent, kept=kept)
        return await self._take_times(run, built, parent, kept=kept)

    async def _take_times(
        self,
        run: EvaluationContext,
        built: BuiltKernel,
        parent: BuiltKernel | None,
        *,
        kept: Mapping[str, Sequence[bytes]],
    ) -> MeasuredKernel | JudgeOutcome:
        """Measure once; check the outputs of some timed calls.

        Raises:
            UnsteadyError: the times scatter too much.
        """
        kernels = [built] if parent is None else [built, parent]
        found = await self._runner.time(kernels, run, sets=list(kept), task=self._task)
        if isinstance(found, KernelFault):
            return found.outcome("benchmark")
        samples = found.samples
        for name, given in found.outputs.items():
            if not await asyncio.to_thread(have_same_outputs, run, kept[name], given):
                text = f"outputs of a timed call are not those of an untimed one ({describe_set(name)})"
                return rejected_outcome(Verdict.INCORRECT, "benchmark", "wrong_while_timed", text)
        own = compare_times(samples[:1])
        if (factor := self._device.instruction_ns) is not None:
            own = Interval(own.middle * factor, own.low * factor, own.high * factor)
        ratio = compare_times(samples) if parent is not None else None
        judged = ratio or own
        if judged.width_ratio > UNSTABLE_RATIO:
            text = (
                f"the median of {len(samples[0])} runs is known only to within {judged.width_ratio:.0%}; "
                f"the machine's load is {os.getloadavg()[0]:.1f}"
            )
            raise UnsteadyError(text)
        return MeasuredKernel(own, ratio, len(samples[0]), found.counters)


def make_benchmark(found: MeasuredKernel, base_ms: float | None, *, predicted: bool = False) -> Benchmark:
    """Return the latency: the parent's times the ratio, or the kernel's own time if it ran alone.

    A kernel that cannot be told from its parent (the interval of the ratio holds 1) gets the parent's
    latency.
    """
    ratio = found.ratio
    if ratio is None or base_ms is None:
        scale, middle = 1e-6, found.time_ns
    else:
        same = ratio.low <= 1 <= ratio.high
        scale, middle = base_ms, Interval(1.0, ratio.low, ratio.high) if same else ratio
    return Benchmark(
        latency_ms=middle.middle * scale,
        lo_ms=middle.low * scale,
        hi_ms=middle.high * scale,
        predicted=predicted,
        samples=found.samples,
    )


def create_evaluator(spec: EvaluatorSpec, resources: EvaluatorResources) -> CpuEvaluator:
    """Return the evaluator for a home."""
    del spec
    judge = JudgeService(
        home=resources.home, slots=resources.slots, allow_weak_jail=resources.allow_weak_jail
    )
    return CpuEvaluator(judge)
