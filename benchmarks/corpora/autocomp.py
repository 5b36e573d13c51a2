"""autocomp: its solutions put into the harness of their problem, which compares them with its reference.

A harness `harnesses/GROUP/N_NAME_test.py` has a line for the solution, `sols/GROUP/N_NAME_ref.py`, which
defines `solution` (or `test`, as the harness calls it).
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.corpora import ledger, samples, sources, suites
from benchmarks.corpora.outcome import Outcome
from benchmarks.corpora.processes import Limits, each

_LINE = "# SUBSTITUTE HERE"


def outcomes(options: argparse.Namespace, limits: Limits) -> list[Outcome]:
    """Run every solution that has a harness; one outcome for each."""
    root: Path = options.corpus
    chosen = [item for item in problems(root) if sources.is_selected(item[0], options.only)]

    def one(problem: tuple[str, Path, Path]) -> Outcome:
        name, harness, solution = problem
        with tempfile.TemporaryDirectory() as scratch:
            script = Path(scratch) / harness.name
            script.write_text(harness.read_text().replace(_LINE, solution.read_text(), 1))
            book = ledger.Ledger([], Path(scratch))
            suite = suites.Suite(
                root=harness.parent,
                paths=[harness.parent, root],
                options=[],
                target=options.target,
                tests_per_function=options.tests,
                test_seconds=options.timeout,
            )
            complaint = samples.script(suite, script, limits, book)
            return _join(name, book.outcomes(), complaint)

    return each(one, chosen, options.jobs)


def problems(root: Path) -> Iterator[tuple[str, Path, Path]]:
    """(name, harness, solution) of each problem for Trainium that has both."""
    for solution in sorted((root / "sols").glob("trn-*/*.py")):
        number = solution.name.partition("_")[0]
        found = sorted((root / "harnesses" / solution.parent.name).glob(f"{number}_*_test.py"))
        if found and sources.mentions(found[0], _LINE):
            yield f"{solution.parent.name}/{solution.stem}", found[0], solution


def _join(name: str, found: list[Outcome], complaint: str) -> Outcome:
    """One outcome for a problem: of the kernels that its harness called, or why it called none."""
    made = Outcome(name)
    called = [item for item in found if item.runs]
    for item in called:
        made.add(traced=item.traced, correct=item.correct, reason=item.reason, seconds=item.seconds)
        made.peak_mib = max(made.peak_mib, item.peak_mib)
    if not called:
        made.reason = complaint or "the harness calls no kernel"
    return made
