"""nki-library: its own integration tests in their CPU simulation mode, against its own golden functions.

The mode imports a package `nki_cpu_simulator`; `standins/nki_cpu_simulator` gives it the simulator's front
end under those names. Which tests a platform runs is the suite's own choice.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.corpora import ledger, missing, sources, suites
from benchmarks.corpora.outcome import Outcome
from benchmarks.corpora.processes import Limits, each

CORE = Path("test/integration/nkilib/core")
UNSET = "test.utils.test_orchestrator:Orchestrator._compiled_kernel"
"""The suite reads this after a simulation too, in which it compiles nothing."""

MODE = ("--test-mode", "simulation", "--output-directory", "{scratch}/out", "--compat-none", UNSET)
SOURCES = Path("src/nkilib_src/nkilib/core")


def outcomes(options: argparse.Namespace, limits: Limits) -> list[Outcome]:
    """Run the test modules of the core kernels, and say what became of each kernel that they are about."""
    root: Path = options.corpus
    book = ledger.Ledger(sources.python_files(root / SOURCES), root / SOURCES)
    modules = [
        file
        for file in sources.python_files(root / CORE)
        if file.name.startswith("test_") and sources.is_selected(str(file.relative_to(root)), options.only)
    ]
    helpers = sources.python_files(root / "test")
    hollow = frozenset(missing.absent(missing.imported_by(list(helpers), root), [root, root / "src"]))
    suite = suites.Suite(
        root=root,
        paths=[root, root / "src"],
        options=[*MODE, "--platform-target", options.target],
        target=options.target,
        tests_per_function=options.tests,
        test_seconds=options.timeout,
        hollow=hollow,
    )

    def one(file: Path) -> None:
        suites.module(suite, file, limits, book)

    each(one, modules, options.jobs)
    return book.outcomes(tried=True)
