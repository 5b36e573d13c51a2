"""What people ask of one run, or of the log's end, takes no longer when the log is long.

Counted are the steps of SQLite's virtual machine, which are the same on any machine at any time.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable

import pytest

from state import readonly
from state.log import EventLog
from tests.support.scripted_runs import append_run

ASKED = {
    "status": ("status", "{run}"),
    "show": ("show", "{run}@9"),
    "show --state": ("show", "{run}@9", "--state"),
    "tail": ("tail", "-n", "50"),
    "tail --run": ("tail", "--run", "{run}", "-n", "50"),
    "best": ("best", "{run}"),
    "diff": ("diff", "{run}"),
    "replay": ("replay", "{run}"),
    "stats": ("stats", "{run}"),
}
OTHERS = 12
ALLOWED = 1.05


@pytest.fixture
def steps(ctl, monkeypatch) -> Callable[..., int]:
    """Return what counts the steps that the questions of a command take."""
    connect, taken = readonly._connect, []

    def counting(*arguments) -> sqlite3.Connection:
        connection = connect(*arguments)
        connection.set_progress_handler(lambda: taken.append(1) and None, 1)
        return connection

    monkeypatch.setattr(readonly, "_connect", counting)

    def asking(*words: str) -> int:
        taken.clear()
        assert ctl(*words).status == 0
        return len(taken)

    return asking


def test_what_is_asked_of_one_run_takes_no_longer_in_a_long_log(steps, home, finished):
    def all_asked() -> dict[str, int]:
        return {name: steps(*(word.format(run=finished) for word in words)) for name, words in ASKED.items()}

    def lengthen(first: int) -> None:
        with EventLog.open(home) as log:
            for number in range(first, first + OTHERS):
                append_run(log, f"other-{number}", seed=number)

    lengthen(0)
    before = all_asked()
    lengthen(OTHERS)
    after = all_asked()
    assert min(before.values()) > 0
    assert {name: (before[name], after[name]) for name in ASKED if after[name] > ALLOWED * before[name]} == {}
