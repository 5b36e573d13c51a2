"""Finds a run, or reads an event number, from what you type. Light, because every reading verb imports it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import click

from daemon.errors import UnknownRun
from state.errors import NoLog
from state.reader import LogReader

_NUMBER = re.compile(r"[0-9]{1,18}", re.ASCII)


def parse_event_number(text: str) -> int | None:
    """Return the number that `text` spells (ASCII digits only), else None."""
    return int(text) if _NUMBER.fullmatch(text) else None


def read_event_number(_: click.Context, __: click.Parameter, value: str | None) -> int | None:
    """Read an event number, from 1 on; unlike click's integers, it is digits only.

    Raises:
        click.BadParameter: it is no event number.
    """
    number = None if value is None else parse_event_number(value)
    if value is not None and not number:
        raise click.BadParameter(f"{value!r} is not the number of an event: 1 or more")
    return number


def find_run(reader: LogReader, run: str) -> dict[str, Any]:
    """Return the row of `run`, which may be the beginning of one id only.

    Raises:
        UnknownRun: the log has no such run.
    """
    rows = reader.run_rows(run) or reader.run_rows(expand_run(reader, run))
    return rows[0]


def complete_run_id(home: Path, run: str) -> str:
    """Return the logged run that `run` names or begins; `run` itself if there is none, as for a queued run.

    Raises:
        UnknownRun: several runs begin with it.
    """
    try:
        with LogReader.open(home) as reader:
            return expand_run(reader, run) if any(one.startswith(run) for one in reader.run_ids()) else run
    except NoLog:
        return run


def expand_run(reader: LogReader, run: str) -> str:
    """Return the id of the run that `run` names: the id itself, or the beginning of one id only.

    Raises:
        UnknownRun: no run begins like this, or several do; the error names them.
    """
    known = reader.run_ids()
    if run in known:
        return run
    found = [one for one in known if run and one.startswith(run)]
    if len(found) == 1:
        return found[0]
    if found:
        text = f"several runs begin with {run!r}: {', '.join(found[:5])}"
        raise UnknownRun(text, hint="give more of its id")
    raise UnknownRun.with_nearest(run, known)


def find_last_run(reader: LogReader) -> str:
    """Return the newest run that has not ended, else the newest.

    Raises:
        UnknownRun: there is no run.
    """
    rows = reader.run_rows()
    if not rows:
        raise UnknownRun("there is no run in this home")
    return str(next((row for row in rows if not row["ended"]), rows[0])["run"])
