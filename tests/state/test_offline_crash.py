"""Killed inside a backup, an archive, an import, a compaction, a repair, a restore or a migration.

At every crash point of each, one after the other: the home and the file written are as before or as after,
both of them verify (a damaged log may stay as damaged as it was), and doing it again succeeds.
"""

from __future__ import annotations

import json
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import pytest

from state import schema
from state.archive import archive_run, read_archive
from state.backup import backup_log
from state.compact import compact_log
from state.errors import LogDamaged
from state.log import EventLog
from state.reader import LogReader
from state.verify import verify_file, verify_log
from tests.support.scripted_runs import append_run
from tests.support.sweeps import parametrize_sweep

ROOT = Path(__file__).resolve().parents[2]
Perform = Callable[..., int]

AGAIN = 3
"""After every how many crashes it is also done again."""


@pytest.fixture(scope="module")
def perform() -> Iterator[Perform]:
    """Do one thing in a fork of a warm interpreter, armed at its n-th crash point; return its exit status."""
    command = [sys.executable, "-m", "tests.state.offline"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, **pipes, text=True, cwd=ROOT) as server:

        def run(at: int | str, verb: str, *arguments: Path) -> int:
            server.stdin.write(json.dumps([str(at), verb, *map(str, arguments)]) + "\n")
            server.stdin.flush()
            return int(server.stdout.readline())

        yield run
        server.stdin.close()


class Scene(NamedTuple):
    """What there is before: a home, and the file that is read or written."""

    home: Path
    file: Path


def two_runs(scene: Scene) -> None:
    with EventLog.open(scene.home) as log:
        for run in ("first", "second"):
            append_run(log, run, rounds=1, slots=1, plans=2)


def backed_up(scene: Scene) -> None:
    two_runs(scene)
    backup_log(scene.home, scene.file)
    with EventLog.open(scene.home) as log:
        append_run(log, "third", rounds=1, slots=1, plans=1)


def archive_scene(scene: Scene) -> None:
    two_runs(scene)
    archive_run(scene.home, "first", scene.file)


def taken_out(scene: Scene) -> None:
    archive_scene(scene)
    compact_log(scene.home, [scene.file])


def damage_scene(scene: Scene) -> None:
    two_runs(scene)
    with closing(sqlite3.connect(scene.home / "events.db")) as connection:
        connection.execute("DROP TRIGGER event_no_update")
        connection.execute("UPDATE event SET payload = payload || ' ' WHERE seq = 20")
        connection.commit()


def of_the_first_schema(scene: Scene) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(schema, "MIGRATIONS", schema.MIGRATIONS[:1])
        patch.setattr(schema, "SCHEMA_VERSION", 1)
        two_runs(scene)


SCENES: dict[str, Callable[[Scene], None]] = {
    "backup": backed_up,
    "restore": backed_up,
    "archive": two_runs,
    "compact": archive_scene,
    "compact_open": archive_scene,
    "import": taken_out,
    "repair": damage_scene,
    "migrate": of_the_first_schema,
}


def log_of(home: Path) -> object:
    """All that a log says of its runs, whether it is whole, and its schema; or that it is damaged."""
    report = verify_log(home)
    if not report.is_ok:
        return [str(finding) for finding in report.findings]
    with closing(sqlite3.connect(f"file:{home}/events.db?mode=ro", uri=True)) as connection:
        version = schema.read_pragma(connection, "user_version")
    with LogReader.open(home) as reader:
        reader.check_end()
        return version, [
            (item.stream, item.run_seq, item.event.model_dump_json())
            for item in reader.read(limit=10_000)
            if item.type != "LogRewritten"
        ]


def file_of(path: Path) -> object:
    """What a backup or an archive holds, which must be sound."""
    if not path.exists():
        return None
    if path.read_bytes()[:2] == b"\x1f\x8b":
        return read_archive(path).sha256
    report = verify_file(path)
    assert report.is_ok
    return report.head


def state_of(scene: Scene) -> object:
    return log_of(scene.home), file_of(scene.file)


@parametrize_sweep("verb", SCENES, quick=["archive", "migrate"])
def test_killed_at_any_point_it_leaves_before_or_after(tmp_path: Path, perform: Perform, verb: str) -> None:
    before = Scene(tmp_path / "before", tmp_path / "before.file")
    SCENES[verb](before)
    after = copy_scene(before, tmp_path / "after")
    assert perform(10**6, verb, *after) == 0
    legal = state_of(before), state_of(after)
    assert legal[0] != legal[1], "the scene shows nothing"
    seen, points = set(), 0
    while True:
        scene = copy_scene(before, tmp_path / f"at{points}")
        status = perform(points + 1, verb, *scene)
        found = state_of(scene)
        assert found in legal, f"{verb}, point {points + 1}"
        if status == 0:
            break
        assert status == -signal.SIGKILL
        seen.add(legal.index(found))
        points += 1
        if points % AGAIN == 0:
            again(perform, verb, scene, done=found == legal[1], after=legal[1])
        shutil.rmtree(scene.home)
    assert points >= 3, f"{verb} has {points} crash points"
    assert seen == {0, 1}


def again(perform: Perform, verb: str, scene: Scene, *, done: bool, after: object) -> None:
    """Doing it again comes to the same; a run that was imported, or taken out, is not there twice."""
    status = perform(10**6, verb, *scene)
    assert status == (1 if done and verb in ("import", "compact", "compact_open") else 0)
    assert state_of(scene) == after
    left = [*scene.home.iterdir(), *scene.file.parent.glob(f".{scene.file.name}*")]
    assert not [path for path in left if path.suffix in (".part", ".new")]


def copy_scene(scene: Scene, to: Path) -> Scene:
    shutil.copytree(scene.home, to)
    if scene.file.exists():
        shutil.copy(scene.file, to.with_suffix(".file"))
    return Scene(to, to.with_suffix(".file"))


def test_a_damaged_log_is_told_from_a_sound_one(tmp_path: Path) -> None:
    scene = Scene(tmp_path / "home", tmp_path / "file")
    damage_scene(scene)
    assert isinstance(log_of(scene.home), list)
    with pytest.raises(LogDamaged), LogReader.open(scene.home):
        EventLog.open(scene.home, full_check=True)
