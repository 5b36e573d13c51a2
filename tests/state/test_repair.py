"""Repair: what is sound is saved, what is damaged is cut and said, and nothing else is touched."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from state import schema
from state.backup import backup_log, restore_log
from state.errors import BlobPruned, HomeLocked, LogDamaged, LogTooNew, NoLog, TailLost, WalLost
from state.events import RunForked
from state.head import read_head, read_second_head
from state.log import EventLog
from state.reader import LogReader
from state.records import NewEvent, RecordedEvent
from state.repair import RepairResult, repair_log
from state.verify import verify_log
from tests.support.scripted_runs import append_run

Damage = Callable[..., None]
PAGE = 4096


@pytest.fixture
def runs(home: Path, stored: list[RecordedEvent]) -> list[RecordedEvent]:
    """Two runs that have ended, and two forks of the first that go on: one cut early, one late."""
    found = list(stored)
    with EventLog.open(home) as log:
        for child, parent in (("early", stored[9]), ("late", stored[39])):
            event = RunForked(parent=parent.stream, parent_seq=parent.run_seq, parent_hash=parent.hash)
            found += log.append_now([NewEvent(child, event)])
    return found


def hashes(home: Path) -> dict[int, str]:
    with LogReader.open(home) as reader:
        return {item.seq: item.hash for item in reader.read(limit=10_000)}


def statuses(home: Path) -> dict[str, tuple[str, str]]:
    with LogReader.open(home) as reader:
        return {row["run"]: (row["status"], row["reason"]) for row in reader.run_summaries()}


def goes_on(home: Path) -> None:
    """The repaired log verifies, is not repaired again, and takes events."""
    assert verify_log(home).is_ok
    assert repair_log(home) == RepairResult((), (), None)
    with EventLog.open(home, full_check=True) as log:
        append_run(log, "next", rounds=1)
    assert verify_log(home).is_ok


def test_a_sound_log_is_left_alone(home: Path, runs: list[RecordedEvent]) -> None:
    before = (home / "events.db").read_bytes()
    assert repair_log(home) == RepairResult((), (), None)
    assert (home / "events.db").read_bytes() == before
    assert not (home / "replaced").exists()


ROWS = {
    "edited": "UPDATE event SET payload = payload || ' ' WHERE seq = 30",
    "missing": "DELETE FROM event WHERE seq = 30",
    "another hash": "UPDATE event SET hash = zeroblob(32) WHERE seq = 30",
    "another version": "UPDATE event SET sv = 99 WHERE seq = 30",
    "no such type": "UPDATE event SET type = 'Nonsense' WHERE seq = 30",
    "no utf-8": "UPDATE event SET payload = CAST(x'7bff7d' AS TEXT) WHERE seq = 30",
}


@pytest.mark.parametrize("statement", ROWS.values(), ids=ROWS)
def test_only_the_damaged_run_is_cut(
    home: Path, runs: list[RecordedEvent], damage: Damage, statement: str
) -> None:
    damage(statement)
    done = repair_log(home)
    lost = {loss.stream: (loss.first, loss.events) for loss in done.lost}
    mine = sum(item.stream == "first" for item in runs)
    assert lost == {"first": (30, mine - 29), "late": (41, 1)}  # the late fork continued what was cut
    kept = {item.seq: item.hash for item in runs if item.seq < 30 or item.stream in ("second", "early")}
    assert kept.items() <= hashes(home).items()
    assert len(hashes(home)) == len(kept) + 2  # the run is paused, and the log says that it was repaired
    assert statuses(home)["first"][0] == "paused"
    assert f"lost {mine - 29} events from first@30 on: event 30" in statuses(home)["first"][1]
    assert (statuses(home)["second"], statuses(home)["early"]) == (("completed", "rounds"), ("running", ""))
    assert len((done.rewritten.kept / "events.db").read_bytes()) > 0
    goes_on(home)


def test_a_cut_run_can_go_on_from_where_it_was_cut(home: Path, runs, damage: Damage) -> None:
    with LogReader.open(home) as reader:
        state = reader.run_state("first", to=29)
    damage(ROWS["edited"])
    repair_log(home)
    with LogReader.open(home) as reader:
        assert reader.run_state("first", to=29) == state
        assert reader.read(stream="system")[-1].event.verb == "repair"


def test_a_lost_tail_is_said_and_its_numbers_are_not_given_again(home: Path, runs, damage: Damage) -> None:
    last = runs[-1].seq
    damage(f"DELETE FROM event WHERE seq > {last - 20}")
    done = repair_log(home)
    assert sum(loss.events for loss in done.lost) == 20
    assert min(set(hashes(home)) - set(range(last - 19))) > last
    goes_on(home)


def test_runs_that_may_have_lost_events_wait_for_a_person(home: Path, stored, damage: Damage) -> None:
    with EventLog.open(home) as log:
        log.append_now([NewEvent("open", item.event) for item in stored[:5]])
    damage("DELETE FROM event WHERE seq = 220")
    (home / "HEAD").unlink()
    repair_log(home)
    assert statuses(home)["open"][0] in {"paused", "running"}
    goes_on(home)


def test_a_damaged_blob_leaves_a_tombstone_and_pauses_who_needs_it(home: Path, runs, damage: Damage) -> None:
    named = next(item for item in runs if item.type == "KernelProposed")
    digest = named.event.source
    assert 10 < named.run_seq < 40
    damage("UPDATE blob SET data = zeroblob(10) WHERE digest = ?", parameters=(bytes.fromhex(digest),))
    done = repair_log(home)
    assert (done.lost, done.blobs) == ((), (digest,))
    assert {item.seq: item.hash for item in runs}.items() <= hashes(home).items()
    assert statuses(home)["late"] == ("paused", f"repaired: lost blob {digest}")
    assert statuses(home)["early"] == ("running", "")
    with LogReader.open(home) as reader, pytest.raises(BlobPruned, match="was lost: its bytes were damaged"):
        reader.get_blob(digest)
    goes_on(home)


@pytest.mark.parametrize("table", ["runs", "snapshot", "stream", "kind", "spend"])
def test_what_follows_from_the_rows_is_made_anew(home: Path, runs, damage: Damage, table: str) -> None:
    before = statuses(home)
    damage(f"DELETE FROM {table}")
    done = repair_log(home)
    assert (done.lost, done.blobs) == ((), ())
    assert statuses(home) == before
    assert {item.seq: item.hash for item in runs}.items() <= hashes(home).items()
    goes_on(home)


def test_a_damaged_number_is_not_counted_up_to(home: Path, runs, damage: Damage) -> None:
    blob = "SELECT max(rowid) FROM blob"
    damage(
        f"UPDATE event SET seq = {1 << 40} WHERE seq = {runs[-1].seq}",
        f"UPDATE blob SET rowid = {(1 << 63) - 1} WHERE rowid = ({blob})",
    )
    result = repair_log(home)  # took years once
    assert [one.events for one in result.lost] == [1]
    assert result.blobs == ()
    assert hashes(home).keys() >= {item.seq for item in runs[:-1]}
    goes_on(home)


def test_a_damaged_anchor_is_written_anew(home: Path, runs) -> None:
    (home / "HEAD").write_text("garbage")
    assert repair_log(home).lost == ()
    assert verify_log(home).anchored
    goes_on(home)


@pytest.mark.parametrize("seed", range(6))
def test_pages_of_garbage_lose_what_was_on_them_and_no_more(home: Path, runs, seed: int) -> None:
    draw = random.Random(seed)
    content = bytearray((home / "events.db").read_bytes())
    page = draw.randrange(20, len(content) // PAGE)
    content[page * PAGE : (page + 1) * PAGE] = draw.randbytes(PAGE)
    (home / "events.db").write_bytes(content)
    if verify_log(home).is_ok:
        return  # a page that nothing is on
    done = repair_log(home)
    cut = {loss.stream: loss.first for loss in done.lost}
    kept = hashes(home)
    for item in runs:
        if item.stream not in cut or (cut[item.stream] and item.run_seq < cut[item.stream]):
            assert kept[item.seq] == item.hash
    goes_on(home)


def test_what_cannot_be_read_at_all_is_not_repaired(home: Path, runs) -> None:
    (home / "events.db").write_bytes(b"something else " * 1000)
    with pytest.raises(LogDamaged):
        repair_log(home)
    assert (home / "events.db").read_bytes() == b"something else " * 1000


def test_what_a_newer_version_wrote_is_not_cut(home: Path, runs, damage: Damage, monkeypatch) -> None:
    damage("PRAGMA user_version = 99")
    with pytest.raises(LogTooNew):
        repair_log(home)


def test_homes_in_use_and_without_a_log_are_refused(log: EventLog, home: Path, tmp_path: Path) -> None:
    with pytest.raises(HomeLocked):
        repair_log(home)
    with pytest.raises(NoLog):
        repair_log(tmp_path / "nowhere")


# --- versions ---


def old_log(home: Path, monkeypatch) -> list[RecordedEvent]:
    """A log as the first schema had it."""
    with monkeypatch.context() as patch:
        patch.setattr(schema, "MIGRATIONS", schema.MIGRATIONS[:1])
        patch.setattr(schema, "SCHEMA_VERSION", 1)
        with EventLog.open(home) as log:
            return append_run(log, "r")


def test_an_old_log_is_read_as_it_is_and_migrated_by_its_owner(home: Path, monkeypatch) -> None:
    from state.log_rebuild import migrate_log

    stored = old_log(home, monkeypatch)
    assert verify_log(home).is_ok
    with LogReader.open(home) as reader:
        reader.check_end()
        assert reader.head.hash == stored[-1].hash
    assert migrate_log(home) == (1, schema.SCHEMA_VERSION)
    assert migrate_log(home) == (schema.SCHEMA_VERSION, schema.SCHEMA_VERSION)
    assert verify_log(home).is_ok
    with EventLog.open(home, full_check=True) as log:
        append_run(log, "next", rounds=1)
    assert verify_log(home).is_ok


def test_an_old_backup_is_brought_up_to_date_when_it_is_restored(
    home: Path, tmp_path: Path, monkeypatch
) -> None:
    from state.backup import backup_log, restore_log

    old_log(home, monkeypatch)
    backup_log(home, tmp_path / "b.db")
    restore_log(tmp_path / "other", tmp_path / "b.db")
    assert verify_log(tmp_path / "other").is_ok


def test_a_lost_tail_of_an_old_log_is_noticed(home: Path, monkeypatch, damage: Damage) -> None:
    old_log(home, monkeypatch)
    damage("DELETE FROM event WHERE seq > 50")
    assert not verify_log(home).is_ok
    repair_log(home)
    goes_on(home)


def copy_of_killed(home: Path, to: Path) -> tuple[int, int]:
    """Copy a home as a kill leaves it; return the last event of its main file, and the last of all."""
    with EventLog.open(home) as log:
        append_run(log, "first", rounds=1)
        first = log.head.seq
    with EventLog.open(home) as log:
        append_run(log, "second", rounds=1)
        log._writer.sync_head()
        shutil.copytree(home, to)
        return first, log.head.seq


def test_the_second_witness_tells_a_lost_tail_when_head_and_wal_are_gone(home: Path, tmp_path: Path) -> None:
    killed = tmp_path / "killed"
    first, head = copy_of_killed(home, killed)
    (killed / "HEAD").unlink()
    (killed / "events.db-wal").write_bytes(b"")
    with pytest.raises(TailLost):
        EventLog.open(killed).close()
    done = repair_log(killed)
    assert sum(loss.events for loss in done.lost) == head - first
    assert f"events after event {head} may be lost, at most those of a second" in done.unknown
    assert done.unknown in done.rewritten.event.detail


def test_repair_says_what_it_cannot_know(home: Path, tmp_path: Path) -> None:
    killed = tmp_path / "killed"
    first, _ = copy_of_killed(home, killed)
    for name in ("HEAD", "HEAD.second", "events.db-wal"):
        (killed / name).unlink()
    with pytest.raises(WalLost):
        EventLog.open(killed).close()
    done = repair_log(killed)
    assert f"its WAL is gone: events after event {first} may be lost, nothing says how many" in done.unknown


def test_a_log_made_anew_has_no_witness_of_the_old_one(home: Path, runs) -> None:
    backup = home.parent / "backup.db"
    backup_log(home, backup)
    with EventLog.open(home) as log:
        append_run(log, "later", rounds=1)
    restore_log(home, backup)
    assert read_second_head(home / "HEAD") == read_head(home / "HEAD")
    goes_on(home)
