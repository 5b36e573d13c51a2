"""`verify_log` names what is wrong, and first the first bad row; a sound log is never suspected."""

from __future__ import annotations

import shutil
import sqlite3
import zlib
from collections.abc import Callable
from contextlib import closing
from hashlib import sha256
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

from state import blobs, fold, semantic_state
from state.backup import backup_log, restore_log
from state.errors import LogDamaged, LogTooNew, NoLog
from state.events import EVENT_TYPES, Event, RunPaused, idempotency_key
from state.head import EMPTY_HEAD, read_head, write_head
from state.log import EventLog
from state.model import Digest
from state.reader import LogReader
from state.records import NewEvent, RecordedEvent
from state.verify import verify_log
from tests.support.scripted_runs import ScriptedRun, append_run

Damage = Callable[..., None]


def only(home: Path, part: str) -> str:
    """The one finding of a log with one fault."""
    report = verify_log(home)
    assert [finding.part for finding in report.findings] == [part], report.findings
    assert not report.is_ok
    return str(report.first_finding)


def test_a_sound_log_is_proved(home: Path, stored: list[RecordedEvent]) -> None:
    report = verify_log(home)
    assert report.is_ok
    assert report.first_finding is None
    assert report.events == len(stored) == report.head.seq
    assert report.head.hash == stored[-1].hash
    assert report.state_hashes == sum(item.state_hash is not None for item in stored) > 0
    assert (report.blobs > 0, report.snapshots, report.anchored) == (True, 2, True)


def test_an_empty_log_is_sound(home: Path) -> None:
    EventLog.open(home).close()
    report = verify_log(home)
    assert (report.is_ok, report.events, report.head) == (True, 0, EMPTY_HEAD)


def test_a_log_in_use_is_proved_too(log: EventLog, home: Path) -> None:
    append_run(log, "r", rounds=1)
    report = verify_log(home)
    assert report.is_ok
    assert report.events == log.head.seq


def test_events_appended_while_it_looks_are_included(log: EventLog, home: Path, monkeypatch) -> None:
    append_run(log, "r", rounds=1)
    monkeypatch.setattr("state.queries.PAGE", 1)
    added: list[int] = []

    def append_more(done: int, total: int) -> None:
        if not added:
            added.extend(item.seq for item in append_run(log, "more", rounds=1))

    report = verify_log(home, progress=append_more)
    assert report.is_ok
    assert report.events == added[-1]


def test_progress_is_told(home: Path, stored: list[RecordedEvent], monkeypatch) -> None:
    monkeypatch.setattr("state.queries.PAGE", 10)
    seen: list[tuple[int, int]] = []
    verify_log(home, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(n, len(stored)) for n in range(10, len(stored) + 1, 10)]


# --- rows ---


def test_an_edited_payload_is_named(home: Path, stored: list[RecordedEvent], damage: Damage) -> None:
    damage("UPDATE event SET payload = payload || ' ' WHERE seq IN (20, 90)")
    first = verify_log(home).first_finding
    assert (first.part, first.seq, first.stream, first.run_seq) == ("chain", 20, "first", 20)
    assert "was edited" in first.what


def test_a_missing_row_is_named(home: Path, stored: list[RecordedEvent], damage: Damage) -> None:
    damage("DELETE FROM event WHERE seq = 7")
    assert "chain at event 8" in only(home, "chain")


def test_swapped_rows_are_named(home: Path, stored: list[RecordedEvent], damage: Damage) -> None:
    damage(
        "UPDATE event SET seq = -1, run_seq = -1 WHERE seq = 5",
        "UPDATE event SET seq = 5, run_seq = 5 WHERE seq = 6",
        "UPDATE event SET seq = 6, run_seq = 6 WHERE seq = -1",
    )
    report = verify_log(home)
    assert (report.first_finding.part, report.first_finding.seq) == ("chain", 5)


