"""The folder that a jailed compiler may write to: it cannot fill a host's disk, and its end is told."""

from __future__ import annotations

import pytest

from remote.hostside.devices import scratch
from remote.hostside.devices.jail import run_in_jail
from remote.hostside.devices.scratch import WatchedScratch
from remote.jail_backends import JailedProgram, JailLimits

WRITES = {
    "many files": "for n in range(10**9): open(f'{n}', 'wb').write(b'x' * 60000)",
    "empty files": "for n in range(10**9): open(f'{n}', 'wb').close()",
    "folders in folders": "while True: os.mkdir('d'); os.chdir('d')",
}


@pytest.fixture
def ended(tmp_path, monkeypatch):
    """How a program ends that does something in a folder of a megabyte."""
    monkeypatch.setattr(scratch, "MAX_BYTES", 1 << 20)
    monkeypatch.setattr(scratch, "MAX_FILES", 1000)

    def ended(body: str):
        package = tmp_path / "jailed"
        package.mkdir()
        (package / "__init__.py").write_text("")
        folder = tmp_path / "scratch"
        folder.mkdir(mode=0o777)
        folder.chmod(0o777)
        code = f"import os, sys, time\ndef main():\n    os.chdir({str(folder)!r})\n    {body}\n"
        (package / "code.py").write_text(code)
        limits = JailLimits(cpu_s=60, wall_s=120, memory_bytes=1 << 29, file_bytes=1 << 20)
        program = JailedProgram("jailed.code", packages=(package,), scratch=folder, limits=limits)
        watched = WatchedScratch(folder)
        with watched.watch_folder():
            result = run_in_jail(program, b"", "weak")
        return watched, result

    return ended


@pytest.mark.parametrize("body", WRITES.values(), ids=WRITES)
def test_a_program_that_fills_its_folder_is_ended(body, ended):
    watched, result = ended(body)
    assert watched.ended == "limit"
    assert not result.cpu_exhausted
    watched.remove_folder()
    assert not watched.folder.exists()


def test_a_program_that_fills_the_disk_with_files_without_names_is_ended(ended, monkeypatch):
    free = iter([8 << 30, 5 << 30, 3 << 30])
    monkeypatch.setattr(scratch, "_free_bytes", lambda _: next(free, 1 << 30))
    watched, result = ended("time.sleep(60)")
    assert watched.ended == "disk"
    assert result.was_killed


def test_what_has_room_is_left_alone(ended):
    watched, result = ended("open('file', 'wb').write(b'x' * 1000)")
    assert (watched.ended, result.exit_status) == ("", 0)
