"""Finds a run, or reads an event number, from what you type. Light, because every reading verb imports it."""

from __future__ import annotations

import re
from typing import Any

import click

from daemon.errors import UnknownRun
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
    """Return the row of `run`.

    Raises:
        UnknownRun: the log has no such run.
    """
    rows = reader.run_rows(run)
    if not rows:
        raise UnknownRun.with_nearest(run, reader.run_ids())
    return rows[0]


def find_last_run(reader: LogReader) -> str:
    """Return the newest run that has not ended, else the newest.

    Raises:
        UnknownRun: there is no run.
    """
    rows = reader.run_rows()
    if not rows:
        raise UnknownRun("there is no run in this home")
    return str(next((row for row in rows if not row["ended"]), rows[0])["run"])
