"""Processes that do the work of `benchmarks.vs_dbos` until they are killed, and the story they leave."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from benchmarks.vs_dbos.steps import (
    BEGIN,
    END,
    UP,
    Journal,
    Line,
    Results,
    Work,
    digest_of,
    text_of,
    told_pragmas,
    told_results,
)

ROOT = Path(__file__).resolve().parents[2]
POLL_SECONDS = 0.002
PATIENCE_SECONDS = 300.0


class Side(NamedTuple):
    """Who does the work: its name for people, its module, and what the work tells it besides."""

    name: str
    module: str
    variant: str = ""


class Life(NamedTuple):
    """One process at work: when it was started, and when it ended or was killed (monotonic seconds)."""

    began: float
    ended: float


class Worker:
    """A process of a side at work in `folder`."""

    def __init__(self, side: Side, folder: Path) -> None:
        self._log = folder / "log"
        self._journal = Journal(folder)
        self._journal.fresh()
        self.begun: list[Line] = []
        self._began = time.monotonic()
        with self._log.open("ab") as output:
            command = [sys.executable, "-m", side.module, str(folder)]
            self.process = subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=output)

    def until(self, reached: Callable[[list[Line]], bool]) -> bool:
        """Wait until `reached` holds of the steps that this process began; False if it ended before.

        Raises:
            RuntimeError: the process failed.
            TimeoutError: nothing of the kind within `PATIENCE_SECONDS`.
        """
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not self._look(reached):
            if self.process.poll() is not None:
                self._check()
                return False
            if time.monotonic() > deadline:
                raise TimeoutError(f"no progress within {PATIENCE_SECONDS:g} s: {self._said()}")
            time.sleep(POLL_SECONDS)
        return True

    def _look(self, reached: Callable[[list[Line]], bool]) -> bool:
        self.begun += [line for line in self._journal.fresh() if line.kind == BEGIN]
        return reached(self.begun)

    def finish(self) -> Life:
        """Wait until all work has ended; raises RuntimeError when the process failed."""
        self.process.wait(PATIENCE_SECONDS)
        self._check()
        return Life(self._began, time.monotonic())

    def kill(self) -> Life:
        self.process.kill()
        life = Life(self._began, time.monotonic())
        self.process.wait()
        return life

    def _check(self) -> None:
        if self.process.returncode:
            raise RuntimeError(f"status {self.process.returncode}: {self._said()}")

    def _said(self) -> str:
        return self._log.read_text(errors="replace")[-3000:]


@contextmanager
def working(side: Side, folder: Path) -> Iterator[Worker]:
    """Start a worker; it is killed in the end if it still runs."""
    worker = Worker(side, folder)
    try:
        yield worker
    finally:
        worker.kill()


class Recovery(NamedTuple):
    """Seconds from the start of a process: until its program is loaded, one, and all workflows go on."""

    loaded: float
    first: float
    every: float


@dataclass(frozen=True, slots=True)
class Story:
    """What happened in one folder: the processes' lives, the journal, and what the store has in the end."""

    work: Work
    lives: list[Life]
    lines: list[Line]
    results: Results
    pragmas: dict[str, str | int]

    @classmethod
    def of(cls, folder: Path, work: Work, lives: list[Life]) -> Story:
        return cls(work, lives, Journal(folder).fresh(), told_results(folder), told_pragmas(folder))

    @property
    def begun(self) -> list[Line]:
        return [line for line in self.lines if line.kind == BEGIN]

    @property
    def steps(self) -> set[tuple[str, str]]:
        """Workflow and name of every step."""
        return {(line.workflow, line.step) for line in self.begun}

    def steps_per_second(self) -> float:
        """Return the rate from the first step's begin to the last one's end."""
        last = max(line.at for line in self.lines if line.kind == END)
        return len(self.begun) / (last - self.begun[0].at)

    def recoveries(self) -> list[Recovery]:
        """Return how each process that came after a kill took the work up again."""
        return [self._recovery(life) for life in self.lives[1:]]

    def _recovery(self, life: Life) -> Recovery:
        lines = [line for line in self.lines if life.began < line.at < life.ended]
        first: dict[str, float] = {}
        for line in lines:
            if line.kind == BEGIN:
                first.setdefault(line.workflow, line.at - life.began)
        loaded = next(line.at for line in lines if line.kind == UP) - life.began
        return Recovery(loaded, min(first.values()), max(first.values()))

    def repeated(self) -> list[list[float]]:
        """Return for each kill the seconds spent in steps that were begun before it, and again after."""
        found: list[list[float]] = [[] for _ in self.lives[:-1]]
        spans: dict[tuple[str, str], tuple[float, float | None]] = {}
        for line in self.lines:
            place = (line.workflow, line.step)
            if line.kind == END:
                spans[place] = (spans[place][0], line.at)
            elif line.kind == BEGIN:
                if place in spans:
                    began, ended = spans[place]
                    life = next(n for n, one in enumerate(self.lives) if one.began < began < one.ended)
                    found[life].append((ended or self.lives[life].ended) - began)
                spans[place] = (line.at, None)
        return found

    def lost(self) -> set[tuple[str, str]]:
        """Return the steps whose acknowledged result was not there later.

        That is: begun again although a later one of their workflow had begun; or not in the store in the
        end, or not with the text that the step returned.
        """
        last: dict[str, list[str]] = {}
        again = set()
        for line in self.begun:
            order = last.setdefault(line.workflow, [])
            if line.step not in order:
                order.append(line.step)
            elif line.step != order[-1]:
                again.add((line.workflow, line.step))
        return again | {place for place in self.steps if not self._stored(*place)}

    def _stored(self, workflow: str, step: str) -> bool:
        wanted = digest_of(text_of(workflow, step, self.work.result_bytes))
        return self.results.get(workflow, {}).get(step) == wanted


def undisturbed(side: Side, work: Work, folder: Path) -> Story:
    """Have the work done by one process."""
    _prepare(side, work, folder)
    with working(side, folder) as worker:
        return Story.of(folder, work, [worker.finish()])


def struck(side: Side, work: Work, folder: Path, *, kills: int, chosen: random.Random) -> Story:
    """Have the work done by processes that get SIGKILL, each once all workflows are under way again.

    It comes after some more steps, up to two per workflow, and then somewhere in a step.
    """
    _prepare(side, work, folder)
    lives: list[Life] = []
    while len(lives) < kills:
        more, pause = chosen.randrange(2 * work.workflows), chosen.uniform(0, 1.5 * work.step_ms / 1000)
        with working(side, folder) as worker:
            if not worker.until(lambda begun: len({line.workflow for line in begun}) == work.workflows):
                raise RuntimeError(f"{side.name}: all work ended after {len(lives)} of {kills} kills")
            worker.until(partial(_as_many, len(worker.begun) + more))
            time.sleep(pause)
            lives.append(worker.kill())
    with working(side, folder) as worker:
        return Story.of(folder, work, [*lives, worker.finish()])


def _as_many(count: int, begun: list[Line]) -> bool:
    return len(begun) >= count


def _prepare(side: Side, work: Work, folder: Path) -> None:
    folder.mkdir()
    replace(work, variant=side.variant).save(folder)
