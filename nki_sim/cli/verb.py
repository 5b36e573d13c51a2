"""Defines a verb of `nki-sim`: a name, options, an action, and the report it fills.

Every verb prints one object with the same keys whatever happens: `verb`, the keys below if it takes a kernel,
its own `keys`, and `error`. Values that are unknown or do not apply are null or empty.
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
    "warnings": [],
}
_FOUND: Report = {
    "counters": {},
    "seconds": {"trace": 0.0, "run": 0.0},
}

Action = Callable[[argparse.Namespace, Report], int]
"""Fills the report step by step, so that a failure reports what is known; returns the exit status."""


def _no_options(parser: argparse.ArgumentParser) -> None:
    del parser


@dataclass(frozen=True, kw_only=True)
class Verb:
    """One verb. `lines` formats its report for people; `keys` are the keys it adds, with their initial
    values.
    """

    name: str
    text: str
    action: Action
    options: Callable[[argparse.ArgumentParser], None] = _no_options
    lines: Callable[[Report, Path | None], Iterable[str]] = report_text.format_report
    keys: Mapping[str, Any] = field(default_factory=dict)
    on_kernel: bool = True

    def blank_report(self) -> Report:
        """Return the report before the verb has run."""
        asked, found = (_ASKED, _FOUND) if self.on_kernel else ({}, {})
        return copy.deepcopy({"verb": self.name, **asked, **self.keys, **found, "error": None})
