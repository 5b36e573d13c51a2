"""What steps keep on a host: whole or not at all, found by key, and never more than there is room for."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from importlib.util import cache_from_source
from types import SimpleNamespace

import pytest

from remote.hostside.steps import drawing
from remote.hostside.steps.folder_cache import FolderCache


def put(shelf: FolderCache, key: str, size: int = 1000):
    with shelf.create_draft() as draft:
        (draft / "file").write_bytes(b"x" * size)
    return shelf.put(key, draft)


def test_what_is_put_is_found(tmp_path):
    shelf = FolderCache(tmp_path / "shelf", 10_000)
    assert shelf.find("one") is None
    folder = put(shelf, "one")
    assert shelf.find("one") == folder
    assert (folder / "file").read_bytes() == b"x" * 1000


def test_of_two_under_one_key_the_first_stays(tmp_path):
    shelf = FolderCache(tmp_path / "shelf", 10_000)
    put(shelf, "one", 10)
    assert (put(shelf, "one", 20) / "file").stat().st_size == 10
    assert len(list((tmp_path / "shelf").iterdir())) == 1


def test_what_was_used_longest_ago_is_thrown_away(tmp_path):
    shelf = FolderCache(tmp_path / "shelf", 2500)
    for age, key in enumerate(("old", "older")):
        os.utime(put(shelf, key), (1000 - age, 1000 - age))
    shelf.find("older")  # which makes it the newest
    put(shelf, "new")
    assert shelf.find("old") is None
    assert shelf.find("older") is not None
    assert shelf.find("new") is not None


def test_what_is_larger_than_the_shelf_stays_for_who_put_it(tmp_path):
    shelf = FolderCache(tmp_path / "shelf", 100)
    put(shelf, "first", 50)
    folder = put(shelf, "large", 1000)
    assert folder.exists()
    assert shelf.find("first") is None


def test_drafts_that_are_under_way_stay_and_abandoned_ones_go(tmp_path):
    shelf = FolderCache(tmp_path / "shelf", 100)
    with shelf.create_draft() as draft, shelf.create_draft() as left:
        for folder in (draft, left):
            (folder / "part").write_bytes(b"x" * 1000)
        for path in (left / "part", left):
            os.utime(path, (1000, 1000))
        put(shelf, "new")
        assert draft.exists()
        assert not left.exists()


def test_of_a_draft_that_fails_nothing_is_left(tmp_path):
    def failing(shelf: FolderCache) -> None:
        with shelf.create_draft() as draft:
            (draft / "part").write_bytes(b"x")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        failing(FolderCache(tmp_path / "shelf", 100))
    assert list((tmp_path / "shelf").iterdir()) == []


@pytest.mark.parametrize("key", ["", "..", "a/b", ".hidden", "x" * 200, "a\n"])
def test_keys_that_lead_elsewhere_are_refused(key, tmp_path):
    with pytest.raises(ValueError, match="no key of a shelf"):
        FolderCache(tmp_path / "shelf", 100).find(key)


ONE = {"name": "x", "dtype": "float32", "distribution": "normal", "scale": 1.0, "shape": [4, 8]}


def draw(root) -> os.PathLike[str]:
    task = SimpleNamespace(payload={"key": "k"}, caches_folder=root)
    return drawing.draw_inputs(task, drawing.ResolvedSpec({"inputs": [ONE], "seeds": [0]}), "0") / "0.npy"


def test_drawn_inputs_that_were_changed_are_drawn_again_and_never_used(tmp_path):
    path = draw(tmp_path)
    drawn, stamp = path.read_bytes(), path.stat()
    with path.open("r+b") as file:
        file.seek(-4, os.SEEK_END)
        file.write(b"\0\0\0\0")
    os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    assert draw(tmp_path).read_bytes() == drawn
    path.unlink()
    assert draw(tmp_path).read_bytes() == drawn


def test_drawn_inputs_that_are_the_same_are_not_drawn_again(tmp_path):
    path = draw(tmp_path)
    stamp = path.stat()
    assert draw(tmp_path).stat() == stamp
    os.utime(path, ns=(1, 1))
    assert draw(tmp_path).stat().st_ino == stamp.st_ino
    (path.parent / "seen.json").unlink()
    assert draw(tmp_path).stat().st_ino == stamp.st_ino


_IMPORT = """
import sys
from pathlib import Path
from remote.hostside.steps import libraries
from remote.hostside.task import StepTask
libraries.import_archives(StepTask(Path(sys.argv[1])))
import shipped_for_tests
print(shipped_for_tests.__cached__, shipped_for_tests.VALUE)
"""


def test_code_that_comes_with_a_job_is_compiled_once(tmp_path):
    work = tmp_path / "jobs" / "key" / "work"
    (work / "inputs").mkdir(parents=True)
    (work / "job.json").write_text(json.dumps({"key": "key", "payload": {}}))
    with zipfile.ZipFile(work / "inputs" / "judge.zip", "w") as archive:
        archive.writestr("shipped_for_tests.py", "VALUE = 'as it came'\n")
        archive.writestr("not_for_this_python.py", "a b c\n")  # is no reason to have none of the others

    def imported() -> list[str]:
        command = [sys.executable, "-B", "-c", _IMPORT, str(work)]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.split(maxsplit=1)

    compiled, value = imported()
    (source,) = (tmp_path / "steps" / "libraries").glob("*/shipped_for_tests.py")
    assert (compiled, value) == (cache_from_source(str(source)), "as it came\n")
    source.write_text("VALUE = 'read again'\n")
    assert imported() == [compiled, "as it came\n"]  # no step looks at the sources any more
