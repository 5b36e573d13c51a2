"""From flags to a run's configuration and a submit command, and from a name to a run."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from daemon.config import FILE_NAME, FLAGS, Config, Effective, load
from daemon.ctl.app import Session
from daemon.errors import DaemonError, UnknownRun
from daemon.verbs import Submit
from state.reader import LogReader

if TYPE_CHECKING:
    from seeds import Problem

KNOBS = "knobs"
"""The proposer that needs a problem with a graph."""

_KEYS = {flag.removeprefix("--"): key for key, flag in FLAGS.items()}


_SEARCH_OPTIONS = (
    click.option(
        "--set", "settings", multiple=True, metavar="KEY=VALUE", help="Any key of the configuration."
    ),
    click.option("--target", help="Target device: trn1 or trn2."),
    click.option("--seed", type=int, help="Seed of every random draw."),
    click.option("--strategy", help="beam, or one to compare it with (docs/search.md)."),
    click.option("--rounds", type=int, help="Rounds at most."),
    click.option("--size", help="Problem size: full or reduced."),
    click.option(
        "--host",
        "host",
        multiple=True,
        metavar="[USER@]HOST[:PORT]",
        help="Run kernels there, over SSH; may be repeated.",
    ),
)


def search_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that say how a run goes, whatever it is about."""
    for option in _SEARCH_OPTIONS:
        function = option(function)
    return function


def run_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that say what a run is about, and how it goes."""
    function = search_options(function)
    for option in (
        click.option("--kernel", type=click.Path(path_type=Path), help="Start from this kernel."),
        click.option("--problem", help="A name from `agentctl problems`, or a folder."),
    ):
        function = option(function)
    return function


def configured(session: Session, flags: dict[str, Any]) -> Config:
    """Return the effective configuration; see `effective`."""
    return effective(session, flags).config


def effective(session: Session, flags: dict[str, Any]) -> Effective:
    """Return the effective configuration with its sources, flags over environment over file.

    Raises:
        daemon.config.ConfigError: a source has faults.
    """
    given = {_KEYS[name]: value for name, value in flags.items() if name in _KEYS and value not in (None, ())}
    given |= assignments(flags.get("settings", ()), "--set ")
    return load(session.home, os.environ, given)


def assignments(settings: Iterable[str], said: str = "") -> dict[str, Any]:
    """Return what `KEY=VALUE` texts say, each value read as JSON or as the text it is.

    Raises:
        click.UsageError: one has no `=`, or a key has two values.
    """
    given: dict[str, Any] = {}
    for setting in settings:
        key, mark, text = setting.partition("=")
        if not mark:
            raise click.UsageError(f"{said}{setting}: expected KEY=VALUE")
        if key in given:
            raise click.UsageError(f"{said}{setting}: {key} was given a value before; which is meant?")
        given[key] = _value(text)
    return given


_NUMBER = re.compile(r"[0-9]{1,18}", re.ASCII)


def event_number(text: str) -> int | None:
    """Return the number that `text` spells as this program spells them, else None."""
    return int(text) if _NUMBER.fullmatch(text) else None


def numbered(_: click.Context, __: click.Parameter, value: str | None) -> int | None:
    """Read the number of an event, from 1 on: digits and nothing else, unlike click's own.

    Raises:
        click.BadParameter: it is none.
    """
    number = None if value is None else event_number(value)
    if value is not None and not number:
        raise click.BadParameter(f"{value!r} is not the number of an event: 1 or more")
    return number


def submission(wanted: Effective, kernel: Path | None) -> Submit:
    """Return the command that starts a run with a configuration.

    Raises:
        seeds.SeedsError: the problem is unknown, or its files have faults.
        DaemonError: the kernel's file cannot be read.
    """
    import seeds

    problem = seeds.load(wanted.config.run.problem)
    source = None if kernel is None else read_source(kernel)
    return submitted(wanted, problem, source)


def submitted(wanted: Effective, problem: Problem, source: str | None) -> Submit:
    """Return the command that starts a run on `problem`, from the kernel `source` or the problem's own.

    Raises:
        DaemonError: the run is to be planned by knobs, and the problem carries no graph.
    """
    from seeds.folder import WORKLOAD

    if KNOBS in wanted.config.run.planner and WORKLOAD not in problem.files:
        text = f"run.planner has {KNOBS!r}, and the problem {problem.name} carries no {WORKLOAD}"
        raise DaemonError(text, code="no_graph")
    run = wanted.config.run.model_copy(update={"problem": problem.name})
    pinned = tuple(
        key for key, origin in wanted.sources.items() if key.startswith("run.") and origin != FILE_NAME
    )
    return Submit.model_construct(config=run, files=dict(problem.files), kernel=source, pinned=pinned)


def read_source(path: Path) -> str:
    """Return the text of a kernel's file.

    Raises:
        DaemonError: it cannot be read, or is not UTF-8.
    """
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise DaemonError(f"{path}: {reason}", code="unreadable_kernel") from error


def known_run(reader: LogReader, run: str) -> dict[str, Any]:
    """Return the row of `run`.

    Raises:
        UnknownRun: the log has no such run.
    """
    rows = reader.listed(run)
    if not rows:
        raise UnknownRun.among(run, reader.run_ids())
    return rows[0]


def last_run(reader: LogReader) -> str:
    """Return the newest run that has not ended, else the newest.

    Raises:
        UnknownRun: there is none.
    """
    rows = reader.listed()
    if not rows:
        raise UnknownRun("there is no run in this home")
    return str(next((row for row in rows if not row["ended"]), rows[0])["run"])


def _value(text: str) -> Any:
    """Read a setting as JSON, or as the text it is."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
