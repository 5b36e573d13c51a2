"""Logs to test with: scripted runs, whole or appended one by one, and hands that damage them."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from state.log import EventLog
from state.records import RecordedEvent
from tests.support.scripted_runs import append_run

Damage = Callable[..., None]


@pytest.fixture
def log(home: Path) -> Iterator[EventLog]:
    with EventLog.open(home) as opened:
        yield opened


@pytest.fixture(scope="session")
def two_runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[RecordedEvent]]:
    home = tmp_path_factory.mktemp("template") / "home"
    with EventLog.open(home) as log:
        return home, append_run(log, "first", seed=1) + append_run(log, "second", seed=2)


@pytest.fixture
def stored(home: Path, two_runs: tuple[Path, list[RecordedEvent]]) -> list[RecordedEvent]:
    """A home with two runs, cleanly stopped; what it holds."""
    shutil.copytree(two_runs[0], home)
    return two_runs[1]


@pytest.fixture
def damage(home: Path) -> Damage:
    """Execute statements on a stopped log behind its back, its triggers out of the way."""

    def execute(*statements: str, parameters: tuple[object, ...] = ()) -> None:
        with closing(sqlite3.connect(home / "events.db", isolation_level=None)) as connection:
            triggers = connection.execute(
                "SELECT name, sql FROM sqlite_schema WHERE type = 'trigger'"
            ).fetchall()
            for name, _ in triggers:
                connection.execute(f"DROP TRIGGER {name}")
            for statement in statements:
                connection.execute(statement, parameters)
            for _, sql in triggers:
                connection.execute(sql)

    return execute
