"""Kernels that others wrote: is each raised to the same program, and how far do runs get from the slowest?

    .venv/bin/python benchmarks/raising.py FOLDER...                     # a table of all their kernels
    .venv/bin/python benchmarks/raising.py FOLDER... --runs              # and a run from the slowest of each
    .venv/bin/python benchmarks/raising.py FOLDER... --runs --out r.json # kept after each run; start it again

A folder is a problem (problem.toml, reference.py, kernel.py); other kernels of it are in its folder
`kernels`; `benchmarks/written_by_others/*` are such folders. Each run is `agentctl run --seed 7 --rounds 1`
and ends after `--minutes` (5) by its own clock. A run takes one to four minutes on two cores. Latencies are
predicted by the simulator's model for trn2; no hardware is timed. Exit status 1 if a kernel was raised to
another program, or its predicted latency changed by more than 1 %.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean

ROOT = Path(__file__).resolve().parents[1]
sys.path[:1] = [str(ROOT)]  # as with `python -m`: both spellings work

from nki_sim import targets  # noqa: E402 - the path is set above
from nki_sim.errors import SimError  # noqa: E402
from nki_sim.forms import ArraySpec  # noqa: E402
from nki_sim.frontend.entry import trace_bytes  # noqa: E402
from nki_sim.program.ir import Program  # noqa: E402
from nki_sim.timing.forecast import forecast_program  # noqa: E402
from seeds import Problem, build_problem  # noqa: E402
from targets.nki.raising.raiser import make_canonical  # noqa: E402
from targets.nki.rewrites import raised_parent  # noqa: E402

TARGET = "trn2"
MAX_CHANGE = raised_parent.MAX_LATENCY_CHANGE


@dataclass(frozen=True)
class RaisedKernel:
    """A kernel of a folder; `after_ms` is None where it was kept as it is, for `reason`."""

    folder: str
    kernel: str
    path: Path
    instructions: int
    before_ms: float
    after_ms: float | None
    same: bool
    reason: str

    @property
    def path_of_problem(self) -> Path:
        """The folder of its problem."""
        home = self.path.parent
        return home.parent if home.name == "kernels" else home

    @property
    def is_right(self) -> bool:
        if self.after_ms is None:
            return True
        return self.same and abs(self.after_ms / self.before_ms - 1) <= MAX_CHANGE


def load_folder(folder: Path) -> Problem:
    """Read a problem's own files."""
    return build_problem({path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()})


def raise_kernels(folder: Path, size: str) -> Iterator[RaisedKernel]:
    """Raise every kernel of a folder, and trace what became of it."""
    problem = load_folder(folder)
    chosen = size if size in problem.spec.sizes else next(iter(problem.spec.sizes))
    target = targets.load(TARGET)
    for path in (folder / "kernel.py", *sorted((folder / "kernels").glob("*.py"))):
        source = path.read_text()
        program = _trace(source, problem, chosen)
        form = make_canonical(program, source)
        before_ms = forecast_program(program, target).latency_ms
        after_ms, same, reason = None, False, form.reason
        if form.source is not None:
            try:
                raised = _trace(form.source, problem, chosen)
                after_ms = forecast_program(raised, target).latency_ms
                same = make_canonical(raised, form.source).program == form.program
            except SimError as error:
                reason = f"{type(error).__name__}: {error}"
        yield RaisedKernel(folder.name, path.stem, path, len(program), before_ms, after_ms, same, reason)


def _trace(source: str, problem: Problem, size: str) -> Program:
    dims = problem.spec.dims(size)
    arrays = [ArraySpec(tuple(item.resolve_kernel_shape(dims)), item.dtype) for item in problem.spec.inputs]
    arguments = problem.spec.call_arguments(arrays, lambda value: value)
    with contextlib.redirect_stdout(sys.stderr):  # a kernel may print while it is traced
        return Program.from_bytes(trace_bytes(source, args=arguments, target=TARGET))


