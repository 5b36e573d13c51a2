"""What a scenario is: what is killed or fails, how often, and what must hold; and what comes of each case."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Case:
    """One fault at one place. `wrong` says what must not be; empty where everything held."""

    fault: str
    place: str
    outcome: str
    wrong: str = ""
    figures: Mapping[str, Any] = field(default_factory=dict)

    def encode(self) -> dict[str, Any]:
        """As JSON-like data. `dataclasses.asdict` would spoil a `Counter` among the figures."""
        return {
            "fault": self.fault,
            "place": self.place,
            "outcome": self.outcome,
            "wrong": self.wrong,
            "figures": dict(self.figures),
        }

    def __str__(self) -> str:
        return f"{self.fault} at {self.place}: {self.wrong or self.outcome}"


Report = Callable[[Case], None]
"""Takes a case as soon as it is over; raises what ends the scenario when the deadline has passed."""


def list_wrong_cases(cases: Sequence[Case]) -> list[str]:
    return [str(case) for case in cases if case.wrong]


def find_no_obstacle() -> None:
    return None


def ignore_arguments(_: argparse.ArgumentParser) -> None:
    """The scenario has no arguments of its own."""


def draw_nothing(_: argparse.Namespace, __: Sequence[Case]) -> None:
    """The scenario has no picture."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """A row of the table: what happens to the daemon or its log, and what must hold whatever happens."""

    name: str
    fails: str
    rate: str
    must_hold: str
    run: Callable[[argparse.Namespace, Report], None]
    """Makes every case that the arguments ask for, and reports each."""
    summarize: Callable[[Sequence[Case]], Any]
    """What the cases come to, as JSON-like data."""
    format: Callable[[Any], Iterable[str]]
    """The summary, as lines for people."""
    judge: Callable[[Sequence[Case]], list[str]] = list_wrong_cases
    """What must not be."""
    find_obstacle: Callable[[], str | None] = find_no_obstacle
    """Why it cannot run on this machine; None if it can."""
    add_arguments: Callable[[argparse.ArgumentParser], None] = ignore_arguments
    draw: Callable[[argparse.Namespace, Sequence[Case]], None] = draw_nothing
