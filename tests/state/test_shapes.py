"""Columns of other types than their tables have, as exchanged pages hold them: damage, and never a crash."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest

from state.archive import archive_run
from state.backup import backup_log
from state.errors import LogDamaged, StateError
from state.log import EventLog
from state.queries import Gap
from state.reader import LogReader
from state.records import EventRow, RowParser, require_rising
from state.repair import repair_log
from state.upcast import check_kinds
from state.verify import verify_log

_NOT_NULL = "replace(sql, ' NOT NULL', '')"
LOOSE = (
    "CREATE TEMP TABLE kept AS SELECT name AS it, sql AS was FROM sqlite_schema WHERE type = 'table'",
    "PRAGMA writable_schema = 1",
    f"UPDATE sqlite_schema SET sql = replace({_NOT_NULL}, ' STRICT', '') WHERE name IN (SELECT it FROM kept)",
    "PRAGMA writable_schema = RESET",
)
STRICT = (
    "PRAGMA writable_schema = 1",
    "UPDATE sqlite_schema SET sql = (SELECT was FROM kept WHERE it = name) WHERE type = 'table'",
    "PRAGMA writable_schema = RESET",
)
"""What lets a statement store what the tables refuse, and makes the tables what they were."""

ROWS = {
    "no hash before it": "UPDATE event SET prev = NULL WHERE seq = 30",
    "a text for a hash": "UPDATE event SET hash = 'text' WHERE seq = 30",
    "a text for a number": "UPDATE event SET run_seq = 'text' WHERE seq = 30",
    "bytes for a type": "UPDATE event SET type = x'00ff' WHERE seq = 30",
    "no payload": "UPDATE event SET payload = NULL WHERE seq = 30",
    "a number for a payload": "UPDATE event SET payload = 1.5 WHERE seq = 30",
}
BLOBS = {
    "no digest": "UPDATE blob SET digest = NULL WHERE rowid = 2",
    "a text for a digest": "UPDATE blob SET digest = 'text' WHERE rowid = 2",
    "no bytes": "UPDATE blob SET data = NULL WHERE rowid = 2",
    "no encoding": "UPDATE blob SET encoding = NULL WHERE rowid = 2",
}


@pytest.fixture
def exchange(damage):
    return lambda statement: damage(*LOOSE, statement, *STRICT)


@pytest.mark.parametrize("statement", [*ROWS.values(), *BLOBS.values()], ids=[*ROWS, *BLOBS])
def test_such_a_row_is_found_and_repaired(
    home: Path, stored, exchange, statement: str, tmp_path: Path
) -> None:
    exchange(statement)
    assert not verify_log(home).is_ok
    with pytest.raises(LogDamaged):
        backup_log(home, tmp_path / "b.db")
    with suppress(StateError):  # of a run that needs it
        archive_run(home, "first", tmp_path / "a.gz")
    assert not (tmp_path / "b.db").exists()
    assert repair_log(home).rewritten is not None
    assert verify_log(home).is_ok


@pytest.mark.parametrize("statement", ROWS.values(), ids=ROWS)
def test_whoever_opens_or_reads_such_a_log_is_told(home: Path, stored, exchange, statement: str) -> None:
    exchange(statement)
    with pytest.raises(LogDamaged):
        EventLog.open(home, full_check=True).close()
    with LogReader.open(home) as reader, suppress(LogDamaged):
        reader.read(limit=10_000)
        reader.read(stream="first", limit=10_000)
        reader.run_state("first")


def test_a_gap_and_a_stream_are_checked_too(home: Path, stored, exchange, tmp_path: Path) -> None:
    exchange("UPDATE stream SET parent_seq = 1.5 WHERE id = 'first'")
    with LogReader.open(home) as reader, pytest.raises(LogDamaged, match="its after is of the type float"):
        reader.read(stream="first")
    exchange(f"INSERT INTO gap VALUES ({stored[-1].seq + 1}, 600, 'text')")
    with pytest.raises(LogDamaged, match="a stored Gap is none"):
        backup_log(home, tmp_path / "b.db")


def test_a_note_of_what_was_verified_is_only_a_note(home: Path, stored, damage) -> None:
    damage("UPDATE meta SET value = 'x y' WHERE key = 'verified'")
    with EventLog.open(home) as log:
        assert log.head.seq == stored[-1].seq


def test_a_kind_of_another_type_is_damage_and_no_newer_version() -> None:
    with pytest.raises(LogDamaged, match="its version is of the type str"):
        check_kinds([("RunCreated", "x")])


def test_the_first_bad_column_is_named() -> None:
    with pytest.raises(LogDamaged, match="event 3: a stored Gap is none: its hash is of the type str"):
        RowParser(Gap)((3, 4, "text"))
    with pytest.raises(LogDamaged, match="it has 2 columns"):
        RowParser(Gap)((3, 4))
    row = EventRow(1, "r", 1, "T", 1, 0, None, None, "{}", b"", b"", None, None, b"")
    assert RowParser(EventRow)(row) == row


def test_a_read_does_not_go_back() -> None:
    assert require_rising(3, 4) == 4
    with pytest.raises(LogDamaged, match="out of order: 2 comes after 3"):
        require_rising(3, 2)
