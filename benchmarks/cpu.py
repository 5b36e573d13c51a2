"""Measures the target that is measured: how surely faster kernels are told apart, and what runs gain.

    python -m benchmarks.cpu noise [--repetitions 50] [--faster-percent 5] [--seconds 8]
    python -m benchmarks.cpu runs [--rounds 4] [--plans 4] [--problem silu ...] [--seconds 360]
    python -m benchmarks.cpu numpy silu

`noise` measures a kernel, and one that does a little less, beside the kernel itself, many times, while
another process keeps a core busy and moves memory: how often is a kernel called faster that is not, and how
often is a faster one found? Both are compiled and judged once, and measured as in a run; `--seconds` is after
how long a measurement begins no further round. `runs` optimises the built-in problems at size `reduced` with
the parameter proposer, and times NumPy with one thread on the same inputs; after `--seconds` it begins no
further problem. Both say how busy the machine was. `numpy` only times NumPy.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import seeds
from remote.evaluation_context import EvaluationContext, begin_evaluation
from remote.judge.job import JudgeOutcome
from remote.judge_service import JudgeService
from seeds.inputs import draw_inputs
from state.model import PERSON, EvaluationRequest, Level, Verdict, digest_of
from targets.c.compiler import BuiltKernel
from targets.c.evaluator import CpuEvaluator
from targets.c.machine import load_rates, read_cpu_facts
from targets.c.runner import ComparisonTask, TimingTask

TARGET = "x86"
PROBLEMS = (
    "silu",
    "rmsnorm_matmul",
    "matmul",
    "bmm_softmax",
    "rope_single_freq_apply",
    "adamw",
    "transpose_matmul",
)
_TURNS = 400
_KERNEL = """
// flags: -O1
static volatile float sink;
void kernel(const float *restrict x, float *restrict out)
{{
    for (int t = 0; t < {turns}; t++)
        for (int i = 0; i < 1024; i++)
            sink = x[i];
    for (size_t i = 0; i < (size_t)M * N; i++) {{
        float small = expf(-fabsf(x[i]));
        out[i] = x[i] * (x[i] >= 0 ? 1.0f : small) / (1.0f + small);
    }}
}}
"""
_LOAD = """
import os
block, parent = bytearray(1 << 26), os.getppid()
while os.getppid() == parent:
    block[:] = bytes(1 << 26)
    sum(range(1 << 20))
"""


def _softmax(scores: np.ndarray) -> np.ndarray:
    exps = np.exp(scores - scores.max(axis=2, keepdims=True))
    return exps / exps.sum(axis=2, keepdims=True)


def _rotate(x: np.ndarray, cos: np.ndarray, sin: np.ndarray) -> np.ndarray:
    first, second = np.split(x, 2)
    return np.concatenate([first * cos - second * sin, first * sin + second * cos])


NUMPY = {
    "silu": lambda x: x / (1 + np.exp(-x)),
    "rmsnorm_matmul": lambda x, w: (x / np.sqrt(np.mean(x * x, axis=1, keepdims=True))) @ w,
    "matmul": lambda a, b: a @ b,
    "bmm_softmax": lambda a, b: _softmax(a @ b),
    "rope_single_freq_apply": _rotate,
    "adamw": lambda t, g, m, v: (
        t - np.float32(1e-5) * t - np.float32(1e-2) * (np.float32(0.9) * m + np.float32(0.1) * g)
        / (np.sqrt((np.float32(0.999) * v + np.float32(1e-3) * g * g) * np.float32(1e3)) + np.float32(1e-8))
    ),
    "transpose_matmul": lambda a, b: a.T @ b,
}  # fmt: skip


class _Blobs(dict[str, bytes]):
    def get_blob(self, digest: str, /) -> bytes:
        return self[digest]


@contextmanager
def busy_machine() -> Iterator[None]:
    """Keep a core busy, and the memory, with a process of this program's own."""
    with subprocess.Popen([sys.executable, "-c", _LOAD]) as other:
        try:
            yield
        finally:
            other.kill()


PreparedKernel = tuple[EvaluationContext, BuiltKernel, Mapping[str, Sequence[bytes]]]


