"""Runs test modules of a corpus under pytest, each in its own process, with shims and an observing plugin."""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.corpora import ledger, missing, observer
from benchmarks.corpora.outcome import OVER, first_line
from benchmarks.corpora.processes import Command, Ended, Limits, run

ROOT = Path(__file__).resolve().parents[2]
SHIMS = ROOT / "nki_sim" / "shims"

_ERROR = re.compile(r"^(?:E\s+|INTERNALERROR>\s+)?([\w.]*(?:Error|Exception)\b.*)$", re.MULTILINE)


@dataclass(frozen=True)
class Suite:
    """How a corpus runs its own tests: where imports are, options for pytest, limits for each test."""

    root: Path
    paths: Sequence[Path]
    options: Sequence[str]
    target: str
    tests_per_function: int
    test_seconds: float
    hollow: frozenset[str] = field(default_factory=frozenset)


def variables(target: str, paths: Sequence[Path], events: Path, hollow: frozenset[str]) -> dict[str, str]:
    """What a process of a corpus needs to find the simulator and to run kernels on it."""
    return {
        "PYTHONPATH": ":".join(str(path) for path in (SHIMS, *paths, ROOT)),
        "NKI_SIM_FORCE": "1",
        "NKI_SIMULATOR": "1",
        "NEURON_PLATFORM_TARGET_OVERRIDE": target,
        # Public code is mostly of releases before 0.7, and loops over registers.
        "NKI_COMPILER_FRONTEND": "custom",
        observer.VARIABLE: str(events),
        missing.VARIABLE: ",".join(sorted(hollow)),
    }


def module(suite: Suite, file: Path, limits: Limits, book: ledger.Ledger) -> None:
    """Run one test module and enter its results, or what went wrong with the module itself."""
    with tempfile.TemporaryDirectory() as scratch:
        events = Path(scratch) / "events"
        argv = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "benchmarks.corpora.plugin",
            "-p",
            "no:cacheprovider",
        ]
        argv += ["--compat-tests", str(suite.tests_per_function), "--compat-seconds", str(suite.test_seconds)]
        argv += [*(option.replace("{scratch}", scratch) for option in suite.options), str(file)]
        found = variables(suite.target, suite.paths, events, suite.hollow)
        ended = run(Command(argv, found, suite.root), limits, events)
        seen = observer.read(events)
    over = ended.status is None
    ledger.of_tests(book, seen, end=OVER if over else "the process of the tests died")
    tests = [event for event in seen if event["event"] == "test"]
    late = over or any(OVER in test["reason"] for test in tests)
    if late or not tests:
        called = any(event["event"] == "kernel" for event in seen)
        book.blame(file, OVER if late else _complaint(ended), called=called)


def _complaint(ended: Ended) -> str:
    found = _ERROR.findall(ended.out + "\n" + ended.err)
    return first_line(found[-1]) if found else f"no test was run (status {ended.status})"
