"""An open log is compacted while appends go on: nothing acknowledged is lost, and readers read on."""

from __future__ import annotations

import asyncio
import threading
from contextlib import closing
from itertools import count
from pathlib import Path

import pytest

from state import online_compaction
from state.archive import archive_run
from state.compact import RemainingRows
from state.errors import BadArchive, RunKept, StorageFailed
from state.events import EffectProgressed
from state.home import HomeLayout
from state.log import EventLog
from state.model import INITIAL_KEY, SYSTEM_STREAM, digest_of
from state.online_compaction import compact_open_log
from state.reader import LogReader
from state.readonly import ReadOnlyConnection
from state.records import NewEvent
from state.replica import FolderStore, Replicator, list_generations, restore_replica
from state.verify import verify_log
from tests.support.scripted_runs import ScriptedRun, append_run


@pytest.fixture
def archived(home: Path, tmp_path: Path) -> Path:
    """A log with an ended run that is archived, and one that goes on."""
    with EventLog.open(home) as log:
        append_run(log, "ended", rounds=2)
        append_run(log, "kept", rounds=1)
    file = tmp_path / "ended.gz"
    archive_run(home, "ended", file)
    return file


def note(part: int, answers: str | None = None) -> NewEvent:
    """An event that any log takes at any time."""
    event = EffectProgressed(run="any", key=str(INITIAL_KEY), part=part, answers=answers, count=1)
    return NewEvent(SYSTEM_STREAM, event)


def contents(home: Path) -> list[tuple[int, str]]:
    with LogReader.open(home) as reader:
        return [(item.seq, item.hash) for item in reader.read(limit=100_000) if item.type != "LogRewritten"]


async def append_until(log: EventLog, run: str, done: asyncio.Event) -> list[tuple[int, str]]:
    """Append the events of a run one by one, until told to stop; return what was acknowledged."""
    acknowledged: list[tuple[int, str]] = []
    for step in ScriptedRun(seed=3, rounds=200).steps():
        stored = await log.append([NewEvent(run, step.event)], blobs=step.blobs)
        acknowledged += [(item.seq, item.hash) for item in stored]
        if done.is_set():
            break
    return acknowledged


async def test_all_that_is_acknowledged_meanwhile_is_in_the_new_file(home, archived) -> None:
    before = contents(home)
    with LogReader.open(home) as follower, EventLog.open(home) as log:
        seen = follower.head.seq
        done = asyncio.Event()
        callers = [asyncio.create_task(append_until(log, f"run{n}", done)) for n in range(3)]
        await asyncio.sleep(0.05)
        result = await asyncio.to_thread(compact_open_log, log, [archived])
        between = log.head.seq
        while log.head.seq < between + 20:  # noqa: ASYNC110 - appends go on in the new file
            await asyncio.sleep(0.01)
        done.set()
        acknowledged = [one for items in await asyncio.gather(*callers) for one in items]
        assert follower.head.seq > between > seen
        assert set(log.run_ids()) == {"kept", "run0", "run1", "run2"}
        states = {run: log.run_state(run) for run in log.run_ids()}
    assert result.event.taken_out > 0
    found = contents(home)
    assert set(acknowledged) <= set(found)
    assert set(found) == {one for one in before if one in found} | set(acknowledged)
    assert len(before) - len(set(before) & set(found)) == result.event.taken_out
    assert verify_log(home).is_ok
    with EventLog.open(home, full_check=True) as log:
        assert {run: log.run_state(run) for run in log.run_ids()} == states


def test_a_blob_that_was_pruned_comes_back_with_an_event_that_names_it(home, archived, monkeypatch) -> None:
    data, real = b"a blob that nothing names yet", RemainingRows.copy_news
    naming = [note(2, digest_of(data))]
    with EventLog.open(home) as log:
        log.append_now([note(1)], blobs=[data])

        def copy_news(self: RemainingRows) -> int:
            while naming:
                log.append_now([naming.pop()], blobs=[data])
            return real(self)

        monkeypatch.setattr(RemainingRows, "copy_news", copy_news)
        done = compact_open_log(log, [archived])
        assert log.get_blob(digest_of(data)) == data
    assert "pruned" in done.event.detail
    assert "0 blobs pruned" not in done.event.detail
    assert verify_log(home).is_ok


def test_a_replica_goes_on_over_it(home, archived, tmp_path) -> None:
    replicator = Replicator(FolderStore(tmp_path / "replica"))

    def copy() -> None:
        with closing(ReadOnlyConnection(HomeLayout(home))) as handle:
            replicator.copy_news(handle.connection())

    with EventLog.open(home) as log:
        copy()
        compact_open_log(log, [archived])
        append_run(log, "later", rounds=1)
        copy()
        assert replicator.last_copied == log.head.seq
    assert list(list_generations(FolderStore(tmp_path / "replica"))) == ["g1"]
    restore_replica(tmp_path / "new", FolderStore(tmp_path / "replica"))
    with LogReader.open(tmp_path / "new") as reader:
        assert set(reader.run_ids()) == {"ended", "kept", "later"}
    assert verify_log(tmp_path / "new").is_ok


def test_a_reader_that_holds_on_keeps_the_old_file(home, archived) -> None:
    with EventLog.open(home) as log, closing(ReadOnlyConnection(HomeLayout(home))) as handle:
        log._appender.connection.execute("PRAGMA busy_timeout=20")
        log.append_now([note(1)])
        handle.connection().execute("BEGIN")
        handle.connection().execute("SELECT count(*) FROM event").fetchone()
        log.append_now([note(2)])
        with pytest.raises(StorageFailed, match="reader holds on"):
            compact_open_log(log, [archived])
        assert "ended" in log.run_ids()
        append_run(log, "later", rounds=1)
        handle.connection().execute("COMMIT")
        compact_open_log(log, [archived])
        assert set(log.run_ids()) == {"kept", "later"}
    assert verify_log(home).is_ok


def test_what_may_not_leave_is_refused_and_the_log_goes_on(home, archived, tmp_path) -> None:
    with EventLog.open(home) as log:
        for step in list(ScriptedRun(seed=5).steps())[:20]:
            log.append_now([NewEvent("going", step.event)], blobs=step.blobs)
        archive_run(home, "going", tmp_path / "going.gz")
        with pytest.raises(RunKept, match="has not ended"):
            compact_open_log(log, [archived, tmp_path / "going.gz"])
        (tmp_path / "nonsense.gz").write_bytes(b"nonsense")
        with pytest.raises(BadArchive):
            compact_open_log(log, [tmp_path / "nonsense.gz"])
        append_run(log, "later", rounds=1)
        assert set(log.run_ids()) == {"ended", "kept", "going", "later"}
    assert not list(home.glob("*.new*"))
    assert verify_log(home).is_ok


def test_appends_wait_only_while_the_files_change(home, archived, monkeypatch) -> None:
    counts: list[int] = []
    real = RemainingRows.copy_news
    monkeypatch.setattr(RemainingRows, "copy_news", lambda self: counts.append(real(self)) or counts[-1])
    stop = threading.Event()

    def append(log: EventLog) -> None:
        numbers = count(1)
        while not stop.is_set():
            log.append_now([note(next(numbers))])

    with EventLog.open(home) as log:
        caller = threading.Thread(target=append, args=(log,))
        caller.start()
        compact_open_log(log, [archived])
        stop.set()
        caller.join()
    assert len(counts) >= 2
    assert counts[-1] <= 10 * online_compaction.FEW_EVENTS
    assert verify_log(home).is_ok