@dataclass(frozen=True)
class NoiseCount:
    """Of so many repetitions each: how often an equal kernel was called faster, how often one was found that
    takes `saved_ratio` less time, and how often a measurement was unstable.
    """

    repetitions: int
    equal: int
    found: int
    unstable: int
    saved_ratio: float


class NoiseStudy:
    """Measures kernels that do a known share of the parent's work, beside the parent."""

    def __init__(self, evaluator: CpuEvaluator) -> None:
        self._evaluator = evaluator
        self._problem = seeds.load_problem("silu")
        self._parent = _KERNEL.format(turns=_TURNS)
        self._prepared: dict[int, PreparedKernel] = {}
        self.unstable = 0

    async def count_calls(self, repetitions: int, faster_percent: float) -> NoiseCount:
        """Measure an equal kernel and a faster one, so many times each."""
        half = await self.measure_ratio(_TURNS // 2) or 1.0
        # The loop's time is proportional to its turns, and half of them were left out.
        turns = _TURNS - math.ceil(_TURNS / 2 * faster_percent / 100 / max(1 - half, 0.01))
        saved, equal, found = [], 0, 0
        for number in range(repetitions):
            equal += (await self.measure_ratio(_TURNS) or 1.0) < 1
            ratio = await self.measure_ratio(turns) or 1.0
            found += ratio < 1
            saved.append(1 - ratio)
            told = f"equal called faster {equal}, faster found {found}, unstable {self.unstable}"
            print(f"{number + 1:3d}: {told}", flush=True)
        return NoiseCount(repetitions, equal, found, self.unstable, float(np.median(saved)))

    async def measure_ratio(self, turns: int) -> float | None:
        """Return the latency of a kernel relative to its parent's, as a run would get it; None if it is
        unstable."""
        if turns not in self._prepared:
            self._prepared[turns] = await self._prepare(_KERNEL.format(turns=turns))
        run, built, outputs = self._prepared[turns]
        correct = JudgeOutcome(verdict=Verdict.CORRECT, stage="numerics")
        found = await self._evaluator.measure(run, built, correct, outputs)
        if found.verdict is Verdict.UNSTABLE:
            self.unstable += 1
            return None
        assert found.benchmark is not None, found.error
        return found.benchmark.latency_ms

    async def _prepare(self, source: str) -> PreparedKernel:
        """Return a kernel, compiled, with its outputs on the sets that measurements draw inputs from."""
        run = self._begin(source)
        built = await self._evaluator.build(run)
        assert isinstance(built, BuiltKernel), built.error
        sets = [str(seed) for seed in self._problem.spec.seeds[:2]]
        found = await self._evaluator.compute(run, built, ComparisonTask(sets, (), sets))
        assert found.fault is None, found.fault
        return run, built, found.kept

    def _begin(self, source: str) -> EvaluationContext:
        base, own = self._parent.encode(), source.encode()
        blobs = _Blobs({digest_of(data): data for data in (*self._problem.files.values(), own, base)})
        request = EvaluationRequest(
            candidate="c", author=PERSON, source=digest_of(own), problem=self._problem.make_ref(),
            size="reduced", target=TARGET, toolchain="", level=Level.SLICES, base_ms=1.0,
            base=digest_of(base),
        )  # fmt: skip
        return begin_evaluation(request, blobs)


async def study_noise(repetitions: int, faster_percent: float, seconds: float) -> None:
    """Count how kernels are called while another process is busy, and print it."""
    task = TimingTask(seconds=seconds)
    with tempfile.TemporaryDirectory() as home, busy_machine():
        evaluator = CpuEvaluator(JudgeService(home=Path(home), slots=1), task=task)
        try:
            found = await NoiseStudy(evaluator).count_calls(repetitions, faster_percent)
        finally:
            await evaluator.aclose()
    print(
        f"{describe_machine()}: of {repetitions} equal kernels {found.equal} were called faster; of "
        f"{repetitions} that take {100 * found.saved_ratio:.1f} % less time {found.found} were found; "
        f"{found.unstable} measurements were unstable"
    )


def describe_machine() -> str:
    """Return the CPU, the cores and the load of the last minute."""
    facts = read_cpu_facts()
    return f"{facts.model}, {facts.cores} cores, load {os.getloadavg()[0]:.1f}"


def run_problems(names: Sequence[str], *, rounds: int, plans: int, seconds: float) -> None:
    """Print the table of runs: measured start and best, percent of the bound, and NumPy."""
    rates, began = load_rates(), time.monotonic()
    origin = "measured" if rates.measured else "nominal"
    print(
        f"{describe_machine()}; rates {origin}: {rates.bandwidth_gb_s:.1f} GB/s, "
        f"{rates.multiply_add_gflops:.0f} GFLOPS; times in ms"
    )
    titles = f"{'start':>10}{'best':>10}{'gain':>8}{'% bound':>9}{'NumPy':>10}{'kernels':>9}{'load':>6}"
    print(f"{'problem':24}{titles}")
    for name in names:
        if time.monotonic() - began > seconds:
            print(f"{name:24} not run: {seconds:.0f} s are over")
            continue
        run = optimise(name, rounds=rounds, plans=plans)
        initial, best = run["initial_ms"], run["best_ms"]
        if best is None:
            print(f"{name:24} unstable: the machine was too busy")
            continue
        print(
            f"{name:24}{initial:10.4f}{best:10.4f}{initial / best:7.2f}x{run['percent_of_tight_bound']:8.1f}%"
            f"{time_numpy(name):10.4f}{run['evaluated']:9d}{os.getloadavg()[0]:6.1f}",
            flush=True,
        )


def optimise(name: str, *, rounds: int, plans: int) -> dict[str, Any]:
    """Optimise a problem in a home of its own; return what `agentctl status` says of the run."""
    with tempfile.TemporaryDirectory() as home:
        agentctl = [sys.executable, "-m", "agentctl"]
        wanted = ["--target", TARGET, "--problem", name, "--size", "reduced", "--rounds", str(rounds)]
        command = [*agentctl, "run", "--home", home, *wanted, "--set", f"search.plans={plans}", "--json"]
        subprocess.run(command, check=False, stdout=subprocess.DEVNULL)
        status = [*agentctl, "status", "--home", home, "--json"]
        told = subprocess.run(status, check=True, capture_output=True, text=True)
    run: dict[str, Any] = json.loads(told.stdout)["runs"][0]
    return run


def time_numpy(name: str) -> float:
    """Return the median milliseconds of NumPy's way with one thread, from a process of its own: how many
    threads there are is decided when NumPy is imported.
    """
    one = {f"{library}_NUM_THREADS": "1" for library in ("OPENBLAS", "MKL", "OMP")}
    command = [sys.executable, "-m", "benchmarks.cpu", "numpy", name]
    return float(subprocess.run(command, env=os.environ | one, check=True, capture_output=True).stdout)


def time_own_numpy(name: str) -> float:
    """Return the median milliseconds of NumPy's way, in CPU time of this process."""
    inputs = draw_inputs(seeds.load_problem(name).spec, "reduced", 0)
    times = []
    for _ in range(21):
        began = time.process_time()
        NUMPY[name](*inputs)
        times.append((time.process_time() - began) * 1e3)
    return float(np.median(times))


def main(argv: Sequence[str] | None = None) -> None:
    """Run one of the two."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    noise = commands.add_parser("noise")
    noise.add_argument("--repetitions", type=int, default=50)
    noise.add_argument("--faster-percent", type=float, default=5.0)
    noise.add_argument("--seconds", type=float, default=TimingTask().seconds)
    runs = commands.add_parser("runs")
    runs.add_argument("--rounds", type=int, default=4)
    runs.add_argument("--plans", type=int, default=4)
    runs.add_argument("--problem", action="append", choices=PROBLEMS)
    runs.add_argument("--seconds", type=float, default=math.inf)
    own = commands.add_parser("numpy")
    own.add_argument("name", choices=PROBLEMS)
    told = parser.parse_args(argv)
    if told.command == "noise":
        asyncio.run(study_noise(told.repetitions, told.faster_percent, told.seconds))
    elif told.command == "numpy":
        print(time_own_numpy(told.name))
    else:
        run_problems(told.problem or PROBLEMS, rounds=told.rounds, plans=told.plans, seconds=told.seconds)


if __name__ == "__main__":
    main()
