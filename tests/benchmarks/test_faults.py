"""The short version of `benchmarks/faults.py`: each fault at some places; and that the rig can tell."""

from __future__ import annotations

import os
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from benchmarks import disk, faults
from benchmarks.disk import Fault, failing
from state import schema
from state.log import EventLog

EVERY = 43


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder on a disk that is fast, if there is one; the faults do not ask for a real one."""
    fast = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=fast if os.access(fast, os.W_OK) else None) as name:
        yield Path(name)


@pytest.fixture(autouse=True)
def _eager() -> Iterator[None]:
    try:
        disk.library()
    except OSError as error:
        pytest.skip(f"needs an SQLite that is a library of its own: {error}")
    with faults.eager():
        yield


@pytest.mark.slow
def test_every_fault_loses_nothing_or_is_detected(folder: Path) -> None:
    tallies = faults.run(folder, every=EVERY, say=lambda _: None)
    assert [f"{name}: {case}" for name, tally in tallies.items() for case in tally.unseen] == []
    assert {*faults.DURING, *faults.AT_REST} <= set(tallies)
    assert all(tally.cases > 0 for tally in tallies.values())
    for name in faults.DURING:
        assert tallies[name].kept == tallies[name].cases, (name, tallies[name].named)


def test_the_table_in_the_document_is_of_these_faults() -> None:
    text = faults.DOCUMENT.read_text(encoding="utf-8")
    shown = text.partition(faults.BEGIN)[2].partition(faults.END)[0]
    rows = [line.split("|")[1:-1] for line in shown.splitlines() if line.startswith("| ")][1:]
    assert {row[0].strip() for row in rows} >= {*faults.DURING, *faults.AT_REST}
    assert {row[-1].strip() for row in rows} == {"0"}


def test_a_power_cut_is_noticed_where_commits_are_not_synced(folder: Path, monkeypatch) -> None:
    """Without a sync at each commit the same rig finds events lost, so it would find them here."""
    lazy = tuple((name, 1 if name == "synchronous" else value) for name, value in schema._WRITER_PRAGMAS)
    monkeypatch.setattr(schema, "_WRITER_PRAGMAS", lazy)
    outcomes = {faults.power_cut(folder / str(nth), nth, None) for nth in range(300, 480, 20)}
    assert outcomes & {"tail", "tail_lost"}


def test_every_operation_is_counted_and_can_fail(folder: Path) -> None:
    with failing(None) as undisturbed:
        assert faults.write(folder / "home") == len(faults.STEPS)
    counts = undisturbed.counts
    assert counts["sync"] > len(faults.STEPS)
    assert counts["any"] == counts["write"] + counts["sync"] + counts["truncate"]
    with failing(Fault("sync", 3, code=disk.IOERR_FSYNC, lasting=True)) as broken:
        assert faults.write(folder / "other") == 0
    assert broken.happened
    with EventLog.open(folder / "other"):  # outside the block, the disk is what it was
        pass


def test_only_what_was_synced_is_left(folder: Path) -> None:
    path = folder / "x.db"
    wal = folder / "x.db-wal"
    with failing(None) as lossy, closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for statement in ("PRAGMA journal_mode=WAL", "CREATE TABLE t(x)", "INSERT INTO t VALUES (1)"):
            connection.execute(statement).fetchall()  # synchronous is FULL
        kept = wal.read_bytes()
        connection.execute("PRAGMA synchronous=NORMAL")
        connection.execute("INSERT INTO t VALUES (2)")
        assert len(wal.read_bytes()) > len(kept)
        lossy.lose_unsynced()
        assert wal.read_bytes() == kept


def test_a_document_keeps_what_is_outside_the_marks() -> None:
    text = f"before\n{faults.BEGIN}\nold\n{faults.END}\nafter\n"
    changed = faults.update(text, "new")
    assert changed == f"before\n{faults.BEGIN}\n\nnew\n\n{faults.END}\nafter\n"
    assert faults.update(changed, "new") == changed
