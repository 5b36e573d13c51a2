"""What a verb of `nki-sim` is: a name, options, what it does, and the report it fills.

Every verb prints one object of the same keys whatever happens: `verb`, those below where it takes a kernel,
its own `keys`, and `error`. What is not known, or does not apply, is null or empty.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nki_sim.cli import report_text
from nki_sim.cli.report_text import Report

EXIT_INCORRECT, EXIT_USAGE, EXIT_KERNEL, EXIT_INTERNAL, EXIT_INTERRUPTED = 1, 2, 3, 70, 130

_ASKED: Report = {
    "file": None,
    "kernel": None,
    "target": None,
    "inputs": None,
    "correct": None,
    "rel_l2": {},
    "tolerance": None,
    "checks": [],
}
_FOUND: Report = {
    "counters": {},
    "seconds": {"trace": 0.0, "run": 0.0},
}

Action = Callable[[argparse.Namespace, Report], int]
"""Fills the report as it goes, so that what is known is reported when it fails; returns the exit status."""


def _no_options(parser: argparse.ArgumentParser) -> None:
    del parser


@dataclass(frozen=True, kw_only=True)
class Verb:
    """One verb. `lines` is its report for people; `keys` are those it adds, with what they are at first."""

    name: str
    text: str
    action: Action
    options: Callable[[argparse.ArgumentParser], None] = _no_options
    lines: Callable[[Report, Path | None], Iterable[str]] = report_text.format_report
    keys: Mapping[str, Any] = field(default_factory=dict)
    on_kernel: bool = True

    def blank_report(self) -> Report:
        """The report before anything is known."""
        asked, found = (_ASKED, _FOUND) if self.on_kernel else ({}, {})
        return copy.deepcopy({"verb": self.name, **asked, **self.keys, **found, "error": None})
