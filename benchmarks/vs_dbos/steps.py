"""What a step does on either side of `benchmarks.vs_dbos`, and the journal that tells which bodies ran.

A step writes a line when it begins, waits, writes a line when it ends, and returns a text that follows from
its workflow and its name. The journal is a file beside the store that no store knows of: lines are appended
whole, by whichever process is at work, and stay when that one is killed.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

UP, BEGIN, END = "up", "begin", "end"
_JOURNAL, _WORK, _ENDING, _PRAGMAS = "journal", "work.json", "ending.json", "pragmas.json"
PRAGMAS = ("journal_mode", "synchronous")
"""What says when a commit is on disk."""

Results = Mapping[str, Mapping[str, str]]
"""The digest of what each step returned, by workflow and step, as the store has it in the end."""


@dataclass(frozen=True, slots=True)
class Work:
    """What one side has to do: `workflows` at once, each of so many rounds, or steps with DBOS."""

    workflows: int
    length: int
    step_ms: float
    result_bytes: int = 1000
    variant: str = ""

    def names(self) -> list[str]:
        return [f"workflow-{number}" for number in range(self.workflows)]

    def save(self, folder: Path) -> None:
        _write(folder / _WORK, asdict(self))

    @classmethod
    def load(cls, folder: Path) -> Work:
        return cls(**_read(folder / _WORK))


class Line(NamedTuple):
    """A line of a journal: what happened, at which second of the machine's monotonic clock, to which step."""

    kind: str
    at: float
    workflow: str
    step: str


class Steps:
    """The steps of one process: their bodies write to the journal of `folder`."""

    def __init__(self, folder: Path, work: Work) -> None:
        self._seconds = work.step_ms / 1000
        self._bytes = work.result_bytes
        self._file = os.open(folder / _JOURNAL, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC)
        self._note(UP, "-", "-")

    @contextmanager
    def body(self, workflow: str, step: str) -> Iterator[tuple[float, str]]:
        """Note that the step begins; give the seconds to wait and the text to return; note that it ends."""
        self._note(BEGIN, workflow, step)
        yield self._seconds, text_of(workflow, step, self._bytes)
        self._note(END, workflow, step)

    def _note(self, kind: str, workflow: str, step: str) -> None:
        os.write(self._file, f"{kind} {time.monotonic_ns()} {workflow} {step}\n".encode())


class Journal:
    """The journal of `folder`, read as it grows."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / _JOURNAL
        self._offset = 0

    def fresh(self) -> list[Line]:
        """Return the lines that were not returned before."""
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._offset)
            text = file.read()
        whole = text[: text.rfind(b"\n") + 1]
        self._offset += len(whole)
        return [_line(line) for line in whole.decode().splitlines()]


def _line(text: str) -> Line:
    kind, at, workflow, step = text.split()
    return Line(kind, int(at) / 1e9, workflow, step)


def text_of(workflow: str, step: str, size: int) -> str:
    """Return `size` characters that no other step has."""
    return hashlib.shake_128(f"{workflow} {step}".encode()).hexdigest((size + 1) // 2)[:size]


def digest_of(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


# --- what a side says besides ----------------------------------------------------------------------


def tell_pragmas(folder: Path, pragmas: Mapping[str, str | int]) -> None:
    """Say what is in force on the connections that write."""
    _write(folder / _PRAGMAS, dict(pragmas))


def told_pragmas(folder: Path) -> dict[str, str | int]:
    return dict(_read(folder / _PRAGMAS))


def tell_results(folder: Path, results: Results) -> None:
    """Say that all work has ended, and what the store then has."""
    _write(folder / _ENDING, {name: dict(steps) for name, steps in results.items()})


def told_results(folder: Path) -> dict[str, dict[str, str]]:
    return dict(_read(folder / _ENDING))


def _write(path: Path, content: object) -> None:
    path.write_text(json.dumps(content), encoding="utf-8")


def _read(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return content
