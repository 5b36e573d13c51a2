"""`agentctl status`: what there is, from the log alone."""

from __future__ import annotations

import time
from typing import Any

import click

from daemon.ctl import exits
from daemon.ctl.app import Session, common
from daemon.ctl.words import LEVELS, count, times, typed, usd
from daemon.views import as_json
from daemon.views.overview import Overview, overview
from daemon.views.process import Process, process
from daemon.views.run import INTERRUPTED
from state.errors import NoLog
from state.home import require_directory
from state.model import Level
from state.reader import LogReader

NAMED = 3
"""Runs that are named in a line of the status; of more, how many they are is said."""


@click.command(epilog=exits.epilog())
@click.argument("run", required=False)
@common
def status(session: Session, run: str | None) -> None:
    """Show who owns the home and how its runs stand, newest first; works with the daemon down.

    A run is queued, running, paused, cancelled or completed. One that would be running is called
    interrupted while nobody owns the home; `agentctl resume` carries on with it.
    """
    found = home_view(session, run)
    runs = [as_json(one) for one in found.runs]
    refused = found.daemon.config_refused
    told = [f"an edit was refused, and changes nothing: {refused}"] if refused else []
    table = _table(runs) if runs else ["no runs"]
    given = _given(runs[0]) if run is not None else []
    text = [
        _process_line(found.daemon),
        *told,
        *table,
        *given,
        *_approvals(runs),
        *_interrupted(session, runs),
    ]
    session.emit(as_json(found), "\n".join(text))


def home_view(session: Session, run: str | None, *, all_: bool = False) -> Overview:
    """Return how the session's home stands now, also where nothing was ever recorded.

    Raises:
        UnknownRun: there is no such run.
        state.errors.StateError: the home or its log cannot be used.
    """
    require_directory(session.home)
    now_us = time.time() * 1e6
    try:
        with LogReader.open(session.home) as reader:
            reader.check_end()
            owner = process(session.home, refused=reader.system().refused)
            return overview(reader, owner, now_us=now_us, run=run, all_=all_)
    except NoLog:
        if run is not None or not session.home.exists():
            raise
        return overview(None, process(session.home), now_us=now_us)


def _given(run: dict[str, Any]) -> list[str]:
    """Return a line for each sequence that a run tried first, with where it is from; and what it was told."""
    told = [f"told {count(len(run['told']), 'experience')} of others"] if run["told"] else []
    return told + [
        f"tried first what paid in {one['from']} ({one['problem']}, {times(one['speedup'])} by "
        f"{count(one['steps'], 'rewrite')})"
        for one in run["given"]
    ]


def _approvals(runs: list[dict[str, Any]]) -> list[str]:
    """Return a line for each run that waits for a person."""
    waits = [run for run in runs if run["needs_approval"]]
    return [f"{run['id']} {run['reason']}; let it go on with: {typed('approve', run['id'])}" for run in waits]


def _interrupted(session: Session, runs: list[dict[str, Any]]) -> list[str]:
    """Return how to carry on with runs that nobody drives."""
    waits = [run["id"] for run in runs if run["state"] == INTERRUPTED]
    if not waits:
        return []
    one = typed("resume", *session.home_words, waits[0])
    return [
        f"interrupted, as nobody owns this home: carry on with: {one}"
        + (f", or with all {len(waits)} by starting agentd" if len(waits) > 1 else "")
    ]


def _process_line(process: Process) -> str:
    queued = f", {count(process.queued, 'command')} queued" if process.queued else ""
    if not process.running:
        return f"stopped (nobody owns {process.home}){queued}"
    return f"running: {process.kind} {process.pid} since {process.since}, home {process.home}{queued}"


_COLUMNS = "{:22} {:11} {:>5} {:>8} {:>8} {:>7} {:>6} {:>6}"  # 80 characters: no terminal is narrower
_HEADER = _COLUMNS.format("RUN", "STATE", "ROUND", "INITIAL", "BEST", "SPEEDUP", "%PEAK", "%TIGHT")


def _table(runs: list[dict[str, Any]]) -> list[str]:
    """Return the runs as lines; what was spent has a column once something was."""
    spent = any(run["spent_usd"] != 0 for run in runs)
    lines = [_HEADER + ("    SPENT" if spent else "")]
    lines += [_run_line(run) + (f" {usd(run['spent_usd']):>8}" if spent else "") for run in runs]
    measured = [run["id"] for run in runs if run["predicted"] is False]
    told = f"but for {', '.join(measured)} " if measured else ""
    return [
        *lines,
        f"latencies in ms, {told}predicted; shares of the plain peak and of the tight bound",
        *_levels(runs),
    ]


def _levels(runs: list[dict[str, Any]]) -> list[str]:
    """Return on how much of their outputs the best kernels were found correct, the most first.

    Of what is not finished some are named: most of a long table is compared whole.
    """
    return [
        f"best found correct on {LEVELS[level]}: {_some(names, all_=level is Level.WHOLE)}"
        for level in reversed(Level)
        if (names := [run["id"] for run in runs if run["best_level"] == level])
    ]


def _some(names: list[str], *, all_: bool) -> str:
    """Return names, or their number where they are many."""
    if len(names) <= NAMED:
        return ", ".join(names)
    number = count(len(names), "run")
    return number if all_ else f"{number}, such as {', '.join(names[:NAMED])}"


def _run_line(run: dict[str, Any]) -> str:
    return _COLUMNS.format(
        run["id"],
        run["state"],
        f"{run['round']}/{run['rounds']}",
        _number(run["initial_ms"], 4),
        _number(run["best_ms"], 4),
        times(run["speedup"]),
        _number(run["percent_of_peak"], 3),
        _number(run["percent_of_tight_bound"], 3),
    )


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}g}"
