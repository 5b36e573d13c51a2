"""The inbox: files by atomic rename, taken in order, removed when answered, moved aside when no command."""

from __future__ import annotations

import asyncio
import json
import os
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from daemon.command_models import VERBS, Pause, read_verb
from daemon.errors import BadFile
from daemon.home_paths import inbox_folder, waiting_commands
from daemon.inbox import MAX_BYTES, Inbox, new_command_id, put_command


@pytest.fixture(autouse=True)
def _made(home):
    home.mkdir(mode=0o700)


class Recorder:
    """Notes what it is handed; refuses what is no command."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.got = asyncio.Event()

    async def handle(self, id_: str, data: bytes) -> None:
        read_verb(data)
        self.seen.append(id_)
        self.got.set()


def list_rejected(home) -> list[tuple[Path, dict]]:
    """Return what was moved aside, each with what is said of it."""
    errors = sorted((inbox_folder(home) / "rejected").glob("*.error.json"))
    return [
        (path.with_name(path.name.replace(".error", "")), json.loads(path.read_bytes())) for path in errors
    ]


def test_ids_sort_by_time():
    ids = [new_command_id() for _ in range(100)]
    assert ids == sorted(ids)
    assert len(set(ids)) == 100


def test_a_dropped_command_is_whole_and_private(home):
    id_ = put_command(home, Pause(run="a", reason="because"))
    (path,) = waiting_commands(home)
    assert path.stem == id_
    said = {"verb": "pause", "run": "a", "reason": "because", "origin": "agentctl"}
    assert json.loads(path.read_bytes()) == said
    assert stat.S_IMODE(home.stat().st_mode) == 0o700
    assert stat.S_IMODE(inbox_folder(home).stat().st_mode) == 0o700
    assert [path.name for path in inbox_folder(home).iterdir()] == [f"{id_}.json"]


async def test_files_are_taken_in_id_order_and_removed(home):
    for id_ in ("3", "1", "2"):
        put_command(home, Pause(run="a"), id_=id_)
    recorder = Recorder()
    await Inbox(home, recorder.handle).take_all()
    assert recorder.seen == ["1", "2", "3"]
    assert waiting_commands(home) == []


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"not json", "not JSON"),
        (b"[1, 2]", "not a command"),
        (b'{"verb": 7}', "not a command"),
        (b"\xff\xfe", "not JSON"),
        (b"[" * 200_000, "not JSON"),
        (b'{"verb": "\\ud800"}', "not a command"),
        (b"", "not JSON"),
    ],
)
async def test_what_is_no_command_is_moved_aside_with_its_reason(home, content, reason):
    put_command(home, Pause(run="a"), id_="2")
    (inbox_folder(home) / "1.json").write_bytes(content)
    recorder = Recorder()
    await Inbox(home, recorder.handle).take_all()
    assert recorder.seen == ["2"]
    assert waiting_commands(home) == []
    ((moved, error),) = list_rejected(home)
    assert moved.read_bytes() == content
    assert (error["code"], error["file"]) == ("bad_file", "1.json")
    assert reason in error["message"]


async def test_what_cannot_be_read_is_moved_aside(home):
    put_command(home, Pause(run="a"), id_="2")
    (inbox_folder(home) / "1.json").mkdir()
    recorder = Recorder()
    await Inbox(home, recorder.handle).take_all()
    assert recorder.seen == ["2"]
    ((moved, _),) = list_rejected(home)
    assert moved.is_dir()


async def test_a_pipe_is_moved_aside_and_holds_nothing_up(home):
    inbox_folder(home).mkdir(parents=True)
    os.mkfifo(inbox_folder(home) / "1.json")
    put_command(home, Pause(run="a"), id_="2")
    recorder = Recorder()
    await Inbox(home, recorder.handle).take_all()
    assert recorder.seen == ["2"]
    ((_, error),) = list_rejected(home)
    assert "regular file" in error["message"]


COMMAND = b'{"verb": "pause", "run": "a"}'


@pytest.mark.parametrize(
    "name",
    [
        b"a" * 250 + b".json",
        b"z" * 101 + b".json",
        b"\xff\xfe.json",
        b" .json",
        b"a b.json",
        b"a\nb.json",
        "\u00fc.json".encode(),
        b"1.error.json",
    ],
)
async def test_a_name_that_is_no_id_is_moved_aside_whatever_the_file_says(home, name):
    put_command(home, Pause(run="a"), id_="2")
    (inbox_folder(home) / os.fsdecode(name)).write_bytes(COMMAND)
    recorder = Recorder()
    await Inbox(home, recorder.handle).take_all()
    assert recorder.seen == ["2"]
    assert waiting_commands(home) == []
    ((moved, error),) = list_rejected(home)
    assert moved.read_bytes() == COMMAND
    assert "no id" in error["message"]


async def test_a_folder_of_the_same_name_again_is_moved_aside_too(home):
    box = Inbox(home, Recorder().handle)
    for _ in range(2):
        (inbox_folder(home) / "1.json" / "full").mkdir(parents=True)
        await box.take_all()
    assert [(moved / "full").is_dir() for moved, _ in list_rejected(home)] == [True, True]


async def test_what_cannot_be_moved_aside_is_told_once_and_holds_nothing_up(home):
    put_command(home, Pause(run="a"), id_="2")
    (inbox_folder(home) / "1.json").write_bytes(b"")
    (inbox_folder(home) / "rejected").touch()
    recorder = Recorder()
    box = Inbox(home, recorder.handle)
    with capture_logs() as lines:
        await box.take_all()
        await box.take_all()
    assert recorder.seen == ["2"]
    assert [(line["event"], line["file"]) for line in lines] == [("command_file_stuck", "1.json")]
    assert [path.name for path in waiting_commands(home)] == ["1.json"]


async def test_a_file_is_read_up_to_a_size(home):
    inbox_folder(home).mkdir()
    for name, size in (("1", MAX_BYTES), ("2", MAX_BYTES + 1)):
        with (inbox_folder(home) / f"{name}.json").open("wb") as file:
            file.truncate(size)
    sizes = []

    async def handle(id_: str, data: bytes) -> None:
        sizes.append((id_, len(data)))

    await Inbox(home, handle).take_all()
    assert sizes == [("1", MAX_BYTES)]
    ((_, error),) = list_rejected(home)
    assert str(MAX_BYTES) in error["message"]


async def test_a_link_to_nothing_is_moved_aside(home):
    inbox_folder(home).mkdir()
    (inbox_folder(home) / "1.json").symlink_to("nothing")
    await Inbox(home, Recorder().handle).take_all()
    ((_, error),) = list_rejected(home)
    assert "link" in error["message"]


async def test_hidden_files_are_left_alone_until_nobody_can_be_writing_them(home):
    inbox_folder(home).mkdir()
    for name in (".1.json.part", "..json", ".new.json.part"):
        (inbox_folder(home) / name).write_bytes(COMMAND)
        if "new" not in name:
            os.utime(inbox_folder(home) / name, (1, 1))
    recorder = Recorder()
    await Inbox(home, recorder.handle).take_all()
    assert recorder.seen == []
    assert {error["file"] for _, error in list_rejected(home)} == {".1.json.part", "..json"}
    assert (inbox_folder(home) / ".new.json.part").exists()


async def test_a_file_that_was_taken_back_is_no_error(home):
    put_command(home, Pause(run="a"), id_="1")
    put_command(home, Pause(run="a"), id_="2")
    seen = []

    async def handle(id_: str, data: bytes) -> None:
        seen.append(id_)
        (inbox_folder(home) / "2.json").unlink(missing_ok=True)

    await Inbox(home, handle).take_all()
    assert seen == ["1"]


async def test_an_error_of_the_log_leaves_the_file_for_later(home):
    put_command(home, Pause(run="a"), id_="1")

    async def handle(id_: str, data: bytes) -> None:
        raise OSError("disk")

    with pytest.raises(OSError, match="disk"):
        await Inbox(home, handle).take_all()
    assert [path.stem for path in waiting_commands(home)] == ["1"]


@pytest.mark.parametrize("rescan_seconds", [3600, 0.01], ids=["by the watcher", "by looking again"])
async def test_a_file_that_comes_later_is_noticed(home, rescan_seconds, monkeypatch):
    if rescan_seconds < 1:
        monkeypatch.setattr("daemon.inbox._watch_folder", blind)
    recorder = Recorder()
    inbox_folder(home).mkdir()
    watching = asyncio.create_task(Inbox(home, recorder.handle, rescan_seconds=rescan_seconds).watch())
    for id_ in ("1", "2"):
        await asyncio.sleep(0.02)
        recorder.got.clear()
        put_command(home, Pause(run="a"), id_=id_)
        async with asyncio.timeout(30):
            await recorder.got.wait()
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
    assert recorder.seen == ["1", "2"]


async def test_without_watches_the_folder_is_looked_at_now_and_then(home, monkeypatch):
    def none_left(self, *args, **options):
        raise OSError(28, "inotify watch limit reached")

    monkeypatch.setattr("watchdog.observers.Observer.schedule", none_left)
    recorder = Recorder()
    watching = asyncio.create_task(Inbox(home, recorder.handle, rescan_seconds=0.01).watch())
    await asyncio.sleep(0.02)
    put_command(home, Pause(run="a"), id_="1")
    async with asyncio.timeout(30):
        await recorder.got.wait()
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
    assert recorder.seen == ["1"]
    assert waiting_commands(home) == []
    assert list_rejected(home) == []


class blind:
    """A watcher that loses every event."""

    def __init__(self, path, noticed) -> None: ...

    def __enter__(self):
        return None

    def __exit__(self, *_):
        return None


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists, max_leaves=5))
def test_any_json_that_is_no_object_with_a_verb_is_a_bad_file(value):
    with pytest.raises(BadFile):
        read_verb(json.dumps(value).encode())


def test_every_verb_has_a_type_that_says_the_same():
    assert {verb: cls.model_fields["verb"].default for verb, cls in VERBS.items()} == {v: v for v in VERBS}


async def test_a_watch_that_is_cancelled_as_a_file_arrives_ends(tmp_path):
    async def handle(id_, data):
        raise AssertionError("no file is there")

    box = Inbox(tmp_path, handle, rescan_seconds=60.0)
    task = asyncio.create_task(box.watch())
    await asyncio.sleep(0.05)
    box._noticed.set()
    await asyncio.sleep(0)
    task.cancel()
    done, _ = await asyncio.wait({task}, timeout=60)
    assert done == {task}
    assert task.cancelled()


def test_a_command_is_readable_by_the_owner_of_the_home_whatever_the_umask_of_who_sends_it(home):
    before = os.umask(0o077)
    try:
        id_ = put_command(home, Pause(run="r", reason="root says so"))
    finally:
        os.umask(before)
    assert (inbox_folder(home) / f"{id_}.json").stat().st_mode & 0o777 == 0o644
    assert inbox_folder(home).stat().st_mode & 0o777 == 0o700
