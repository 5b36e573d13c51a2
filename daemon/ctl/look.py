"""`agentctl status` and `agentctl show`: what there is, from the log alone."""

from __future__ import annotations

import json
import re
import time
from typing import Any

import click

from daemon.ctl import exits
from daemon.ctl.app import Session, common
from daemon.ctl.choices import event_number
from daemon.ctl.seek import event_at
from daemon.ctl.words import LEVELS, count, times, typed, usd
from daemon.views import as_json
from daemon.views.overview import Overview, overview
from daemon.views.process import Process, process
from daemon.views.run import INTERRUPTED
from state.errors import BlobMissing, BlobPruned, NoLog
from state.fold import semantic
from state.home import require_directory
from state.model import Level
from state.reader import LogReader

NAMED = 3
"""Runs that are named in a line of the status; of more, how many they are is said."""

PROMPTS = "prompts"
"""The field that names a set of prompts: long, the same in most events, and shown by `agentctl prompts`."""

_DIGEST = re.compile(r"[0-9a-f]{64}")


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


@click.command(epilog=exits.epilog())
@click.argument("place", metavar="RUN@SEQ")
@click.option("--state", "want_state", is_flag=True, help="The run's state after this event instead.")
@common
def show(session: Session, place: str, want_state: bool) -> None:
    """Show event number SEQ of a run with the blobs it names; `system@SEQ` for the system stream."""
    run, mark, number = place.rpartition("@")
    run_seq = event_number(number)
    if not mark or run_seq is None:
        raise click.UsageError(f"{place}: expected RUN@SEQ")
    with LogReader.open(session.home) as reader:
        if want_state:
            state = semantic(reader.state(run, run_seq))
            session.emit(state, json.dumps(state, indent=2))
            return
        item = event_at(reader, run, run_seq)
        event = item.event.model_dump(mode="json")
        read = {digest: _blob(reader, digest) for digest in _digests(event)}
    blobs = {digest: content for digest, content in read.items() if content is not None}
    head = {
        "seq": item.seq, "run": item.stream, "run_seq": item.run_seq, "time": item.time.isoformat(),
        "cause": item.cause, "hash": item.hash, "state_hash": item.state_hash,
    }  # fmt: skip
    text = [
        f"{item.stream}@{item.run_seq} {item.type} {head['time']} (seq {item.seq})",
        json.dumps(_once(event, blobs), indent=2),
    ]
    text += [f"\nblob {digest}\n{content}" for digest, content in blobs.items()]
    session.emit({**head, "event": event, "blobs": blobs}, "\n".join(text))


def _once(event: dict[str, Any], blobs: dict[str, str]) -> dict[str, Any]:
    """Return an event without the counters that its profile, shown below it, has too."""
    if "counters" not in event or event.get("profile") not in blobs:
        return event
    return {**event, "counters": f"({len(event['counters'])}, in the profile below)"}


def _digests(value: Any) -> dict[str, None]:
    """Return all strings in a JSON value that could name a blob, each once, in order."""
    if isinstance(value, str):
        return {value: None} if _DIGEST.fullmatch(value) else {}
    if isinstance(value, dict):
        value = [item for name, item in value.items() if name != PROMPTS]
    items = value if isinstance(value, list) else ()
    return {digest: None for item in items for digest in _digests(item)}


def _blob(reader: LogReader, digest: str) -> str | None:
    """Return a blob as text; None where the digest is one of something else (a problem, a syntax tree)."""
    try:
        return reader.blob(digest).decode(errors="replace")
    except BlobPruned as error:
        return f"({error})"
    except BlobMissing:
        return None
