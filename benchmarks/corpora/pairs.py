"""Corpora that are pairs of files: a kernel and a reference that draws its inputs.

`nkibench`: `kernels/X_<n>.py` with `reference/X_numpy_<n>.py`, compared as NKIBench compares them: relative
L2 under 2e-5, mamba 3e-5. `kernels`: any folder; `X.py` with `X_reference.py`, or `kernel.py` with
`reference.py`.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.corpora.outcome import OVER, Outcome, first_line
from benchmarks.corpora.processes import Command, Ended, Limits, each, run

TOLERANCE = 2e-5
NKIBENCH_TOLERANCES = {"mamba": 3e-5}
"""NKIBench's own exceptions, by the first word of a problem's name."""


@dataclass(frozen=True)
class Pair:
    """A kernel's file, its reference and the largest error that counts as correct."""

    name: str
    kernel: Path
    reference: Path | None
    tolerance: float = TOLERANCE


def nkibench(corpus: Path) -> Iterator[Pair]:
    """The pairs of a checkout; `corpus` may be the checkout or its folder NKIBench."""
    root = next((folder for folder in (corpus, corpus / "NKIBench") if (folder / "kernels").is_dir()), corpus)
    for kernel in sorted((root / "kernels").glob("*.py")):
        problem = re.sub(r"_\d+$", "", kernel.stem)
        references = sorted((root / "reference").glob(f"{problem}_numpy*.py"))
        tolerance = NKIBENCH_TOLERANCES.get(problem.split("_")[0], TOLERANCE)
        yield Pair(kernel.stem, kernel, references[0] if references else None, tolerance)


def kernels(corpus: Path) -> Iterator[Pair]:
    """The pairs of any folder; files without a reference beside them are found and say so."""
    for kernel in sorted(corpus.rglob("*.py")):
        if kernel.stem.endswith("reference") or "jit" not in kernel.read_text(errors="replace"):
            continue
        names = [f"{kernel.stem}_reference.py", *(["reference.py"] if kernel.stem == "kernel" else [])]
        found = [kernel.with_name(name) for name in names if kernel.with_name(name).exists()]
        name = kernel.parent.name if kernel.stem == "kernel" else kernel.stem
        yield Pair(name, kernel, found[0] if found else None)


def outcomes(pairs: list[Pair], *, target: str, seeds: str, limits: Limits, jobs: int) -> list[Outcome]:
    """Run every pair in a process of its own."""

    def one(pair: Pair) -> Outcome:
        if pair.reference is None:
            return Outcome(pair.name, reason="no reference beside it")
        argv = [
            sys.executable,
            "-m",
            "nki_sim.cli",
            "run",
            str(pair.kernel),
            "--reference",
            str(pair.reference),
        ]
        options = ["--target", target, "--seeds", seeds, "--tolerance", str(pair.tolerance), "--json"]
        options += ["--deadline", "0"]  # the limits of this run are its end
        return classify_ended(pair.name, run(Command([*argv, *options]), limits))

    return each(one, pairs, jobs)


def classify_ended(name: str, ended: Ended) -> Outcome:
    """The outcome that a run of `nki-sim run --json` stands for."""
    outcome = Outcome(name, seconds=ended.seconds, peak_mib=ended.peak_mib, runs=1)
    report = _json(ended.out)
    if report is None:
        outcome.failures = 1
        outcome.reason = OVER if ended.status is None else _died(ended)
        return outcome
    outcome.traced = report["seconds"]["trace"] > 0 and (report["error"] or {}).get("code") != "limit_time"
    outcome.correct = report["correct"]
    if not outcome.correct:
        outcome.failures, outcome.reason = 1, _reason(report)
    return outcome


def _json(text: str) -> dict[str, Any] | None:
    try:
        found = json.loads(text)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _died(ended: Ended) -> str:
    said = [line for line in ended.err.splitlines() if line.strip()]
    return f"exit status {ended.status}: {said[-1][:200] if said else 'no output'}"


def _reason(report: dict[str, Any]) -> str:
    for found in [report["error"], *report["checks"]]:
        if found:
            place = f"line {found['line']}: " if found["line"] else ""
            return first_line(f"{place}{found['code']}: {found['message']}")
    return f"relative L2 {report['rel_l2']}"
