"""`agentctl status` and `agentctl show`: what there is, from the log alone."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from typing import Any

import click

from daemon.ctl import exits
from daemon.ctl.app import Session, common
from daemon.ctl.choices import event_number
from daemon.ctl.seek import event_at
from daemon.ctl.tracker import summary
from daemon.ctl.words import INTERRUPTED, LEVELS, count, status_word, times, typed, usd
from daemon.errors import UnknownRun
from daemon.inbox import waiting
from daemon.main import INSTANCE
from state.errors import BlobMissing, BlobPruned, NoLog
from state.fold import semantic
from state.home import Layout, require_directory
from state.lock import owner
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
    process = _process(session)
    runs = _runs(session, run, owned=process["state"] == "running")
    refused = process["config_refused"]
    told = [f"an edit was refused, and changes nothing: {refused}"] if refused else []
    table = _table(runs) if runs else ["no runs"]
    given = _given(runs[0]) if run is not None else []
    text = [_process_line(process), *told, *table, *given, *_approvals(runs), *_interrupted(session, runs)]
    session.emit({"daemon": process, "runs": runs}, "\n".join(text))


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


def _process(session: Session) -> dict[str, Any]:
    """Return who owns the home: an `agentd`, a foreground `agentctl`, or nobody."""
    require_directory(session.home)
    layout = Layout(session.home)
    holder = owner(layout.lock)
    service = owner(session.home / INSTANCE)
    kind = "agentd" if service and holder and service.pid == holder.pid else "agentctl"
    since = datetime.fromtimestamp(holder.since, UTC).isoformat(timespec="seconds") if holder else None
    return {
        "state": "running" if holder else "stopped",
        "kind": kind if holder else None,
        "pid": holder.pid if holder else None,
        "since": since,
        "home": str(session.home),
        "queued": len(waiting(session.home)),
        "config_refused": _refused(session),
    }


def _refused(session: Session) -> str | None:
    """Return what is wrong with an edit of the configuration file that the owner refused, None if nothing."""
    try:
        with LogReader.open(session.home) as reader:
            return reader.system().refused
    except NoLog:
        return None


def _runs(session: Session, run: str | None, *, owned: bool) -> list[dict[str, Any]]:
    try:
        with LogReader.open(session.home) as reader:
            reader.check_end()
            rows = reader.listed(run)
            if run is not None and not rows:
                raise UnknownRun.among(run, reader.run_ids())
            return [_run(reader, row, owned=owned) for row in rows]
    except NoLog:
        if run is not None or not session.home.exists():
            raise
        return []


def _run(reader: LogReader, row: dict[str, Any], *, owned: bool) -> dict[str, Any]:
    created = datetime.fromtimestamp(row["created_us"] / 1e6, UTC)
    state = reader.state(row["run"])
    return {
        **summary(row["run"], state),
        "state": status_word(state, owned=owned),
        "created": created.isoformat(timespec="seconds"),
        "parent": row["parent"],
    }


def _process_line(process: dict[str, Any]) -> str:
    queued = f", {process['queued']} commands queued" if process["queued"] else ""
    if process["state"] == "stopped":
        return f"stopped (nobody owns {process['home']}){queued}"
    who = f"{process['kind']} {process['pid']} since {process['since']}"
    return f"running: {who}, home {process['home']}{queued}"


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