def test_a_truncated_log_is_named(home: Path, stored: list[RecordedEvent], damage: Damage) -> None:
    damage(f"DELETE FROM event WHERE seq > {len(stored) - 3}")
    report = verify_log(home)
    assert any(f"ends at event {len(stored) - 3}" in finding.what for finding in report.findings)
    assert "tail" in {finding.part for finding in report.findings}


def test_a_forged_row_with_a_right_hash_is_found_by_its_successor(
    home: Path, stored: list[RecordedEvent], damage: Damage
) -> None:
    damage("UPDATE event SET hash = zeroblob(32) WHERE seq = 4")
    assert verify_log(home, deep=False).first_finding.seq == 4


def test_a_forged_history_does_not_match_the_anchor(home: Path, stored: list[RecordedEvent]) -> None:
    anchor = read_head(home / "HEAD")
    write_head(home / "HEAD", type(anchor)(5, "first", 5, "ab" * 32))
    assert "history was rewritten" in only(home, "tail")


def test_an_illegible_anchor_is_named(home: Path, stored: list[RecordedEvent]) -> None:
    (home / "HEAD").write_text("nonsense")
    assert "not a HEAD anchor" in only(home, "tail")


def test_a_log_without_an_anchor_says_so(home: Path, stored: list[RecordedEvent]) -> None:
    (home / "HEAD").unlink()
    assert verify_log(home).anchored
    (home / "HEAD.second").unlink()
    report = verify_log(home)
    assert (report.is_ok, report.anchored) == (True, False)


def test_a_state_that_today_s_fold_does_not_give_is_named(
    home: Path, stored: list[RecordedEvent], monkeypatch
) -> None:
    first = next(item for item in stored if item.state_hash is not None)
    real = semantic_state.encode_semantic
    monkeypatch.setattr(semantic_state, "encode_semantic", lambda state: real(state) + b" ")
    report = verify_log(home)
    assert (report.first_finding.part, report.first_finding.seq) == ("state_hash", first.seq)


def test_state_hashes_of_another_fold_version_are_not_compared(
    home: Path, stored: list[RecordedEvent], monkeypatch
) -> None:
    monkeypatch.setattr("state.verify.FOLD_VERSION", 99)
    report = verify_log(home)
    assert (report.is_ok, report.state_hashes) == (True, 0)


def test_read_models_of_another_version_are_not_compared(
    home: Path, stored: list[RecordedEvent], damage
) -> None:
    damage(
        "DROP TABLE kept",
        "ALTER TABLE runs DROP COLUMN seed",
        "UPDATE meta SET value = '1' WHERE key = 'projections'",
    )
    assert verify_log(home).is_ok
    EventLog.open(home).close()
    assert verify_log(home).is_ok
    with LogReader.open(home) as reader:
        assert reader.run_summaries()


def test_an_event_that_cannot_follow_is_named(home: Path, stored: list[RecordedEvent], monkeypatch) -> None:
    real = fold.apply_event
    monkeypatch.setattr(
        fold,
        "apply_event",
        lambda state, event: real(None if type(event).__name__ == "RoundStarted" else state, event),
    )
    victim = next(item for item in stored if item.type == "RoundStarted")
    report = verify_log(home)
    assert (report.first_finding.part, report.first_finding.seq) == ("event", victim.seq)


# --- what stands beside the rows ---


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("UPDATE runs SET best_ms = 0.5 WHERE run = 'first'", "runs: row ('first',"),
        ("DELETE FROM attempts WHERE seq = (SELECT min(seq) FROM attempts)", "attempts: row"),
        (
            "INSERT INTO spend VALUES ('zzz', 1, 'planner', 0, 5, 0, 0, NULL, NULL, NULL, 0, NULL)",
            "is not from the log",
        ),
        ("UPDATE plans SET title = 'x' WHERE run = 'second'", "plans: row ('second', 1) holds 'x'"),
    ],
)
def test_an_edited_read_model_is_named(
    home: Path, stored: list[RecordedEvent], damage: Damage, statement: str, words: str
) -> None:
    damage(statement)
    assert words in only(home, "read_model")


