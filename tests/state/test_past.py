"""Lists of candidates as they were at an event: those of a log that ends there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from state.events import Event, KernelKept, KernelRefuted
from state.log import EventLog
from state.model import Level
from state.reader import LogReader
from state.records import NewEvent
from tests.support.world import World, small

ELSEWHERE = {"run", "seq"}


def caught(source: str, level: Level) -> bool:
    """Find some kernels wrong only on whole outputs: they are kept, and refuted later."""
    return level is Level.WHOLE and sum(map(ord, source)) % 2 == 0


@pytest.fixture(scope="module")
def events() -> list[Event]:
    # whoever is fast enough to be the best is compared further; some do not stand it
    world = World(small(rounds=6), catch=caught, order=5).finish()
    assert world.of(KernelRefuted)
    assert world.of(KernelKept)
    return world.events


@pytest.fixture(scope="module")
def reader(events: list[Event], tmp_path_factory: pytest.TempPathFactory):
    """One log with the whole run, and with runs that are its first events only."""
    home: Path = tmp_path_factory.mktemp("past") / "home"
    with EventLog.open(home) as log:
        for run, upto in {"whole": len(events), **{f"run{upto}": upto for upto in moments(events)}}.items():
            log.append_now([NewEvent(run, event) for event in events[:upto]])
        with LogReader.open(home) as found:
            yield found


def moments(events: list[Event]) -> list[int]:
    """Moments all over the run, and those around what later events overwrite."""
    refuted = [number for number, event in enumerate(events) if isinstance(event, KernelRefuted)]
    near = {number + step for number in refuted for step in (-1, 0, 1, 2)}
    return sorted({*range(1, len(events), max(1, len(events) // 25)), *near} & set(range(1, len(events))))


def alike(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if name not in ELSEWHERE} for row in rows]


def test_a_moment_s_list_is_that_of_a_log_which_ends_there(reader: LogReader, events: list[Event]) -> None:
    for upto in moments(events):
        assert alike(reader.attempt_rows("whole", upto=upto)) == alike(reader.attempt_rows(f"run{upto}")), (
            upto
        )


def test_what_changed_since_brings_an_older_list_up_to_date(reader: LogReader, events: list[Event]) -> None:
    now = {row["candidate"]: row for row in reader.attempt_rows("whole")}
    for since in moments(events):
        before = {row["candidate"]: row for row in reader.attempt_rows("whole", upto=since)}
        changed = {row["candidate"]: row for row in reader.attempt_rows("whole", since=since)}
        merged = before | changed
        for name, row in now.items():
            assert merged[name] | {"speedup": None} == row | {"speedup": None}, (since, name)
        assert len(changed) <= len(now)
    assert reader.attempt_rows("whole", since=len(events)) == []
