"""Measures the target that is measured: how surely faster kernels are told apart, and what runs gain.

    python -m benchmarks.cpu noise [--repetitions 50] [--faster-percent 5]
    python -m benchmarks.cpu runs [--rounds 4] [--problem silu ...]

`noise` compares a kernel with itself and with one that does a little more work, many times, while another
process keeps a core busy and moves memory: how often is a kernel called faster that is not, and how often is
a faster one found? `runs` optimises the built-in problems at size `reduced` with the parameter proposer, and
times NumPy with one thread on the same inputs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

import seeds
from remote.judge_service import JudgeService
from seeds.inputs import draw_inputs
from state.model import PERSON, EvaluationRequest, Level, Verdict, digest_of
from targets.c.evaluator import CpuEvaluator
from targets.c.machine import load_rates, read_cpu_facts

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
import sys
block = bytearray(1 << 26)
while True:
    block[:] = bytes(1 << 26)
    sum(range(1 << 20))
"""


def _softmax(scores: np.ndarray) -> np.ndarray:
    exps = np.exp(scores - scores.max(axis=2, keepdims=True))
    return exps / exps.sum(axis=2, keepdims=True)


def _rotate(x: np.ndarray, cos: np.ndarray, sin: np.ndarray) -> np.ndarray:
    first, second = np.split(x, 2)
    return np.concatenate([first * cos - second * sin, first * sin + second * cos])


_NUMPY = {
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


async def measure_noise(repetitions: int, faster_percent: float) -> None:
    """Print how often an equal kernel is called faster, and how often a faster one is."""
    problem = seeds.load_problem("silu")
    alike = _KERNEL.format(turns=_TURNS)
    with tempfile.TemporaryDirectory() as home:
        evaluator = CpuEvaluator(JudgeService(home=Path(home), slots=1))
        parent = await _judge(evaluator, problem, alike)
        quicker, share = _TURNS, 0.0
        while share < faster_percent / 100:  # the loop that goes is a known part of the whole
            quicker -= 2
            share = await _share_saved(evaluator, problem, quicker, parent)
        called = {"equal": 0, "faster": 0}
        for number in range(repetitions):
            for name, turns in (("equal", _TURNS), ("faster", quicker)):
                source = _KERNEL.format(turns=turns) + f"\nint number_{number};\n"
                child = await _judge(evaluator, problem, source, base_ms=parent)
                called[name] += child < parent
            print(
                f"{number + 1:3d}: equal called faster {called['equal']}, faster found {called['faster']}",
                flush=True,
            )
        await evaluator.aclose()
    print(
        f"on {read_cpu_facts().model}, another process busy: of {repetitions} equal kernels "
        f"{called['equal']} were called faster; "
        f"of {repetitions} that take {100 * share:.1f} % less time {called['faster']} were found"
    )


async def _share_saved(evaluator: CpuEvaluator, problem: seeds.Problem, turns: int, parent: float) -> float:
    child = await _judge(evaluator, problem, _KERNEL.format(turns=turns), base_ms=parent)
    return 1 - child / parent


async def _judge(
    evaluator: CpuEvaluator, problem: seeds.Problem, source: str, base_ms: float | None = None
) -> float:
    base = _KERNEL.format(turns=_TURNS).encode()
    blobs = _Blobs({digest_of(data): data for data in (*problem.files.values(), source.encode(), base)})
    request = EvaluationRequest(
        candidate="c", author=PERSON, source=digest_of(source.encode()), problem=problem.make_ref(),
        size="reduced", target=TARGET, toolchain="", level=Level.SLICES, base_ms=base_ms,
        base=None if base_ms is None else digest_of(base),
    )  # fmt: skip
    found = (await evaluator.evaluate(request, blobs)).evaluation
    if found.verdict is Verdict.UNSTABLE:
        return float("inf")
    assert found.benchmark is not None, found.error
    return found.benchmark.latency_ms


def run_problems(names: list[str], rounds: int) -> None:
    """Print the table of runs: measured start and best, percent of the bound, and NumPy."""
    rates = load_rates()
    origin = "measured" if rates.measured else "nominal"
    print(
        f"{read_cpu_facts().model}; rates {origin}: {rates.bandwidth_gb_s:.1f} GB/s, "
        f"{rates.multiply_add_gflops:.0f} GFLOPS"
    )
    print(f"{'problem':24}{'-O3':>10}{'best':>10}{'gain':>8}{'% bound':>9}{'NumPy':>10}")
    for name in names:
        with tempfile.TemporaryDirectory() as home:
            command = [
                sys.executable,
                "-m",
                "agentctl",
                "run",
                "--home",
                home,
                "--target",
                TARGET,
                "--problem",
                name,
                "--size",
                "reduced",
                "--rounds",
                str(rounds),
                "--json",
            ]
            subprocess.run(command, check=False, stdout=subprocess.DEVNULL)
            told = subprocess.run(
                [sys.executable, "-m", "agentctl", "status", "--home", home, "--json"],
                check=True,
                capture_output=True,
                text=True,
            )
        run = json.loads(told.stdout)["runs"][0]
        initial, best = run["initial_ms"], run["best_ms"]
        print(
            f"{name:24}{initial:10.4f}{best:10.4f}{initial / best:7.2f}x{run['percent_of_tight_bound']:8.1f}%"
            f"{time_numpy(name):10.4f}",
            flush=True,
        )


def time_numpy(name: str) -> float:
    """Return the median milliseconds of NumPy's way, in CPU time of this process."""
    inputs = draw_inputs(seeds.load_problem(name).spec, "reduced", 0)
    times = []
    for _ in range(21):
        began = time.process_time()
        _NUMPY[name](*inputs)
        times.append((time.process_time() - began) * 1e3)
    return float(np.median(times))


def main() -> None:
    """Run one of the two."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    noise = commands.add_parser("noise")
    noise.add_argument("--repetitions", type=int, default=50)
    noise.add_argument("--faster-percent", type=float, default=5.0)
    runs = commands.add_parser("runs")
    runs.add_argument("--rounds", type=int, default=4)
    runs.add_argument("--problem", action="append")
    told = parser.parse_args()
    if told.command == "noise":
        with busy_machine():
            asyncio.run(measure_noise(told.repetitions, told.faster_percent))
    else:
        run_problems(told.problem or list(PROBLEMS), told.rounds)


if __name__ == "__main__":
    main()
