"""What judging costs, stage by stage, and what each stage catches.

`python benchmarks/judge.py [--size full] [--level one_seed] [--only TEXT] [--json]` judges the initial kernel
of every problem, then a few wrong kernels, one after the other in one worker, as the embedded evaluator does.
`references` is what the problem's reference cost; it is kept under `--home`, so that a second call shows what
a candidate costs. Seconds are of this machine at this moment; `cpu_s`, the processor time of the worker,
which does all but lint and jail, shows what they would be on one that does nothing else.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:1] = [str(ROOT)]  # as with `python -m`: the project's root, so that both spellings work

import nki_sim  # noqa: E402 - the path is set above
import seeds  # noqa: E402
from remote.evaluation_context import LEVELS  # noqa: E402
from remote.judge_service import JudgeService  # noqa: E402
from remote.local import LocalEvaluator  # noqa: E402
from state.model import EvaluationRequest, digest_of  # noqa: E402

LEVEL = "one_seed"

_RATIO = "ratio = nl.ndarray((size, TILE_N), dtype=nl."

WRONG: dict[str, tuple[str, str, str]] = {
    "maximum of half the row": ("bmm_softmax", "scores, axis=1, neg", "scores[:, 0 : n // 2], axis=1, neg"),
    "no maximum at all": ("bmm_softmax", "data=scores, bias=neg_max", "data=scores"),
    "no epsilon under the root": ("add_rmsnorm_matmul", ", op1=nl.add, operand1=EPSILON", ""),
    "no epsilon beside the root": ("adamw", "op0=nl.add, operand0=EPSILON", "op0=nl.add, operand0=0.0"),
    "no weight decay": ("adamw", "DECAY = 1.0 - 1e-5", "DECAY = 1.0"),
    "term in half precision": ("adamw", _RATIO + "float32", _RATIO + "bfloat16"),
    "skipped tail": ("silu", "range(n // TILE_N)", "range(n // TILE_N - 1)"),
    "constant output": ("silu", "data1=x_tile, data2=sigmoid", "data1=sigmoid, data2=sigmoid"),
    "last tile copied": ("silu", "src=out_tile,", "src=x_tile if (i_m + 1) * TILE_M == m else out_tile,"),
    "memory nobody wrote": ("silu", "nisa.reciprocal(dst=sigmoid, data=denominator)", ""),
    "file opened": ("silu", "    m, n = x.shape\n", "    m, n = x.shape\n    open('x')\n"),
    "input written": (
        "silu", "    return out", "    nisa.dma_copy(dst=x[0:128, :], src=out[0:128, :])\n    return out",
    ),
}  # fmt: skip
"""Kernels by what is wrong with them: a problem, and what is replaced in its initial kernel."""


@dataclass(frozen=True)
class Case:
    """A kernel to judge; `wrong` says what is wrong with it, empty for initial kernels."""

    problem: seeds.Problem
    source: str
    wrong: str = ""


class Blobs(dict[str, bytes]):
    """Blobs in memory."""

    def get_blob(self, digest: str, /) -> bytes:
        """Return the bytes of a digest."""
        return self[digest]


def cases(only: str) -> Iterator[Case]:
    """Initial kernels, then wrong ones, of the problems whose name contains `only`."""
    for name in seeds.builtin_problems():
        if only in name:
            problem = seeds.load_problem(name)
            yield Case(problem, problem.kernel)
    for wrong, (name, old, new) in WRONG.items():
        if only in name:
            problem = seeds.load_problem(name)
            if old not in problem.kernel:
                sys.exit(f"{wrong}: the initial kernel of {name} has no {old!r}")
            yield Case(problem, problem.kernel.replace(old, new), wrong)


async def judge_kernel(evaluator: LocalEvaluator, case: Case, options: argparse.Namespace) -> dict[str, Any]:
    """Judge one kernel."""
    data = [*case.problem.files.values(), case.source.encode()]
    request = EvaluationRequest(
        candidate="r0.b0.p0.k0.f0",
        author="person",
        source=digest_of(data[-1]),
        problem=case.problem.make_ref(),
        size=options.size,
        target=options.target,
        toolchain=nki_sim.toolchain(),
        level=options.level,
    )
    before = cpu_s(evaluator)
    answer = await evaluator.evaluate(request, Blobs({digest_of(item): item for item in data}))
    used, found = cpu_s(evaluator) - before, answer.evaluation
    seconds = {stage: round(ms / 1e3, 3) for stage, ms in answer.stage_ms.items()}
    return {
        "problem": case.problem.name,
        "wrong": case.wrong,
        "verdict": found.verdict.value,
        "stage": found.stage,
        "error": found.error and f"{found.error.code}: {found.error.message}",
        "stage_s": seconds,
        "judging_s": round(sum(seconds.values()) - seconds.get("references", 0.0), 3),
        "cpu_s": round(used, 3),
    }


def cpu_s(evaluator: LocalEvaluator) -> float:
    """Processor time of the workers so far."""
    ticks = 0
    for pid in evaluator.judge.worker_pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


async def measure(options: argparse.Namespace, home: Path) -> list[dict[str, Any]]:
    """Judge every case, in turn."""
    evaluator = LocalEvaluator(JudgeService(home=home, slots=1, allow_weak_jail=True), target="trn2")
    rows = []
    try:
        for case in cases(options.only):
            rows.append(await judge_kernel(evaluator, case, options))
            print(line(rows[-1]), file=sys.stderr if options.json else sys.stdout, flush=True)
    finally:
        await evaluator.aclose()
    return rows


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Median and largest cost of initial kernels, refused ones among them, and what each stage caught."""
    initial = [row for row in rows if not row["wrong"]]
    wrong = [row for row in rows if row["wrong"]]
    costs = [row["judging_s"] for row in initial]
    stages = sorted({stage for row in initial for stage in row["stage_s"]})
    medians = {
        stage: statistics.median(row["stage_s"].get(stage, 0.0) for row in initial) for stage in stages
    }
    return {
        "median_s": statistics.median(costs) if costs else None,
        "largest_s": max(costs, default=None),
        "median_cpu_s": statistics.median(row["cpu_s"] for row in initial) if initial else None,
        "largest_cpu_s": max((row["cpu_s"] for row in initial), default=None),
        "median_stage_s": medians,
        "initial_refused": [row["problem"] for row in initial if row["verdict"] != "correct"],
        "caught": dict(Counter(row["stage"] for row in wrong if row["verdict"] != "correct")),
        "missed": [row["wrong"] for row in wrong if row["verdict"] == "correct"],
    }


