"""What became of one kernel of a corpus, and how many got how far."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

OVER = "time is over"
"""The reason of what its limit of time ended."""


@dataclass
class Outcome:
    """One kernel. `correct` is None when nothing in the corpus compares its result with anything.

    `raised` says whether its canonical form issues the same program; None where it has none, or where
    nothing was tried. `unraised` is the reason.
    """

    kernel: str
    traced: bool = False
    correct: bool | None = None
    reason: str = ""
    seconds: float = 0.0
    peak_mib: float = 0.0
    runs: int = 0
    failures: int = 0
    raised: bool | None = None
    unraised: str = ""

    def add(self, *, traced: bool, correct: bool | None, reason: str, seconds: float = 0.0) -> None:
        """Count one more run of it: wrong once is wrong, and the first reason is kept."""
        self.runs += 1
        self.traced = self.traced or traced
        self.seconds += seconds
        if correct is not None:
            self.correct = correct if self.correct is None else self.correct and correct
        if correct is not True:
            self.failures += 1
            self.reason = self.reason or reason

    def add_raise(self, same: bool | None, reason: str) -> None:
        """Note a raised kernel; one that issues another program stays wrong."""
        if self.raised is not False:
            self.raised = same if self.raised is None or not same else True
        self.unraised = self.unraised or reason

    @property
    def good(self) -> bool:
        return self.traced and self.correct is True


def report(kind: str, corpus: str, target: str, outcomes: Iterable[Outcome]) -> dict[str, Any]:
    """The result as JSON holds it."""
    ordered = sorted(outcomes, key=lambda item: item.kernel)
    return {
        "kind": kind,
        "corpus": corpus,
        "target": target,
        "found": len(ordered),
        "traced": sum(item.traced for item in ordered),
        "correct": sum(item.good for item in ordered),
        "raised": sum(item.raised is True for item in ordered),
        "kernels": [vars(item) for item in ordered],
    }


def lines(result: dict[str, Any]) -> Iterator[str]:
    """The same for people: a line for each kernel, reasons beside those that are not correct."""
    width = max((len(item["kernel"]) for item in result["kernels"]), default=0)
    for item in result["kernels"]:
        state = "correct" if item["traced"] and item["correct"] else "traced" if item["traced"] else "-"
        size = f"{item['seconds']:8.1f} s {item['peak_mib']:7.0f} MiB" if item["runs"] else ""
        tries = f" {item['runs'] - item['failures']}/{item['runs']}" if item["runs"] > 1 else ""
        why = "" if state == "correct" else f"  {item['reason']}"
        why += f"  not raised: {item['unraised']}" if item["unraised"] else ""
        yield f"{item['kernel']:<{width}}  {state:<8}{tries:<7}{size}{why}"
    found, traced, correct, raised = (result[name] for name in ("found", "traced", "correct", "raised"))
    yield (
        f"{result['kind']}: {found} kernels found, {traced} traced, {correct} correct, "
        f"{raised} raised to the same program"
    )


def first_line(text: str, limit: int = 300) -> str:
    """The first line that says something, cut to `limit` characters."""
    found = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return found[:limit]
