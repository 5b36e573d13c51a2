"""Outcomes of kernels, gathered from the events of many processes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.corpora import sources
from benchmarks.corpora.outcome import OVER, Outcome, first_line

WRONG = re.compile(r"\b(differ|differs|mismatch|not match|incorrect|failed|fail)\b", re.IGNORECASE)
RIGHT = re.compile(r"\b(match|matches|pass|passed|correct|close)\b", re.IGNORECASE)


class Ledger:
    """One outcome for each kernel, known from the corpus's files or from having been called."""

    def __init__(self, files: Iterable[Path], root: Path) -> None:
        self._found: dict[str, Outcome] = {}
        self._files: dict[str, Path] = {}
        for file in files:
            for name in sources.kernels(file):
                self._found[name] = Outcome(f"{file.relative_to(root)}:{name}")
                self._files[name] = file

    def outcomes(self, *, tried: bool = False) -> list[Outcome]:
        """All of them, or those alone that something tried to run."""
        if tried:
            return [item for item in self._found.values() if item.runs or item.reason]
        for item in self._found.values():
            item.reason = item.reason or ("" if item.good else "nothing in the corpus runs it")
        return list(self._found.values())

    def of(self, name: str) -> Outcome:
        return self._found.setdefault(name, Outcome(name))

    def blame(self, file: Path, complaint: str, *, called: bool) -> None:
        """A script or test module that did not get to all of its kernels, whether it `called` some or none.

        Those kernels that it imports and that did not run get the reason. What a process whose time was over
        would have called is not known: where it called and imports none, its file stands for its kernels.
        """
        reason = f"{file.name}: {complaint}"
        imported = sources.imports(file.read_text(encoding="utf-8", errors="replace"))
        missed = [name for name, path in self._files.items() if {name, path.stem} & imported]
        for name in missed:
            item = self._found[name]
            if not item.runs:
                item.reason = item.reason or reason
        if complaint == OVER and not missed and not called:
            self.of(file.stem).reason = reason


class Round:
    """The kernels of one script or test that wait for a verdict."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._traced: dict[str, bool] = {}
        self._reasons: dict[str, str] = {}
        self._seconds: Counter[str] = Counter()

    def kernel(self, event: dict[str, Any]) -> None:
        name, state = event["name"], event["state"]
        self._traced[name] = self._traced.get(name, False) or state in {"traced", "ran"}
        if state == "failed":
            self._reasons[name] = event["reason"]
        self._seconds[name] += event.get("seconds", 0.0)
        item = self._ledger.of(name)
        item.peak_mib = max(item.peak_mib, event.get("peak_mib", 0.0))

    def settle(self, *, correct: bool | None, reason: str, refusals: bool = False) -> None:
        """Give the kernels their verdict; one that was refused is wrong unless `refusals` may be right."""
        for name, traced in self._traced.items():
            why = None if refusals and correct else self._reasons.get(name)
            self._ledger.of(name).add(
                traced=traced,
                correct=False if why else correct,
                reason=first_line(why or reason),
                seconds=self._seconds[name],
            )
        for kept in (self._traced, self._reasons, self._seconds):
            kept.clear()


def of_script(ledger: Ledger, events: list[dict[str, Any]], *, asserts: bool, end: str) -> None:
    """A script says itself what is right: by a line such as 'they match' or 'differ', or by an assertion.

    `end` is what to say when the process ended before the script did.
    """
    waiting = Round(ledger)
    for event in events:
        if event["event"] == "kernel":
            waiting.kernel(event)
        elif event["event"] == "raised":
            ledger.of(event["name"]).add_raise(event["same"], event["reason"])
        elif event["event"] == "line" and (WRONG.search(event["text"]) or RIGHT.search(event["text"])):
            waiting.settle(correct=not WRONG.search(event["text"]), reason=event["text"])
        elif event["event"] == "ended":
            good = (True if asserts else None) if event["good"] else False
            waiting.settle(correct=good, reason=event["reason"] or "the script compares it with nothing")
    waiting.settle(correct=False, reason=end)


def of_tests(ledger: Ledger, events: list[dict[str, Any]], *, end: str) -> None:
    """Each test's outcome goes to the kernels it called."""
    waiting = Round(ledger)
    for event in events:
        if event["event"] == "kernel":
            waiting.kernel(event)
        elif event["event"] == "raised":
            ledger.of(event["name"]).add_raise(event["same"], event["reason"])
        elif event["event"] == "test":
            correct = {"passed": True, "failed": False}.get(event["outcome"])
            # A test that passes although its kernel was refused is one that wants it refused.
            waiting.settle(correct=correct, reason=event["reason"], refusals=True)
    waiting.settle(correct=False, reason=end)