def test_an_edited_snapshot_is_named(home: Path, stored: list[RecordedEvent], damage: Damage) -> None:
    damage("UPDATE snapshot SET data = zeroblob(10) WHERE stream = 'first'")
    assert "do not match their digest" in only(home, "snapshot")


def test_a_forged_snapshot_is_named(home: Path, stored: list[RecordedEvent], damage: Damage) -> None:
    with LogReader.open(home) as reader:
        state = reader.run_state("first").model_copy(update={"spent_usd": 0.0})
    data = zlib.compress(state.model_dump_json().encode())
    damage(
        "UPDATE snapshot SET data = ?, digest = ? WHERE stream = 'first'",
        parameters=(data, sha256(data).digest()),
    )
    assert "not the one that the events give" in only(home, "snapshot")


def test_a_snapshot_of_no_event_is_named(home: Path, stored: list[RecordedEvent], damage: Damage) -> None:
    damage("UPDATE snapshot SET run_seq = 100000 WHERE stream = 'first'")
    assert "first@100000" in only(home, "snapshot")


@pytest.mark.parametrize("column", ["data = zeroblob(3)", "size = size + 1", "encoding = 'raw'"])
def test_an_edited_blob_is_named(
    home: Path, stored: list[RecordedEvent], damage: Damage, column: str
) -> None:
    damage(f"UPDATE blob SET {column} WHERE rowid = (SELECT min(rowid) FROM blob WHERE encoding = 'zlib')")
    assert "blob" in only(home, "blob")


def test_a_blob_that_an_event_names_must_be_there(home: Path, log: EventLog) -> None:
    step = next(ScriptedRun().steps())
    log.append_now([NewEvent("r", step.event)], blobs=step.blobs[1:])
    finding = only(home, "blob")
    assert step.event.kernel in finding
    assert "at event 1 (r@1)" in finding


NO_BLOBS = {"cache_key", "parent_hash"}
"""Digests of other things than blobs."""


def names_a_digest(annotation: Any) -> bool:
    return annotation == Digest or any(map(names_a_digest, get_args(annotation)))


@pytest.mark.parametrize("event_type", [*EVENT_TYPES.values()], ids=lambda one: one.__name__)
def test_every_field_with_the_digest_of_a_blob_is_looked_at(event_type: type[Event]) -> None:
    """A digest that `verify` does not know leads to a blob whose loss nobody notices."""
    hints = get_type_hints(event_type, include_extras=True)
    named = {name for name in event_type.model_fields if names_a_digest(hints[name])} - NO_BLOBS
    known = {path.partition(".")[0] for path in blobs._BLOB_FIELDS.get(event_type, ()) if "." not in path}
    assert named == known


def test_a_smashed_page_is_reported(home: Path, stored: list[RecordedEvent]) -> None:
    database = home / "events.db"
    data = bytearray(database.read_bytes())
    data[4096 * 3 : 4096 * 4] = b"\xff" * 4096
    database.write_bytes(data)
    try:
        complaint = str(verify_log(home).first_finding)
    except LogDamaged as error:  # the page was needed to open the log at all
        complaint = str(error)
    assert "malformed" in complaint or "btree" in complaint.lower()


def test_what_cannot_be_checked_is_an_error(home: Path, tmp_path: Path, damage: Damage) -> None:
    with pytest.raises(NoLog, match="no such directory"):
        verify_log(home)
    with pytest.raises(NoLog):
        verify_log(tmp_path)
    (tmp_path / "events.db").write_bytes(b"not a database" * 1000)
    with pytest.raises(LogDamaged, match="not a database"):
        verify_log(tmp_path)


def test_a_newer_log_is_not_called_damaged(home: Path, stored: list[RecordedEvent], damage: Damage) -> None:
    damage("INSERT INTO kind VALUES ('TimeTravelled', 1)")
    with pytest.raises(LogTooNew, match="TimeTravelled"):
        verify_log(home)