def line(row: dict[str, Any]) -> str:
    """One kernel for people."""
    stages = "  ".join(f"{stage} {seconds:.2f}" for stage, seconds in row["stage_s"].items())
    name = f"{row['problem']}: {row['wrong']}" if row["wrong"] else row["problem"]
    found = f"{row['verdict']} at {row['stage']} ({row['error']})" if row["error"] else row["verdict"]
    return f"{name:<44} {row['judging_s']:6.2f} s  (cpu {row['cpu_s']:.2f})  {stages}\n    {found}"


def main(argv: list[str] | None = None) -> int:
    """Judge and print; 1 when an initial kernel was refused or a wrong one was not."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", default="full")
    parser.add_argument("--level", default=LEVEL, choices=sorted(LEVELS))
    parser.add_argument("--only", default="", help="problems whose name contains this")
    parser.add_argument("--target", default="trn2")
    parser.add_argument("--home", type=Path, help="where reference outputs are kept (default: nowhere)")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        rows = asyncio.run(measure(options, options.home or Path(folder)))
    found = summary(rows)
    print(json.dumps({**found, "kernels": rows}) if options.json else json.dumps(found, indent=2))
    return int(bool(found["initial_refused"] or found["missed"]))


if __name__ == "__main__":
    sys.exit(main())
