"""Evaluates C kernels on this machine: compiles, runs and times them in the jail, and judges outputs at home.

One evaluation: static rules, compilation in the jail, a run on the judge's input sets, the comparison of its
outputs in a worker, and times. A kernel is timed in turns with its parent, on the same inputs: its latency is
the parent's times the median ratio, so that drift and load of the machine cancel. A kernel that cannot be
told from its parent gets its parent's latency, and one that seems faster is measured a second time, which
counts.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from remote.cache import required_level
from remote.evaluation_context import (
    EvaluationContext,
    begin_evaluation,
    lint_kernel,
    make_answer,
    rejected_outcome,
    select_input_sets,
)
from remote.evaluator import BlobReader, EvaluationAnswer, PredictionRequest
from remote.judge.comparison import describe_set
from remote.judge.job import HostOutputs, JudgeOutcome
from remote.judge.suite import secret_set
from remote.judge_service import JudgeService, select_judged_sets
from remote.registry import EvaluatorResources, EvaluatorSpec
from state.atomic_files import atomic_write
from state.model import (
    Benchmark,
    ErrorInfo,
    EvaluationRequest,
    PredictedLatency,
    Verdict,
    canonical_json,
    digest_of,
)
from targets.c.compiler import BuiltKernel, KernelBuilder, find_compiler
from targets.c.jailed.paired_times import Interval, compare_times
from targets.c.judge import NOT_PREDICTED
from targets.c.machine import load_rates, read_cpu_facts
from targets.c.profile import describe_run
from targets.c.runner import ComparisonTask, KernelFault, KernelRunner, TimingTask, have_same_outputs
from targets.registry import load_target

UNSTABLE_RATIO = 0.25
"""Relative width of the interval of a median above which a kernel counts as unstable."""

_TRIES = 3
_TIMED_SETS = 2
"""Seeds on whose inputs kernels are timed, besides the secret set: bounded for the memory of large
problems."""


@dataclass(frozen=True, slots=True)
class MeasuredKernel:
    """Times of a kernel in ns: its own, and its ratio to its parent if the two ran in turns."""

    time_ns: Interval
    ratio: Interval | None
    samples: int


class UnsteadyError(Exception):
    """The times of a kernel scatter too much to say anything."""


class CpuEvaluator:
    """Judges and measures kernels on this machine's CPU; one kernel runs at a time."""

    name = "cpu"

    def __init__(self, judge: JudgeService, *, task: TimingTask | None = None) -> None:
        self._judge = judge
        self._builder = KernelBuilder(judge.home, judge.strength)
        self._runner = KernelRunner(judge.strength)
        self._measured = MeasuredKernels(judge.home)
        self._task = task or TimingTask()

    def toolchain(self) -> str:
        """Return compiler and CPU.

        Raises:
            InfrastructureError: no_compiler.
        """
        facts = read_cpu_facts()
        return f"{find_compiler().version}, {facts.model}, {facts.cores} cores"

    async def prepare(self) -> None:
        """Look for the compiler.

        Raises:
            InfrastructureError: no_compiler.
        """
        await asyncio.to_thread(find_compiler)

    async def evaluate(self, request: EvaluationRequest, blobs: BlobReader, /) -> EvaluationAnswer:
        """Judge and measure one candidate; cancelling ends its jail.

        Raises:
            InfrastructureError: no verdict could be reached, through no fault of the kernel.
        """
        run = begin_evaluation(request, blobs)
        run.device_s = 0.0
        async with self._judge.slots:
            outcome = await self._judge_kernel(run)
        return make_answer(run, outcome, self.toolchain())

    async def predict(self, request: PredictionRequest, blobs: BlobReader, /) -> Sequence[PredictedLatency]:
        """Return for each kernel the reason why there is no prediction."""
        del blobs
        return [PredictedLatency(error=NOT_PREDICTED) for _ in request.sources]

    async def aclose(self) -> None:
        """Kill every worker."""
        await self._judge.aclose()

    async def _judge_kernel(self, run: EvaluationContext) -> JudgeOutcome:
        async with run.time_stage("lint"):
            refused = lint_kernel(run.source, run.request.target)
        if refused is not None:
            return refused
        self._judge.require_trusted(run.request.author)
        async with run.time_stage("compile"):
            built = await self._builder.build(run)
        if isinstance(built, JudgeOutcome):
            return built
        outcome, kept = await self._compare_outputs(run, built)
        if outcome.verdict is not Verdict.CORRECT:
            return outcome
        async with run.time_stage("benchmark"):
            outcome = await self._measure(run, built, outcome, kept)
        wanted = required_level(run.request, outcome.benchmark)
        if wanted is not run.level:
            run.level = wanted
            again, _ = await self._compare_outputs(run, built)
            if again.verdict is not Verdict.CORRECT:
                return again
            outcome = outcome.model_copy(update={"rel_l2": again.rel_l2})
        return outcome

    async def _compare_outputs(
        self, run: EvaluationContext, built: BuiltKernel
    ) -> tuple[JudgeOutcome, Mapping[str, Sequence[bytes]]]:
        """Run the kernel on what the level compares, and judge its outputs; return those of the timed sets
        too."""
        from remote.judge import host_outputs

        secret = self._judge.references.secret
        wholes, sets = select_input_sets(run, secret)
        async with run.time_stage("references"):
            found = await self._judge.load_references(run, wholes, sets)
            judged, wanted = await asyncio.to_thread(select_judged_sets, run, found, wholes, sets)
        spec, size = run.problem.spec, run.request.size
        compared = [name for name in wholes if name in wanted]
        brief = host_outputs.request_pieces(
            spec, size, secret=secret, artefact=built.digest.encode(), sets=judged, wholes=compared
        )
        pieces = host_outputs.request_full_pieces(spec, size, brief)
        timed = [name for name in _timed_sets(run, secret) if name in wanted]
        task = ComparisonTask(wanted, pieces, timed)
        async with run.time_stage("execute"):
            found_outputs = await self._runner.compute(built, run, task)
        shown, fault = found_outputs.shown, found_outputs.fault
        if fault is not None and fault.where not in wanted:
            return fault.outcome("execute"), {}
        async with run.time_stage("compare"):
            with TemporaryDirectory(prefix="outputs-") as folder:
                path = Path(folder) / "pieces.bin"
                path.write_bytes(b"".join(shown.values()))
                ended = {fault.where: (fault.verdict, fault.error)} if fault else {}
                told = HostOutputs(file=str(path), pieces=tuple(shown), seed="", ended=ended)
                outcome = await self._judge.judge_outputs(run, found, b"", shown=told, device=True)
        assert isinstance(outcome, JudgeOutcome), "nothing is a sketch, so nothing can be unsure"
        return outcome, found_outputs.kept

    async def _measure(
        self,
        run: EvaluationContext,
        built: BuiltKernel,
        outcome: JudgeOutcome,
        kept: Mapping[str, Sequence[bytes]],
    ) -> JudgeOutcome:
        """Time a correct kernel, in turns with its parent if that is known."""
        parent = self._measured.find(run, run.request.base_ms)
        try:
            found = await self._take_steady_times(run, built, parent, kept)
            if isinstance(found, MeasuredKernel) and found.ratio is not None and found.ratio.high < 1:
                # A gain is believed when a second measurement shows it, and then that one counts.
                found = await self._take_steady_times(run, built, parent, kept)
        except UnsteadyError as error:
            return rejected_outcome(Verdict.UNSTABLE, "benchmark", "unsteady", str(error))
        if isinstance(found, JudgeOutcome):
            return found
        benchmark = make_benchmark(found, run.request.base_ms)
        self._measured.remember(run, benchmark.latency_ms, built)
        work = run.problem.spec.minimal_work(run.request.size)
        profile, bottleneck = describe_run(
            work, found.time_ns, found.ratio, target=run.request.target, threads=built.threads
        )
        bound_ms = load_target(run.request.target).tight_bound_ms(work) / built.threads
        warnings: tuple[ErrorInfo, ...] = ()
        if load_rates().measured and benchmark.latency_ms < bound_ms:
            told = f"{benchmark.latency_ms:.4g} ms, below the bound of {bound_ms:.4g} ms"
            text = f"measured {told} that follows from this machine's measured rates"
            warnings = (ErrorInfo(code="faster_than_bound", message=text),)
        fields: Mapping[str, Any] = {
            "stage": "benchmark", "benchmark": benchmark, "profile": profile, "bottleneck": bottleneck,
            "warnings": (*outcome.warnings, *warnings),
        }  # fmt: skip
        return outcome.model_copy(update=dict(fields))

    async def _take_steady_times(
        self,
        run: EvaluationContext,
        built: BuiltKernel,
        parent: BuiltKernel | None,
        kept: Mapping[str, Sequence[bytes]],
    ) -> MeasuredKernel | JudgeOutcome:
        """Measure until the times are steady, at most `_TRIES` times: a machine's load passes.

        Raises:
            UnsteadyError: the times scatter too much.
        """
        for _ in range(_TRIES - 1):
            with contextlib.suppress(UnsteadyError):
                return await self._take_times(run, built, parent, kept)
        return await self._take_times(run, built, parent, kept)

    async def _take_times(
        self,
        run: EvaluationContext,
        built: BuiltKernel,
        parent: BuiltKernel | None,
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
        samples, outputs = found
        for name, given in outputs.items():
            if not await asyncio.to_thread(have_same_outputs, run, kept[name], given):
                text = f"outputs of a timed call are not those of an untimed one ({describe_set(name)})"
                return rejected_outcome(Verdict.INCORRECT, "benchmark", "wrong_while_timed", text)
        own = compare_times(samples[:1])
        ratio = compare_times(samples) if parent is not None else None
        judged = ratio or own
        if judged.width_ratio > UNSTABLE_RATIO:
            text = (
                f"the median of {len(samples[0])} runs is known only to within {judged.width_ratio:.0%}; "
                f"the machine's load is {os.getloadavg()[0]:.1f}"
            )
            raise UnsteadyError(text)
        return MeasuredKernel(own, ratio, len(samples[0]))


def _timed_sets(run: EvaluationContext, secret: str) -> list[str]:
    """The sets on whose inputs kernels are timed."""
    return [*(str(seed) for seed in run.problem.spec.seeds[:_TIMED_SETS]), secret_set(secret)]


def make_benchmark(found: MeasuredKernel, base_ms: float | None) -> Benchmark:
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
        predicted=False,
        samples=found.samples,
    )


