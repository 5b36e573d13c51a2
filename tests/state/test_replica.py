"""Replicas: every event is there soon, each moment can be had back, and damage is named."""

from __future__ import annotations

import shutil
import time
import zlib
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest

from state import replica
from state.backup import backup_log, restore_log
from state.errors import LogDamaged, NoLog, StreamUnknown
from state.home import HomeLayout
from state.log import EventLog
from state.model import digest_of
from state.reader import LogReader
from state.readonly import ReadOnlyConnection
from state.replica import FolderStore, Replicator, list_generations, restore_replica
from state.verify import verify_log
from tests.support.scripted_runs import append_run


class Flaky(FolderStore):
    """A folder that cannot be reached as often as told, before or after it has stored what it was given."""

    def __init__(self, folder: Path, *failures: str) -> None:
        super().__init__(folder)
        self.failures = list(failures)

    def write(self, name: str, data: bytes, /) -> None:
        when = self.failures.pop(0) if self.failures else ""
        if when == "before":
            raise OSError("unreachable")
        super().write(name, data)
        if when == "after":
            raise OSError("unreachable")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "replica"


@pytest.fixture(autouse=True)
def small_segments(monkeypatch) -> None:
    monkeypatch.setattr(replica, "SEGMENT_EVENTS", 7)


def copy(home: Path, replicator: Replicator) -> None:
    with closing(ReadOnlyConnection(HomeLayout(home))) as handle:
        while replicator.copy_news(handle.connection()):
            pass


def contents(home: Path) -> list[tuple[int, str]]:
    with LogReader.open(home) as reader:
        return [(item.seq, item.hash) for item in reader.read(limit=10_000)]


def test_a_replica_is_copied_while_the_log_grows_and_gives_the_same_log(home, folder, tmp_path) -> None:
    replicator = Replicator(FolderStore(folder))
    with EventLog.open(home) as log:
        for number in range(3):
            append_run(log, f"run{number}", rounds=1)
            copy(home, replicator)
            assert replicator.last_copied == log.head.seq
    done = restore_replica(tmp_path / "new", FolderStore(folder))
    kept = contents(home)
    assert contents(tmp_path / "new")[: len(kept)] == kept
    assert done.report.is_ok
    assert verify_log(tmp_path / "new").is_ok
    with LogReader.open(home) as old, LogReader.open(tmp_path / "new") as new:
        assert new.run_state("run1") == old.run_state("run1")
        assert new.get_blob(new.run_state("run1").kernel) == old.get_blob(old.run_state("run1").kernel)


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_replica_goes_on_after_failures_without_a_gap(home, folder, tmp_path, when) -> None:
    replicator = Replicator(Flaky(folder, "", when, "", when))
    with EventLog.open(home) as log:
        append_run(log, "run", rounds=2)
    for _ in range(2):
        with pytest.raises(OSError, match="unreachable"):
            copy(home, replicator)
    copy(home, Replicator(FolderStore(folder)))  # another process goes on
    restore_replica(tmp_path / "new", FolderStore(folder))
    assert contents(tmp_path / "new")[:-1] == contents(home)


def test_each_event_and_each_time_can_be_had_back(home, folder, tmp_path) -> None:
    with EventLog.open(home) as log:
        append_run(log, "first", rounds=1)
        time.sleep(0.01)
        between = datetime.now(tz=UTC)
        time.sleep(0.01)
        before = log.head.seq
        append_run(log, "second", rounds=1)
    copy(home, Replicator(FolderStore(folder)))
    all_ = contents(home)
    restore_replica(tmp_path / "time", FolderStore(folder), between.isoformat())
    assert contents(tmp_path / "time")[:-1] == all_[:before]
    for run_seq in (1, 9, 20):
        restored = tmp_path / f"second{run_seq}"
        restore_replica(restored, FolderStore(folder), f"second@{run_seq}")
        assert contents(restored)[:-1] == all_[: before + run_seq]
        assert verify_log(restored).is_ok
    with EventLog.open(tmp_path / "time") as log:
        append_run(log, "third", rounds=1)
    for at, error in (("second@9999", StreamUnknown), ("tomorrow", StreamUnknown), ("1999-01-01", NoLog)):
        with pytest.raises(error):
            restore_replica(tmp_path / "none", FolderStore(folder), at)


def test_a_rewritten_log_begins_another_generation(home, folder, tmp_path) -> None:
    with EventLog.open(home) as log:
        append_run(log, "first", rounds=1)
    backup_log(home, tmp_path / "backup.db")
    with EventLog.open(home) as log:
        append_run(log, "second", rounds=1)
    replicator = Replicator(FolderStore(folder))
    copy(home, replicator)
    restore_log(home, tmp_path / "backup.db")
    copy(home, Replicator(FolderStore(folder)))
    assert list(list_generations(FolderStore(folder))) == ["g1", "g2"]
    restore_replica(tmp_path / "new", FolderStore(folder))
    assert contents(tmp_path / "new")[:-1] == contents(home)


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("damage", "what"),
    [(flip, "does not match its digest"), (Path.unlink, "the replica lacks events 15 and on")],
)
def test_damage_of_a_replica_is_named_and_nothing_is_restored(home, folder, tmp_path, damage, what) -> None:
    with EventLog.open(home) as log:
        append_run(log, "run", rounds=2)
        last = log.run_seq("run")
    copy(home, Replicator(FolderStore(folder)))
    damage(sorted(folder.iterdir())[2])
    new = tmp_path / "new"
    for at in (None, f"run@{last}"):
        with pytest.raises(LogDamaged, match=what):
            restore_replica(new, FolderStore(folder), at)
    assert not (new / "events.db").exists()


@pytest.mark.parametrize(
    "text",
    [
        b" " * 4000,
        b"{}",
        b'{"before": "", "last_blob": 0}\n["blob"]',
        b'[]\n["event", 1]',
        b"\xff",
        b"[" * 900,
    ],
)
def test_what_is_no_segment_is_named(home, folder, tmp_path, monkeypatch, text) -> None:
    monkeypatch.setattr(replica, "MAX_SEGMENT_BYTES", 1000)
    with EventLog.open(home) as log:
        append_run(log, "run", rounds=1)
    copy(home, Replicator(FolderStore(folder)))
    first, data = min(folder.iterdir()), zlib.compress(text)
    first.unlink()
    name = replica.SegmentName.parse(first.name)._replace(digest=digest_of(data))
    (folder / str(name)).write_bytes(data)
    with pytest.raises(LogDamaged, match="cannot be read"):
        restore_replica(tmp_path / "new", FolderStore(folder))


def test_a_segment_of_another_log_is_noticed(home, folder, tmp_path) -> None:
    other, other_folder = tmp_path / "other", tmp_path / "replica2"
    for place, to in ((home, folder), (other, other_folder)):
        with EventLog.open(place) as log:
            append_run(log, "run", rounds=1)
        copy(place, Replicator(FolderStore(to)))
    foreign = sorted(other_folder.iterdir())[1]
    sorted(folder.iterdir())[1].unlink()
    shutil.copy(foreign, folder / foreign.name)
    with pytest.raises(LogDamaged, match="does not continue"):
        restore_replica(tmp_path / "new", FolderStore(folder))