COPY = """INSERT INTO event SELECT {}, stream, {}, type, sv, ts_us, cause, 'k', payload, {}, {},
    state_hash, fold, hash FROM event WHERE seq = (SELECT max(seq) FROM event)"""


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("UPDATE event SET payload = '{}' WHERE seq = 1", "append-only"),
        ("DELETE FROM event WHERE seq = 1", "append-only"),
        ("UPDATE stream SET parent = 'x'", "append-only"),
        ("INSERT OR REPLACE INTO event SELECT * FROM event WHERE seq = 1", "does not continue the log"),
        (COPY.format("seq + 2", "run_seq + 1", "hash", "hash"), "does not continue the log"),
        (COPY.format("seq + 1", "run_seq + 1", "hash", "prev"), "does not continue the log"),
        (COPY.format("seq + 1", "run_seq + 1", "zeroblob(32)", "hash"), "does not continue its stream"),
        (COPY.format("seq + 1", "run_seq + 2", "hash", "hash"), "does not continue its stream"),
    ],
)
def test_the_database_itself_refuses_what_does_not_continue_it(
    home: Path, stored: list[RecordedEvent], statement: str, words: str
) -> None:
    with closing(sqlite3.connect(home / "events.db", isolation_level=None)) as connection:
        with pytest.raises(sqlite3.IntegrityError, match=words):
            connection.execute(statement)
        connection.execute(COPY.format("seq + 1", "run_seq + 1", "hash", "hash"))


def test_a_paused_run_verifies(home: Path, log: EventLog) -> None:
    step = next(ScriptedRun().steps())
    log.append_now([NewEvent("r", step.event), NewEvent("r", RunPaused(reason="lunch"))], blobs=step.blobs)
    assert verify_log(home).is_ok


def test_an_index_that_lost_a_key_is_reported(home: Path, stored: list[RecordedEvent]) -> None:
    database = home / "events.db"
    key = next(idem for item in stored if (idem := idempotency_key(item.event)) and "#start" in idem)
    entry = stored[0].stream + key  # only the index of keys has the two side by side
    content = database.read_bytes()
    assert entry.encode() in content
    database.write_bytes(content.replace(entry.encode(), entry.replace("#", "$").encode()))
    assert "index" in only(home, "page")


def test_a_guard_that_was_dropped_is_missed(home: Path, stored: list[RecordedEvent]) -> None:
    with closing(sqlite3.connect(home / "events.db")) as connection:
        connection.execute("DROP TRIGGER event_no_delete")
    assert "event_no_delete" in only(home, "page")


@pytest.mark.parametrize(
    ("statements", "said"),
    [
        (
            ("DROP TRIGGER event_no_update",
             "CREATE TRIGGER event_no_update BEFORE UPDATE ON event BEGIN SELECT 1; END"),
            "the trigger event_no_update is not as this program makes it",
        ),
        (
            ("CREATE TRIGGER quiet AFTER INSERT ON event BEGIN DELETE FROM blob; END",),
            "the trigger quiet is not of this program",
        ),
        (("CREATE VIEW seen AS SELECT 1",), "the view seen is not of this program"),
        (("CREATE TABLE notes(text)",), "the table notes is not of this program"),
        (("CREATE INDEX quick ON event(type)",), "the index quick is not of this program"),
        (("DROP INDEX gap_upto",), "the index gap_upto is missing"),
    ],
    ids=["body", "trigger", "view", "table", "index", "missing"],
)  # fmt: skip
def test_a_schema_that_is_not_ours_is_named_and_not_restored(
    home: Path, stored: list[RecordedEvent], tmp_path: Path, statements: tuple[str, ...], said: str
) -> None:
    with closing(sqlite3.connect(home / "events.db", isolation_level=None)) as connection:
        for statement in statements:
            connection.execute(statement)
    assert said in only(home, "page")
    with pytest.raises(LogDamaged, match=said):
        backup_log(home, tmp_path / "backup.db")
    shutil.copy(home / "events.db", tmp_path / "forged.db")
    with pytest.raises(LogDamaged, match=said):
        restore_log(tmp_path / "restored", tmp_path / "forged.db")