class MeasuredKernels:
    """Remembers the libraries of measured kernels by problem and latency, so that children run beside them.

    The files, `<home>/cache/c/measured/<digest>.json`, are a cache: without one, a child is timed alone.
    """

    def __init__(self, home: Path) -> None:
        self._folder = home / "cache" / "c"

    def find(self, run: EvaluationContext, latency_ms: float | None) -> BuiltKernel | None:
        """Return the kernel that was measured with this latency; None if it is not known here."""
        if latency_ms is None:
            return None
        try:
            told = json.loads(self._path(run, latency_ms).read_text())
            built = BuiltKernel(
                self._folder / str(told["library"]), str(told["library"]), int(told["threads"])
            )
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return built if built.library.exists() else None

    def remember(self, run: EvaluationContext, latency_ms: float, built: BuiltKernel) -> None:
        """Remember a kernel; one that was measured with the same latency before stays."""
        path = self._path(run, latency_ms)
        if path.exists():
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as part:
            part.write_text(json.dumps({"library": built.digest, "threads": built.threads}))

    def _path(self, run: EvaluationContext, latency_ms: float) -> Path:
        parts = (run.problem.digest, run.request.size, run.request.target, repr(latency_ms))
        return self._folder / "measured" / f"{digest_of(canonical_json(parts))}.json"


def create_evaluator(spec: EvaluatorSpec, resources: EvaluatorResources) -> CpuEvaluator:
    """Return the evaluator for a home."""
    del spec
    judge = JudgeService(
        home=resources.home, slots=resources.slots, allow_weak_jail=resources.allow_weak_jail
    )
    return CpuEvaluator(judge)
