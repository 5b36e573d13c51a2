"""Folders for other programs: whole, never out of themselves, never over what somebody else put there."""

from __future__ import annotations

import errno
import json
import os

import pytest

from agentctl.exports import folder
from agentctl.exports.folder import MANIFEST, write_folder
from state.errors import BadTarget, StorageFull

FILES = {"a.txt": b"one", "deep/er/b.txt": b"two"}


def read(root) -> dict[str, bytes]:
    found = {
        path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()
    }
    found.pop(MANIFEST, None)
    return found


@pytest.fixture
def root(tmp_path):
    return tmp_path / "out"


def test_a_new_folder_appears_with_all_its_files(home, root):
    write_folder(home, root, FILES)
    assert read(root) == FILES
    assert set(json.loads((root / MANIFEST).read_text())) == set(FILES)
    assert [path.name for path in root.parent.iterdir()] == ["out"]


def test_what_an_export_wrote_the_next_one_replaces_and_what_it_no_longer_makes_goes(home, root):
    write_folder(home, root, FILES)
    write_folder(home, root, {"a.txt": b"other"})
    assert read(root) == {"a.txt": b"other"}
    assert not (root / "deep").exists()


@pytest.mark.parametrize("how", ["there before", "edited"])
def test_what_somebody_wrote_is_refused_before_anything_is_written(home, root, how):
    if how == "edited":
        write_folder(home, root, FILES)
    else:
        (root / "deep" / "er").mkdir(parents=True)
    (root / "deep" / "er" / "b.txt").write_bytes(b"mine")
    before = read(root)
    with pytest.raises(BadTarget, match="--force"):
        write_folder(home, root, {"a.txt": b"new", "deep/er/b.txt": b"new"})
    assert read(root) == before
    write_folder(home, root, {"deep/er/b.txt": b"new"}, force=True)
    assert read(root)["deep/er/b.txt"] == b"new"


def test_files_beside_it_and_edited_ones_stay(home, root):
    write_folder(home, root, FILES)
    (root / "mine.txt").write_bytes(b"mine")
    (root / "deep" / "er" / "b.txt").write_bytes(b"edited")
    write_folder(home, root, {"a.txt": b"one"})
    assert read(root) == {"a.txt": b"one", "mine.txt": b"mine", "deep/er/b.txt": b"edited"}


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("name", ["deep", "deep/er"])
def test_no_link_leads_out_of_the_folder(home, root, tmp_path, name, force):
    outside = tmp_path / "outside"
    (outside / "er").mkdir(parents=True)
    (root / name).parent.mkdir(parents=True)
    (root / name).symlink_to(outside)
    with pytest.raises(BadTarget, match="a link"):
        write_folder(home, root, FILES, force=force)
    assert [path for path in outside.rglob("*") if path.is_file()] == []


def test_a_link_with_a_files_name_is_refused_and_with_force_itself_replaced(home, root, tmp_path):
    target = tmp_path / "target"
    target.write_bytes(b"mine")
    root.mkdir()
    (root / "a.txt").symlink_to(target)
    with pytest.raises(BadTarget, match="a link"):
        write_folder(home, root, FILES)
    write_folder(home, root, FILES, force=True)
    assert target.read_bytes() == b"mine"
    assert not (root / "a.txt").is_symlink()


@pytest.mark.parametrize(
    "name", ["../a", ".git/config", "a/.b", "/etc/a", "a/../../b", "", ".", "x\0y", MANIFEST]
)
def test_a_name_that_leads_elsewhere_is_refused(home, root, name):
    with pytest.raises(BadTarget, match="no name"):
        write_folder(home, root, {name: b"x"})
    assert not root.exists()


@pytest.mark.parametrize("text", ["[]", "{", '{"../../x": "y"}', '{"a.txt": 3}', "null"])
def test_a_manifest_that_is_none_says_nothing(home, root, text):
    root.mkdir()
    (root / MANIFEST).write_text(text)
    (root / "a.txt").write_bytes(b"mine")
    with pytest.raises(BadTarget):
        write_folder(home, root, FILES)


def test_a_file_a_missing_parent_and_the_log_are_refused(home, root, tmp_path):
    root.write_bytes(b"a file")
    with pytest.raises(BadTarget, match="is a file"):
        write_folder(home, root, FILES)
    with pytest.raises(BadTarget, match="make it first"):
        write_folder(home, tmp_path / "none" / "out", FILES)
    (home / "inbox").mkdir(parents=True)
    with pytest.raises(BadTarget, match="belongs to the log"):
        write_folder(home, home / "inbox", FILES)


def test_a_disk_that_fills_leaves_no_new_folder(home, root, monkeypatch):
    def full(place: int, name: str, data: bytes) -> None:
        if name == "b.txt":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(place, name, data)

    real = folder._write_file
    monkeypatch.setattr(folder, "_write_file", full)
    with pytest.raises(StorageFull):
        write_folder(home, root, FILES)
    assert list(root.parent.iterdir()) == []
