"""Hosts under faults: one job's life while links are cut, machines reboot and clocks jump.

A real SSH server starts for each fault. A home sends inputs and has a job wait at a gate on the host; the
fault strikes, the gate opens, the result is fetched, and the job is forgotten. The job counts its beginnings
and ends on the host. It needs root, for network namespaces.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.faults.scenario import Case, Report
from tests.support.host_faults import (
    CUTS,
    ENDED_BY,
    FAULTS,
    VERBS,
    Fault,
    Outcome,
    Rig,
    cut_at,
    run_job_through,
    set_up_host,
)

_HEAD = f"{'fault':<44} {'result':<18} {'begun':>5} {'ended':>5} {'core':>5} {'left':>5} {'s':>6}"


def find_obstacle() -> str | None:
    if os.geteuid() != 0:
        return "needs root, for network namespaces"
    missing = [name for name in ("sshd", "ip", "iptables") if not _is_installed(name)]
    return f"needs {', '.join(missing)}" if missing else None


def _is_installed(program: str) -> bool:
    return shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin") is not None


@dataclass(frozen=True)
class Trial:
    """A fault, what else happens to the link, and what must come of it."""

    fault: Fault
    expected: str = "done"
    begins: int = 1
    around: Callable[[Rig], AbstractContextManager[object]] = lambda _: nullcontext()


def list_trials() -> Iterator[tuple[str, Trial]]:
    """Every fault by name: those that a job survives, a link cut around each verb, and those that end it."""
    for name, fault in FAULTS.items():
        yield name, Trial(fault, begins=fault.begins)
    for verb in VERBS:
        for when in CUTS:
            yield f"link cut {when} {verb}", Trial(FAULTS["nothing"], around=_cut_around(verb, when))
    for name, (fault, code) in ENDED_BY.items():
        yield name, Trial(fault, expected=code, begins=fault.begins)


def _cut_around(verb: str, when: str) -> Callable[[Rig], AbstractContextManager[object]]:
    return lambda rig: cut_at(verb, when, rig.sshd)


def run(options: argparse.Namespace, report: Report) -> None:
    chosen = [(name, trial) for name, trial in list_trials() if options.only in name]
    for name, trial in chosen[:: options.every]:
        report(asyncio.run(run_trial(name, trial)))


async def run_trial(name: str, trial: Trial) -> Case:
    with tempfile.TemporaryDirectory() as folder:
        async with set_up_host(Path(folder), trial.fault) as rig:
            with trial.around(rig):
                outcome = await run_job_through(rig, trial.fault.inflict)
    figures = {
        "begun": outcome.begun,
        "ended": outcome.ended,
        "cores_free": outcome.cores_free,
        "left": len(outcome.litter),
        "seconds": outcome.seconds,
    }
    return Case(name, "1", outcome.status, wrong=find_wrong(outcome, trial), figures=figures)


def find_wrong(outcome: Outcome, trial: Trial) -> str:
    """What must not be of an outcome; empty where there is nothing."""
    is_done = trial.expected == "done"
    checks = (
        (f"expected {trial.expected}", outcome.status != trial.expected),
        ("the result is not right", is_done and not outcome.right),
        (f"began {outcome.begun} times, not {trial.begins}", outcome.begun != trial.begins),
        ("did not end exactly once", is_done and outcome.ended != 1),
        ("a core is held", not outcome.cores_free),
        # A home does not speak with a host whose key is another; what is there goes with its age.
        (f"left {len(outcome.litter)} files", bool(outcome.litter) and trial.expected != "host_key_changed"),
    )
    return "; ".join(text for text, is_wrong in checks if is_wrong)


def summarize(cases: Sequence[Case]) -> list[dict[str, Any]]:
    return [
        {"fault": case.fault, "result": case.outcome, **case.figures, "wrong": case.wrong} for case in cases
    ]


def format_table(summary: Sequence[Mapping[str, Any]]) -> list[str]:
    return [_HEAD, *map(_format_row, summary)]


def _format_row(row: Mapping[str, Any]) -> str:
    core = "free" if row["cores_free"] else "HELD"
    counts = f"{row['begun']:>5} {row['ended']:>5} {core:>5} {row['left']:>5}"
    return f"{row['fault']:<44} {row['result']:<18} {counts} {row['seconds']:>6.1f} {row['wrong']}".rstrip()
