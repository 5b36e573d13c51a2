"""`agentctl` keeping a log safe: what its verbs say, in words and in JSON, and with which status."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from contextlib import closing

import pytest

from daemon import exits
from daemon.command_models import run_id
from daemon.commands import CommandHandler
from daemon.inbox import Inbox, put_command
from state.log import EventLog
from state.model import RunStatus, digest_of
from tests.support import fakes


def damage(home) -> None:
    with closing(sqlite3.connect(home / "events.db")) as connection:
        connection.execute("DROP TRIGGER event_no_update")
        connection.execute("UPDATE event SET payload = payload || ' ' WHERE seq = 30")
        connection.commit()


def test_a_backup_is_made_beside_a_working_owner_and_restored(ctl, home, finished, tmp_path) -> None:
    with EventLog.open(home):
        made = ctl("backup", tmp_path / "b.db", "--json").json
        assert ctl("restore", tmp_path / "b.db").status == exits.LOCKED
    assert ctl("verify", "--json").json["events"] == made["events"] == made["head"]
    assert ctl("backup", tmp_path / "b.db").status == exits.USAGE
    assert ctl("backup", tmp_path / "b.db", "--replace").status == exits.OK
    said = ctl("restore", tmp_path / "b.db")
    assert said.status == exits.OK
    assert f"restored from b.db, which ends at event {made['head']}" in said.out
    assert "the old log is kept in" in said.out
    assert ctl("verify").status == exits.OK
    assert ctl("restore", tmp_path / "nothing").status == exits.NOT_THERE


def test_a_run_leaves_the_log_and_comes_back(ctl, home, finished, tmp_path) -> None:
    file = tmp_path / "run.jsonl.gz"
    made = ctl("archive", finished, "-o", file, "--json").json
    assert (made["run"], made["ended"]) == (finished, True)
    said = ctl("compact", file)
    assert said.status == exits.OK
    assert f"{made['events']} events taken out" in said.out
    assert f"{finished}: archived in run.jsonl.gz, SHA-256 {made['sha256']}" in said.out
    assert finished not in ctl("status").out
    assert f"not in this log any more: {made['events']} events" in ctl("verify").out
    again = ctl("import", file, "--json").json
    assert (again["run"], again["runs"]) == (finished, {finished: f"imported, {made['events']} events"})
    assert finished in ctl("status").out
    assert ctl("import", file).status == exits.FAILURE
    assert ctl("tail", "--type", "log").out.count("\n") == 2


def test_an_archive_goes_where_one_stands(ctl, finished, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert ctl("archive", finished).out.startswith(f"{finished}.jsonl.gz: ")
    assert (tmp_path / f"{finished}.jsonl.gz").exists()
    assert ctl("archive", "nobody").status == exits.NOT_THERE


@pytest.mark.parametrize("verb", ["compact", "import"])
def test_what_is_no_archive_is_bad_input(ctl, finished, tmp_path, verb) -> None:
    (tmp_path / "file").write_bytes(b"nonsense")
    called = ctl(verb, tmp_path / "file")
    assert called.status == exits.USAGE
    assert "cut short or no gzip file" in called.err


def test_a_repair_says_what_was_lost(ctl, home, finished) -> None:
    assert ctl("repair").out == "nothing to repair: the log verifies\n"
    damage(home)
    assert ctl("verify").status == exits.LOG
    said = ctl("repair", "--json").json
    assert said["repaired"] is True
    assert list(said["lost"]) == [finished]
    assert "event 30 its content does not match its hash" in said["lost"][finished]
    assert (said["verb"], said["blobs"]) == ("repair", [])
    assert ctl("verify").status == exits.OK
    assert "paused" in ctl("status").out


def test_quick_and_deep_are_told_apart(ctl, home, finished) -> None:
    with closing(sqlite3.connect(home / "events.db")) as connection:
        connection.execute("DELETE FROM spend")
        connection.execute("DELETE FROM plans")
        connection.commit()
    assert ctl("verify", "--quick").status == exits.OK
    for deep in ((), ("--deep",)):
        called = ctl("verify", *deep)
        assert called.status == exits.LOG
        assert "read_model" in called.out


def test_an_up_to_date_log_has_nothing_to_migrate(ctl, home, finished) -> None:
    said = ctl("migrate", "--json").json
    assert said["before"] == said["after"]
    assert "up to date" in ctl("migrate").out


@pytest.mark.parametrize("verb", ["repair", "migrate", "compact"])
def test_without_a_log_there_is_nothing_to_keep(ctl, verb) -> None:
    assert ctl(verb).status == exits.NOT_THERE


@pytest.mark.parametrize("verb", ["repair", "migrate", "compact", "verify"])
def test_a_folder_is_no_log(ctl, home, verb) -> None:
    (home / "events.db").mkdir(parents=True)
    called = ctl(verb)
    assert called.status == exits.USAGE
    assert called.err.count("\n") == 1


def test_nothing_is_taken_for_a_backup_whatever_its_name(ctl, finished, tmp_path) -> None:
    assert ctl("restore", tmp_path / ("n" * 300)).status == exits.NOT_THERE
    for verb in ("import", "compact"):
        assert ctl(verb, tmp_path).status == exits.USAGE
        assert ctl(verb, tmp_path / ("n" * 300)).status == exits.USAGE


def test_a_home_in_use_is_left_alone(ctl, home, finished, tmp_path) -> None:
    ctl("archive", finished, "-o", tmp_path / "a.gz")
    with EventLog.open(home):
        for call in (
            ("repair",),
            ("migrate",),
            ("import", tmp_path / "a.gz"),
        ):
            assert ctl(*call).status == exits.LOCKED, call
    fakes.submit_run(home)


def test_a_blob_that_was_lost_is_shown_as_that(ctl, home, finished) -> None:
    with EventLog.open(home) as log:
        shown = next(item for item in log.read(stream=finished) if item.type == "KernelProposed")
    with closing(sqlite3.connect(home / "events.db")) as connection:
        key = (bytes.fromhex(shown.event.source),)
        connection.execute("UPDATE blob SET data = zeroblob(9) WHERE digest = ?", key)
        connection.commit()
    assert ctl("repair", "--json").json["blobs"] == [shown.event.source]
    said = ctl("show", f"{finished}@{shown.run_seq}")
    assert said.status == exits.OK
    assert "was lost: its bytes were damaged" in said.out


async def test_a_run_that_needs_a_lost_blob_waits_and_takes_nobody_with_it(home) -> None:
    poor = fakes.submit_run(home)
    other = run_id(put_command(home, fakes.create_submission(kernel="TILE_M = 64\n")), fakes.CONFIG.problem)
    await asyncio.to_thread(fakes.take_commands, home)
    with closing(sqlite3.connect(home / "events.db")) as connection:
        key = (bytes.fromhex(digest_of(fakes.KERNEL.encode())),)
        connection.execute("UPDATE blob SET encoding = 'lost', data = x'' WHERE digest = ?", key)
        connection.commit()
    with EventLog.open(home) as log:
        await fakes.host_until_ended(log, other)
        state = log.run_state(poor)
    assert state.status is RunStatus.PAUSED
    assert "was lost" in state.status_reason


async def take_commands_until(log: EventLog, done: threading.Event) -> None:
    handler = CommandHandler(log, fakes.fake_workers(), touched=lambda *_: None)
    watching = asyncio.create_task(Inbox(log.home, handler.handle).watch())
    while not done.is_set():  # noqa: ASYNC110 - another thread calls the verbs
        await asyncio.sleep(0.01)
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)


def test_an_owner_compacts_its_log_itself(ctl, home, finished, tmp_path) -> None:
    file, done = tmp_path / "a.gz", threading.Event()
    made = ctl("archive", finished, "-o", file, "--json").json
    (tmp_path / "nonsense").write_bytes(b"nonsense")
    with EventLog.open(home) as log:
        owner = threading.Thread(target=asyncio.run, args=(take_commands_until(log, done),))
        owner.start()
        try:
            refused = ctl("compact", tmp_path / "nonsense")
            said = ctl("compact", file)
            shown = ctl("status")
        finally:
            done.set()
            owner.join()
    assert (refused.status, said.status) == (exits.USAGE, exits.OK)
    assert "cut short or no gzip file" in refused.err
    assert f"{made['events']} events taken out" in said.out
    assert f"{finished}: archived in a.gz, SHA-256 {made['sha256']}" in said.out
    assert finished not in shown.out
    assert ctl("verify").status == exits.OK
