"""A run whose kernels are compiled and measured on this machine, in a process that can be killed.

`python -m tests.targets.c.measured_run HOME RUN JOURNAL` hosts a home until the run has ended, and prints how
many commits its log had meanwhile. The journal is a folder. It has a line for each compilation and
measurement that began, and the times of each measurement. A measurement that has times there is made, but
these times are told. So a run that was killed can be compared with one that was not: both are told the same
times.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from agent_core import proposers
from daemon.command_models import Submit, run_id
from daemon.inbox import put_command
from daemon.process_logging import configure_logging
from daemon.workers import Workers
from remote.judge_service import JudgeService
from remote.sandbox import JailResult
from state import crash
from state.atomic_files import atomic_write
from state.model import RunConfig, SearchConfig, digest_of
from targets.c import evaluator
from targets.c.compiler import BuiltKernel, KernelBuilder
from targets.c.evaluator import CpuEvaluator
from targets.c.language import C
from targets.c.runner import KernelFault, KernelRunner, TimedCalls, TimingTask
from tests.support import fakes
from tests.targets.c.kernels import PLAIN, PROBLEM

_COMMIT = "log.after_commit"
_MANY = 1 << 30

KERNEL = """// tune: REPEATS in 300, 30, 3000
#define REPEATS 300
// tune: flags in "-O1", "-O0"
// flags: -O1
""" + PLAIN.replace(
    "{\n",
    "{\n    static volatile float sink;\n"
    "    for (int i = 0; i < REPEATS * 1000; i++)\n        sink = x[i % 64];\n",
    1,
)
"""A kernel whose variants differ by much more than a measurement's error."""

CONFIG = RunConfig(
    problem="shifted_scale",
    size="reduced",
    target="x86",
    evaluator="cpu",
    planner=("parameters",),
    seed=3,
    search=SearchConfig(beam=1, plans=1, rounds=2, explorers=0, repairs=0, within_percent=0),
)
_BRIEF = TimingTask(warmups=1, pairs=4, rounds=2, seconds=30.0)


class MeasurementJournal:
    """What the processes of one run compiled and measured."""

    def __init__(self, folder: Path) -> None:
        self._begun, self._times = folder / "begun.jsonl", folder / "times"
        self._times.mkdir(parents=True, exist_ok=True)

    def note(self, work: str, subject: str) -> None:
        """Write down that work on a kernel begins, before it does."""
        with self._begun.open("a") as file:
            file.write(json.dumps([work, subject]) + "\n")

    def begun(self) -> Counter[tuple[str, str]]:
        """Return how often each work on each kernel began."""
        lines = self._begun.read_text().splitlines() if self._begun.exists() else []
        return Counter((work, subject) for work, subject in map(json.loads, lines))

    def known_times(self) -> set[str]:
        """Return which measurements have times."""
        return {path.name for path in self._times.iterdir()}

    def settle_times(self, kernels: Sequence[str], number: int, found: TimedCalls) -> TimedCalls:
        """Return the times of these kernels' measurement of this number: the first that were taken."""
        path = self._times / f"{digest_of(json.dumps([kernels, number]).encode())}.json"
        if not path.exists():
            with atomic_write(path) as part:
                part.write_text(json.dumps(found.samples))
        return TimedCalls(json.loads(path.read_text()), found.outputs, {})


class CountedBuilder(KernelBuilder):
    """Notes each compilation."""

    def __init__(self, builder: KernelBuilder, journal: MeasurementJournal) -> None:
        vars(self).update(vars(builder))
        self._journal = journal

    async def _run_compiler(self, request: Any) -> JailResult:
        self._journal.note("compile", C.code_digest(request["source"].encode()))
        return await super()._run_compiler(request)


class CountedRunner(KernelRunner):
    """Notes each measurement, and tells the times that were taken first."""

    def __init__(self, runner: KernelRunner, journal: MeasurementJournal) -> None:
        vars(self).update(vars(runner))
        self._journal = journal
        self._taken: Counter[tuple[str, ...]] = Counter()

    async def time(self, kernels: Sequence[BuiltKernel], run: Any, **how: Any) -> TimedCalls | KernelFault:
        names = tuple(kernel.digest for kernel in kernels)
        self._journal.note("measure", C.code_digest(run.source))
        self._taken[names] += 1
        found = await super().time(kernels, run, **how)
        return (
            found
            if isinstance(found, KernelFault)
            else self._journal.settle_times(names, self._taken[names], found)
        )


def measuring_workers(home: Path, journal: MeasurementJournal) -> Workers:
    """Return workers that measure on this machine."""
    judge = CpuEvaluator(JudgeService(home=home, slots=1), task=_BRIEF)
    judge._builder = CountedBuilder(judge._builder, journal)
    judge._runner = CountedRunner(judge._runner, journal)
    return Workers(create_evaluator=lambda _: judge, create_proposer=proposers.create_proposer)


def submit_measured_run(home: Path) -> str:
    """Drop a submit into the inbox of `home`; return the run's id."""
    submit = Submit.model_construct(verb="submit", config=CONFIG, files=PROBLEM, kernel=KERNEL)
    return run_id(put_command(home, submit), CONFIG.problem)


def kill_after(commits: int) -> dict[str, str]:
    """Return the environment in which the process is killed after so many commits of its log."""
    return {**os.environ, crash.ENVIRONMENT: f"{_COMMIT}:{commits}"}


def main() -> None:
    """Host a home until its run has ended."""
    home, run, journal = Path(sys.argv[1]), sys.argv[2], MeasurementJournal(Path(sys.argv[3]))
    configure_logging("warning")  # to stderr
    crash._trigger = crash._trigger or crash.parse_trigger(f"{_COMMIT}:{_MANY}")
    assert crash._trigger is not None
    most = crash._trigger.left
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evaluator, "UNSTABLE_RATIO", 100.0)
        patch.setattr(os, "getloadavg", lambda: (1.0, 1.0, 1.0))  # profiles record it
        fakes.finish_runs(home, run, workers=measuring_workers(home, journal))
    print(most - crash._trigger.left)


if __name__ == "__main__":
    main()
