"""Predicts all cases, each in a process of its own with a deadline and a memory limit; nothing is dropped."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import nki_sim
from benchmarks.corpora.processes import Command, Ended, Limits, each, run
from benchmarks.measured.cases import Case
from benchmarks.measured.predict import Job

ROOT = Path(__file__).resolve().parents[2]

# What a traced program does not depend on.
_BEHIND_TRACING = ("timing", "compiler", "cli", "running", "semantics", "targets", "shims")


@dataclass(frozen=True)
class Outcome:
    """A case with what is predicted for it, or with why nothing is."""

    case: Case
    found: dict[str, Any] | None = None
    error: str = ""

    @property
    def predicted_ms(self) -> float:
        """Only of a case that was predicted."""
        assert self.found is not None
        return float(self.found["predicted_ms"])


def outcomes(
    cases: Sequence[Case],
    *,
    programs: Path,
    limits: Limits,
    jobs: int,
    interval: bool,
    what_ifs: bool = False,
    tell: Callable[[str], None],
) -> list[Outcome]:
    """Predict every case, `jobs` at a time; `programs` is a folder where traced programs are kept."""

    done = count(1)

    def one(case: Case) -> Outcome:
        outcome = _outcome(case, job_of(case, programs, interval=interval, what_ifs=what_ifs), limits)
        tell(f"{next(done)} of {len(cases)} done: {case.name}")
        return outcome

    return each(one, cases, jobs)


def job_of(case: Case, programs: Path, *, interval: bool = False, what_ifs: bool = False) -> Job:
    """What the case's process is asked."""
    return Job(
        kernel=str(case.kernel),
        reference=str(case.reference) if case.reference else None,
        args=list(case.args),
        entry=case.entry,
        target=case.target,
        program=str(case.program or programs / f"{_key(case)}.program"),
        counters=case.counters,
        interval=interval,
        what_ifs=what_ifs,
    )


def _key(case: Case) -> str:
    """Names the traced program by all that it depends on: files, arguments, target, the tracer's source."""
    parts = [_simulator(), case.target, case.entry or "", *case.args]
    digest = hashlib.sha256("\n".join(parts).encode())
    for file in (case.kernel, case.reference):
        digest.update(file.read_bytes() if file and file.is_file() else b"none")
    return digest.hexdigest()[:32]


def _simulator() -> str:
    folder = Path(nki_sim.__file__).parent
    digest = hashlib.sha256()
    for file in sorted(folder.rglob("*.py")):
        name = file.relative_to(folder)
        if name.parts[0] not in _BEHIND_TRACING and not name.name.startswith("costs"):
            digest.update(file.read_bytes())
    return digest.hexdigest()


def _outcome(case: Case, job: Job, limits: Limits) -> Outcome:
    if case.fault is not None:
        return Outcome(case, error=case.fault)
    argv = [sys.executable, "-m", "benchmarks.measured.predict", json.dumps(job)]
    ended = run(Command(argv, {"PYTHONPATH": str(ROOT)}), limits)
    found = _reply(ended)
    if found is None or "error" in found:
        return Outcome(case, error=str(found["error"]) if found else _died(ended, limits))
    return Outcome(case, {**found, "peak_mib": round(ended.peak_mib)})


def _reply(ended: Ended) -> dict[str, Any] | None:
    lines = ended.out.strip().splitlines()
    try:
        found = json.loads(lines[-1]) if lines else None
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _died(ended: Ended, limits: Limits) -> str:
    if ended.status is None:
        return f"not done after {limits.seconds:g} s"
    said = [line for line in ended.err.splitlines() if line.strip()]
    return f"exit status {ended.status}: {said[-1][:200] if said else 'no output'}"
