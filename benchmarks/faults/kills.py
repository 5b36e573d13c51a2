"""Kills that come fast: of the daemon every few seconds, and of the processes that it starts.

Scenario `kills`: `agentd` gets SIGKILL 1.5 to 6 seconds after it owns its home, again and again, until its
runs have ended. Scenario `children`: `agentd` is left alone, and every second or so one of its children gets
SIGKILL: jails, judge's workers, pools of the rewrite engine. A run that pauses with a reason is resumed,
as a person would do it. Then the same runs are made in a home that nothing strikes, and compared.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.chaos import Seen, ends, everything, outcomes, run_undisturbed, submit
from benchmarks.faults.scenario import Case, Report
from daemon.command_models import Resume
from daemon.inbox import put_command
from state.errors import StateError
from state.events import EffectPoisoned, EffectStarted
from state.home import HomeLayout
from state.lock import read_owner
from state.model import RunConfig, RunStatus, SearchConfig, StopReason
from state.reader import LogReader
from state.verify import verify_log

SEARCH = SearchConfig(
    beam=1, plans=2, rounds=1, within_percent=0, reuse=False, lookahead_predictions=24, lookahead_width=1
)
PROBLEMS = ("silu", "swiglu", "matmul")
DAEMON_PAUSE_S = (1.5, 6.0)
CHILD_PAUSE_S = (0.5, 2.5)
START_S = 120.0
SPARED = ("verify",)
"""What child of the daemon is left alone: its death says that the log is damaged."""


@dataclass
class Struck:
    """A home under `agentd`, and what was done to it."""

    home: Path
    runs: list[str]
    strikes: Counter[str] = field(default_factory=Counter)
    seen: Seen = field(default_factory=Seen)
    process: subprocess.Popen[bytes] | None = None
    resumed: int = 0

    def start(self) -> subprocess.Popen[bytes]:
        """Start the daemon, and wait until it owns the home."""
        self.process = subprocess.Popen(
            [sys.executable, "-m", "daemon", "--home", str(self.home)],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        deadline = time.monotonic() + START_S
        while (owner := read_owner(HomeLayout(self.home).lock)) is None or owner.pid != self.process.pid:
            if time.monotonic() > deadline or self.process.poll() is not None:
                raise RuntimeError(f"agentd did not start: {self.process.poll()}")
            time.sleep(0.02)
        return self.process

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            self.process.wait(60)

    def have_ended(self) -> bool:
        """Look at the log; resume what is paused; return whether all runs have ended."""
        try:
            with LogReader.open(self.home) as reader:
                self.seen.look(reader)
                states = {run: reader.run_state(run) for run in self.runs if reader.run_seq(run)}
        except StateError:  # it is being opened
            return False
        for run, state in states.items():
            if state.status is RunStatus.PAUSED:
                self.resumed += 1
                put_command(self.home, Resume(verb="resume", run=run))
        return len(states) == len(self.runs) and all(state.has_ended for state in states.values())


def strike_daemon(struck: Struck, chances: random.Random, deadline: float) -> None:
    while time.monotonic() < deadline:
        process = struck.start()
        until = time.monotonic() + chances.uniform(*DAEMON_PAUSE_S)
        while time.monotonic() < until:
            time.sleep(0.3)  # each look reads the log, and takes from the daemon's CPU
            if struck.have_ended():
                return
        process.send_signal(signal.SIGKILL)
        process.wait()
        struck.strikes["agentd"] += 1


def strike_children(struck: Struck, chances: random.Random, deadline: float) -> None:
    process = struck.start()
    while time.monotonic() < deadline and not struck.have_ended():
        time.sleep(chances.uniform(*CHILD_PAUSE_S))
        found = list(list_children(process.pid))
        if found:
            pid, name = chances.choice(found)
            os.kill(pid, signal.SIGKILL)
            struck.strikes[name] += 1


def list_children(parent: int) -> Iterator[tuple[int, str]]:
    """Yield the descendants of a process with what they are."""
    parents: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    known = {parent}
    while more := {pid for pid, up in parents.items() if up in known} - known:
        known |= more
    for pid in sorted(known - {parent}):
        try:
            text = (
                (Path("/proc") / str(pid) / "cmdline")
                .read_bytes()
                .replace(b"\0", b" ")
                .decode(errors="replace")
            )
        except OSError:
            continue
        kind = next((name for mark, name in _KINDS if mark in text), "another")
        if text and not any(word in text.split() for word in SPARED):
            yield pid, kind


_KINDS = (
    ("remote.reference_main", "reference"),
    ("remote.worker", "judge"),
    ("multiprocessing", "pool"),
    ("nki_sim", "tracer"),
)

STRIKES = {"kills": strike_daemon, "children": strike_children}


def run_kind(kind: str, options: argparse.Namespace, report: Report) -> None:
    """Strike as many homes as asked for, each with its own seed, and report each run."""
    for number in range(options.homes):
        seed = (options.seed or 0) + number
        with tempfile.TemporaryDirectory(prefix="kills-") as folder:
            configs = [
                RunConfig(problem=name, size="reduced", seed=seed, search=SEARCH)
                for name in PROBLEMS[: options.runs]
            ]
            home = Path(folder) / "home"
            home.mkdir()
            struck = Struck(home, [submit(home, one) for one in configs])
            began = time.monotonic()
            try:
                STRIKES[kind](struck, random.Random(seed), began + options.seconds)
            finally:
                struck.stop()
            seconds = time.monotonic() - began
            wanted = run_undisturbed(configs, Path(folder) / "twin")
            for case in judge_home(kind, struck, wanted, seconds):
                report(case)


def judge_home(
    kind: str, struck: Struck, wanted: Sequence[tuple[str, str | None]], seconds: float
) -> Iterator[Case]:
    """Yield a case for each run of a home, with the figures of the home in the first."""
    findings = [str(one) for one in verify_log(struck.home).findings]
    with LogReader.open(struck.home) as reader:
        items, lost = everything(reader), struck.seen.count_lost(reader)
        found = ends(reader, struck.runs)
        states = [reader.run_state(run) for run in struck.runs]
    again = sum(isinstance(one.event, EffectStarted) and one.event.delivery > 1 for one in items)
    figures: dict[str, Any] = {
        "strikes": dict(struck.strikes), "seconds": round(seconds, 1), "lost": lost, "again": again,
        "doubled": sum(count > 1 for count in outcomes(items).values()), "resumed": struck.resumed,
        "poisoned": sum(isinstance(one.event, EffectPoisoned) for one in items), "load": os.getloadavg()[0],
    }  # fmt: skip
    for run, state, ours, theirs in zip(struck.runs, states, found, wanted, strict=True):
        wrong = ""
        if lost or figures["doubled"] or findings:
            wrong = f"{lost} events lost, {figures['doubled']} outcomes doubled, findings {findings}"
        elif not state.has_ended:
            wrong = f"{state.status.value} after {seconds:.0f} s: {state.status_reason}"
        elif state.stop is StopReason.INFRASTRUCTURE:
            wrong = f"ended by the infrastructure: {state.status_reason}"
        elif kind == "kills" and ours != theirs:
            wrong = "another state or best kernel than undisturbed"
        outcome = "same state" if ours == theirs else "ended in another state"
        yield Case(kind, run, outcome, wrong, figures if run == struck.runs[0] else {})


def run_kills(options: argparse.Namespace, report: Report) -> None:
    run_kind("kills", options, report)


def run_children(options: argparse.Namespace, report: Report) -> None:
    run_kind("children", options, report)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--homes", type=int, default=1, help="homes, one after the other (%(default)s)")
    parser.add_argument("--runs", type=int, default=2, help="runs of a home, at most 3 (%(default)s)")
    parser.add_argument("--seconds", type=float, default=900, help="strike a home for so long (%(default)s)")


def summarize(cases: Sequence[Case]) -> dict[str, Any]:
    """What the cases come to."""
    figures = [case.figures for case in cases if case.figures]
    strikes: Counter[str] = Counter()
    for one in figures:
        strikes.update(one["strikes"])
    return {
        "runs": len(cases),
        "ended": sum(not case.wrong for case in cases),
        "same": sum(case.outcome == "same state" for case in cases),
        "strikes": dict(strikes),
        "load": max(one["load"] for one in figures),
        **{
            name: sum(one[name] for one in figures)
            for name in ("again", "doubled", "lost", "resumed", "poisoned")
        },
    }


def format_table(summary: Any) -> Iterator[str]:
    told = ", ".join(f"{count} {name}" for name, count in sorted(summary["strikes"].items()))
    names = ("same", "again", "lost", "doubled", "resumed", "poisoned")
    values = " | ".join(str(summary[name]) for name in names)
    yield "| killed | ended | as undisturbed | delivered again | lost | doubled | resumed | poisoned | load |"
    yield "|---|---|---|---|---|---|---|---|---|"
    ended = f"{summary['ended']} of {summary['runs']}"
    yield f"| {told or 'nothing'} | {ended} | {values} | {summary['load']:.0f} |"
