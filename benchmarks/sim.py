"""Time and memory of the simulator's parts, next to plain NumPy doing the same arithmetic.

`python benchmarks/sim.py [--size full] [--corpus DIR] [--only TEXT] [--repeats N] [--json] [--keep]` measures
every problem of `seeds/` (or every kernel of an NKIBench checkout), each part in a process of its own, one
after the other on an otherwise idle machine. NumPy's part is the problem's reference with float32 in place of
float64. `share` is NumPy's time over the simulator's: 1 would be as fast as NumPy. `--keep` writes the result
to `benchmarks/results/sim.json`.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULT = Path(__file__).parent / "results" / "sim.json"
sys.path[:1] = [str(ROOT)]  # as with `python -m`: the project's root, so that both spellings work

from benchmarks.corpora import pairs  # noqa: E402 - the path is set above
from benchmarks.corpora.processes import Command, Limits, run  # noqa: E402

PARTS = ("trace", "run", "numpy")


def workloads(options: argparse.Namespace) -> Iterator[tuple[str, list[str]]]:
    """Name of each, and the arguments that tell `simulated.py` which it is."""
    if options.corpus is not None:
        for pair in pairs.nkibench(options.corpus):
            if pair.reference is not None:
                yield pair.name, ["--pair", str(pair.kernel), str(pair.reference)]
        return
    from seeds.problem import builtin_problems

    for name in builtin_problems():
        yield name, ["--problem", name, options.size]


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Every workload, in turn."""
    threads = options.threads or os.cpu_count() or 1
    rows = []
    for name, which in workloads(options):
        if not options.only or options.only in name:
            rows.append({"problem": name, **_parts(which, options, threads)})
            print(line(rows[-1]), file=sys.stderr if options.json else sys.stdout, flush=True)
    machine = {"python": platform.python_version(), "system": platform.system(), "threads": threads}
    return {"machine": machine, "target": options.target, "size": options.size, "problems": rows}


def _parts(which: list[str], options: argparse.Namespace, threads: int) -> dict[str, Any]:
    limits = Limits(options.timeout, options.memory_gib << 30, threads)
    found: dict[str, Any] = {}
    for part in PARTS:
        argv = [
            sys.executable,
            "-m",
            "benchmarks.simulated",
            part,
            options.target,
            str(options.repeats),
            *which,
        ]
        ended = run(Command(argv, {"PYTHONPATH": str(ROOT)}), limits)
        if ended.status != 0:
            said = ended.err.strip().splitlines() or [f"exit status {ended.status}"]
            return {**found, "error": f"{part}: {said[-1][:300]}"}
        found |= json.loads(ended.out) | {f"{part}_peak_mib": round(ended.peak_mib)}
    return {**found, "share": found["numpy_s"] / found["run_s"]}


def line(row: dict[str, Any]) -> str:
    """One workload for people."""
    if "error" in row:
        return f"{row['problem']:<44} {row['error']}"
    times = "  ".join(f"{name} {row[f'{name}_s']:.2f} s" for name in ("trace", "check", "run", "numpy"))
    peaks = ", ".join(f"{row[f'{part}_peak_mib']}" for part in PARTS)
    return (
        f"{row['problem']:<44} {row['instructions']:>7}  {times}  share {row['share']:.2f}  peak MiB {peaks}"
    )


def main(argv: list[str] | None = None) -> int:
    """Measure, print, keep; 1 when some workload could not be measured."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--corpus", type=Path, help="an NKIBench checkout, instead of the problems of seeds/")
    parser.add_argument("--size", default="full", help="size of the problems of seeds/")
    parser.add_argument("--only", help="workloads whose name contains this")
    parser.add_argument("--target", default="trn2")
    parser.add_argument("--repeats", type=int, default=2, help="times each part is measured; the best counts")
    parser.add_argument("--threads", type=int, help="threads to compute with (default: all)")
    parser.add_argument("--timeout", type=float, default=600, help="seconds for each part")
    parser.add_argument("--memory-gib", type=int, default=12, help="memory for each part")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.add_argument("--keep", action="store_true", help="write the result beside the others")
    options = parser.parse_args(argv)
    result = measure(options)
    if options.json:
        print(json.dumps(result))
    if options.keep:
        RESULT.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    return int(any("error" in row for row in result["problems"]))


if __name__ == "__main__":
    sys.exit(main())