def run_search(folder: Path, kernel: Path, size: str, minutes: float) -> dict[str, float]:
    """Return the predicted latency of a run's best kernel, and how long the run took."""
    with tempfile.TemporaryDirectory() as place:
        home = ("--home", f"{place}/home")
        where = ("--problem", str(folder), "--kernel", str(kernel), "--size", size)
        cap = ("--set", f"run.cap_seconds={60 * minutes}")
        begun = time.monotonic()
        done = _run_agentctl("run", *where, "--seed", "7", "--rounds", "1", *cap, *home)
        seconds = time.monotonic() - begun
        told = _run_agentctl("status", "--json", *home)
    try:
        best_ms = float(json.loads(told.stdout)["runs"][0]["best_ms"])
    except (ValueError, KeyError, TypeError, IndexError) as error:
        text = done.stdout[-2000:] + done.stderr[-2000:]
        raise SystemExit(f"the run of {kernel} failed:\n{text}") from error
    return {"best_ms": best_ms, "seconds": round(seconds)}


def _run_agentctl(*words: str) -> subprocess.CompletedProcess[str]:
    command = (sys.executable, "-m", "agentctl", *words)
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)


def print_kernels(found: Sequence[RaisedKernel]) -> None:
    """Print the table of raised kernels."""
    print("| problem | kernel | instructions | same program | predicted ms | raised | |")
    print("|---|---|---|---|---|---|---|")
    for one in found:
        after = "-" if one.after_ms is None else f"{one.after_ms:.5g}"
        same = "-" if one.after_ms is None else "yes" if one.same else "NO"
        print(
            f"| `{one.folder}` | `{one.kernel}` | {one.instructions} | {same} | {one.before_ms:.5g} "
            f"| {after} | {one.reason} |"
        )


def print_runs(found: Sequence[RaisedKernel], size: str, minutes: float, out: Path | None) -> None:
    """Run from the slowest kernel of each folder; print a line for each, and the geometric means."""
    kept = json.loads(out.read_text()) if out is not None and out.exists() else {}
    print("| problem | from | predicted ms | best found | best by hand | found / by hand | seconds |")
    print("|---|---|---|---|---|---|---|")
    rows: list[tuple[float, float, float]] = []
    for folder in dict.fromkeys(one.path_of_problem for one in found):
        mine = [one for one in found if one.path_of_problem == folder]
        slowest = max(mine, key=lambda one: one.before_ms)
        key = f"{folder.name}/{slowest.kernel}/{size}"
        if key not in kept:
            kept[key] = run_search(folder, slowest.path, size, minutes)
            if out is not None:
                out.write_text(json.dumps(kept, indent=1) + "\n")
        first, hand = slowest.before_ms, min(one.before_ms for one in mine)
        last = kept[key]["best_ms"]
        rows.append((first / last, first / hand, last / hand))
        print(
            f"| `{folder.name}` | `{slowest.kernel}` | {first:.4g} | {last:.4g} ({first / last:.2f}x) "
            f"| {hand:.4g} ({first / hand:.2f}x) | {last / hand:.2f} | {kept[key]['seconds']} |",
            flush=True,
        )
    gained, by_hand, ratio = (geometric_mean(column) for column in zip(*rows, strict=True))
    print(f"| geometric mean | | | {gained:.2f}x | {by_hand:.2f}x | {ratio:.2f} | |")


def main() -> int:
    """Print the tables; return 1 if a raised kernel is another one."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--size", default="full")
    parser.add_argument("--runs", action="store_true")
    parser.add_argument("--minutes", type=float, default=5, help="how long a run may take")
    parser.add_argument("--out", type=Path, help="keeps the results of runs; those it has are not repeated")
    given = parser.parse_args()
    found = [one for folder in given.folders for one in raise_kernels(folder, given.size)]
    print_kernels(found)
    if given.runs:
        print()
        print_runs(found, given.size, given.minutes, given.out)
    return 0 if all(one.is_right for one in found) else 1


if __name__ == "__main__":
    sys.exit(main())
