"""Any checkout: every script that runs kernels, and every test module, judged by what they say themselves.

A script that prints that results match, or asserts it, judges its kernels; so does a test that passes. Files
that do not mention NKI are left alone. Packages that compute references must be installed, others become
hollow.
"""

from __future__ import annotations

import argparse
import ast
from pathlib import Path

from benchmarks.corpora import ledger, missing, samples, sources, suites
from benchmarks.corpora.outcome import Outcome
from benchmarks.corpora.processes import Limits, each


def outcomes(options: argparse.Namespace, limits: Limits) -> list[Outcome]:
    """Run the scripts and test modules of a checkout and say what became of each kernel in it."""
    root: Path = options.corpus
    files = [file for file in sources.python_files(root) if sources.mentions(file, "nki")]
    book = ledger.Ledger(files, root)
    hollow = frozenset(missing.absent(missing.imported_by(files, root), [root, root / "src"]))

    def one(file: Path) -> None:
        suite = suites.Suite(
            root=file.parent,
            paths=[file.parent, root, root / "src"],
            options=[],
            target=options.target,
            tests_per_function=options.tests,
            test_seconds=options.timeout,
            hollow=hollow,
        )
        run_file = suites.module if has_tests(file) else samples.script
        run_file(suite, file, limits, book)

    chosen = [file for file in files if has_tests(file) or sources.acts(file)]
    each(
        one,
        [file for file in chosen if sources.is_selected(str(file.relative_to(root)), options.only)],
        options.jobs,
    )
    return book.outcomes(tried=bool(options.only))


def has_tests(file: Path) -> bool:
    """Whether pytest finds tests in a file: cases of unittest, or functions without arguments to be given."""
    tree = sources.parse_source(file)
    return tree is not None and any(_is_test(node) for node in tree.body)


def _is_test(node: ast.stmt) -> bool:
    if isinstance(node, ast.ClassDef):
        bases = {ast.unparse(base).rpartition(".")[2] for base in node.bases}
        return "TestCase" in bases or node.name.startswith("Test")
    plain = isinstance(node, ast.FunctionDef) and not node.args.args
    return plain and node.name.startswith("test")
