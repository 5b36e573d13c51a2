"""nki-samples: scripts of tutorials and contributions, and tests with the marker `simulation` by its suite.

A tutorial's script compares kernels with NumPy, PyTorch or JAX itself; where such a package is absent, the
script is left out and its kernels say so.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from benchmarks.corpora import ledger, observer, sources, suites
from benchmarks.corpora.outcome import OVER, Outcome
from benchmarks.corpora.processes import Command, Ended, Limits, each, run

PACKAGES = "src"
PLACES = (PACKAGES, "contributed")
"""Folders with kernels."""
SCRIPTS = frozenset({"tutorials", "contributed"})
"""Folders whose files say themselves, when they are run, whether their kernels are right."""


def outcomes(options: argparse.Namespace, limits: Limits) -> list[Outcome]:
    """Run scripts and test modules of a checkout and say what became of each kernel in its folders."""
    root: Path = options.corpus
    book = ledger.Ledger(_files(root), root)
    files = [*scripts(root), *tests(root)]
    suite = suites.Suite(
        root=root,
        paths=[root / PACKAGES],
        options=["--simulation-only"],
        target=options.target,
        tests_per_function=options.tests,
        test_seconds=options.timeout,
    )

    def one(file: Path) -> None:
        run_file = script if SCRIPTS.intersection(file.parts) else suites.module
        run_file(suite, file, limits, book)

    chosen = [item for item in files if sources.is_selected(str(item.relative_to(root)), options.only)]
    each(one, chosen, options.jobs)
    return book.outcomes(tried=bool(options.only))


def scripts(root: Path) -> list[Path]:
    """Files of tutorials and contributions that do something when they are run."""
    return [file for file in _files(root) if SCRIPTS.intersection(file.parts) and sources.acts(file)]


def _files(root: Path) -> list[Path]:
    return [file for place in PLACES for file in sources.python_files(root / place)]


def tests(root: Path) -> list[Path]:
    """Test modules with tests that need no device."""
    found = sources.python_files(root / "test")
    return [
        file for file in found if file.name.startswith("test_") and sources.mentions(file, "mark.simulation")
    ]


def script(suite: suites.Suite, file: Path, limits: Limits, book: ledger.Ledger) -> str:
    """Run one script and enter its results, or what kept it from its kernels, which is also returned."""
    with tempfile.TemporaryDirectory() as scratch:
        events = Path(scratch) / "events"
        found = suites.variables(suite.target, [file.parent, *suite.paths], events, suite.hollow)
        argv = [sys.executable, "-m", "benchmarks.corpora.drive", str(file)]
        ended = run(Command(argv, found, Path(scratch)), limits)
        seen = observer.read(events)
    called = any(event["event"] == "kernel" for event in seen)
    absent = _absent_package(ended)
    if absent:
        book.blame(file, f"needs the package {absent}", called=called)
        return f"needs the package {absent}"
    over = ended.status is None
    ledger.of_script(
        book,
        seen,
        asserts=sources.mentions(file, "assert"),
        end=OVER if over else "the script's process died",
    )
    if ended.status == 0 and seen:
        return ""
    complaint = OVER if over else _last(ended)
    book.blame(file, complaint, called=called)
    return complaint


def _absent_package(ended: Ended) -> str:
    mark = "ModuleNotFoundError: No module named '"
    line = _last(ended)
    name = line.removeprefix(mark).partition("'")[0].partition(".")[0] if line.startswith(mark) else ""
    return "" if name in {"nki", "neuronxcc", "nki_sim"} else name


def _last(ended: Ended) -> str:
    said = [line for line in ended.err.splitlines() if line.strip()]
    return said[-1][:300] if said else "it calls no kernel"
