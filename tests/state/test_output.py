"""Files that a person asks for: not one of the home's own, whole or not there, and named in errors."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from state.archive import archive_run
from state.backup import backup_log
from state.errors import BadTarget, StorageFailed, StorageFull
from state.output_files import check_output, open_output, write_output
from state.verify import verify_log

OWN = (
    "events.db", "events.db-wal", "events.db-shm", "events.db.new", "HEAD", "HEAD.tmp", "agentd.lock",
    "agentd.instance", "reserve", "replaced/x/events.db", "inbox/1.json", "config.toml", "cache/x",
    "EVENTS.DB",
)  # fmt: skip


@pytest.mark.parametrize("name", OWN)
def test_nothing_writes_over_the_home_s_own_files(home: Path, stored, name: str) -> None:
    before = (home / "HEAD").read_bytes()
    for write in (
        lambda target: backup_log(home, target, replace=True),
        lambda target: archive_run(home, "first", target, replace=True),
        lambda target: write_output(home, target, b"kernel"),
    ):
        with pytest.raises(BadTarget, match="belongs to the log itself"):
            write(home / name)
    assert (home / "HEAD").read_bytes() == before
    assert verify_log(home).is_ok


def test_links_do_not_lead_there_either(home: Path, stored, tmp_path: Path) -> None:
    (tmp_path / "alias").symlink_to(home)
    (tmp_path / "soft").symlink_to(home / "events.db")
    os.link(home / "events.db", tmp_path / "hard")
    for target in (
        tmp_path / "alias/HEAD",
        tmp_path / "soft",
        tmp_path / "hard",
        home / "results/../HEAD",
        tmp_path / "alias/reserve",
    ):
        with pytest.raises(BadTarget, match="belongs to the log itself"):
            write_output(home, target, b"kernel")
    assert verify_log(home).is_ok


def test_other_names_in_a_home_are_free(home: Path, stored) -> None:
    (home / "results").mkdir()
    write_output(home, home / "results/best.py", b"kernel")
    assert backup_log(home, home / "b.db").is_ok


def test_a_link_stays_and_what_it_leads_to_is_replaced(home: Path, tmp_path: Path) -> None:
    (tmp_path / "real").write_bytes(b"old")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    write_output(home, tmp_path / "link", b"new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_bytes() == b"new"


def test_a_name_may_be_as_long_as_the_disk_takes(home: Path, tmp_path: Path) -> None:
    write_output(home, tmp_path / ("n" * 255), b"new")
    with pytest.raises(BadTarget, match="n: cannot be written: File name too long"):
        write_output(home, tmp_path / ("n" * 256), b"new")


def test_what_cannot_be_a_file_is_said_by_the_name_given(home: Path, stored, tmp_path: Path) -> None:
    for target, said in (
        (tmp_path / "no/b.db", "there is no folder"),
        (tmp_path, "is a folder or a device"),
        (Path("/dev/null"), "is a folder or a device"),
    ):
        with pytest.raises(BadTarget, match=said):
            backup_log(home, target, replace=True)
        with pytest.raises(BadTarget, match=said):
            archive_run(home, "first", target, replace=True)
    with pytest.raises(BadTarget, match="is there already"):
        check_output(home, Path(__file__), replace=False)


def test_a_database_that_finds_no_space_names_the_file_too(home: Path, tmp_path: Path) -> None:
    def write() -> None:
        with open_output(home, tmp_path / "b.db", replace=True):
            raise StorageFull("no space left for the log")

    with pytest.raises(StorageFull, match=r"b\.db: no space left for it"):
        write()


@pytest.mark.parametrize(
    ("number", "kind"), [(errno.ENOSPC, StorageFull), (errno.EIO, StorageFailed), (errno.EACCES, BadTarget)]
)
def test_what_fails_half_way_leaves_what_was_there(home: Path, tmp_path: Path, number, kind) -> None:
    target = tmp_path / "best.py"
    target.write_bytes(b"old")

    def write() -> None:
        with open_output(home, target, replace=True) as part:
            part.write_bytes(b"ne")
            raise OSError(number, os.strerror(number), str(part))

    with pytest.raises(kind, match=r"best\.py") as caught:
        write()
    assert ".part" not in str(caught.value)
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("best.py", b"old")]
