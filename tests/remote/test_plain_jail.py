"""The jail as hosts with Python 3.10 run it: the same walls, limits and answers, and nobody watches."""

from __future__ import annotations

from dataclasses import replace

import pytest

from remote.errors import InfrastructureError
from remote.hostside.devices.jail import run_unwatched
from remote.jail_backends import JailedProgram, JailLimits, jail_strength


@pytest.fixture
def run(tmp_path):
    def run(body: str, *, stdin: bytes = b"", **limits):
        package = tmp_path / "jailed"
        package.mkdir(exist_ok=True)
        (package / "__init__.py").write_text("")
        lines = "".join(f"    {line}\n" for line in body.splitlines())
        (package / "code.py").write_text(f"import os, sys, time\ndef main():\n{lines}")
        settings = {"cpu_s": 5, "wall_s": 120, "memory_bytes": 1 << 29, "answer_bytes": 1 << 16, **limits}
        program = JailedProgram("jailed.code", packages=(package,), limits=JailLimits(**settings))
        return run_unwatched(program, stdin, jail_strength())

    return run


def test_a_program_answers_what_it_was_asked(run):
    found = run("os.write(int(sys.argv[1]), sys.stdin.read().upper().encode())", stdin=b"asked")
    assert (found.answer, found.exit_status, found.truncated) == (b"ASKED", 0, False)


def test_an_answer_too_long_is_cut_and_said_to_be(run):
    found = run("os.write(int(sys.argv[1]), b'x' * 5000)", answer_bytes=1000)
    assert (found.answer, found.truncated) == (b"x" * 1000, True)
    assert not run("os.write(int(sys.argv[1]), b'x' * 1000)", answer_bytes=1000).truncated


def test_an_endless_loop_uses_up_its_time(run):
    found = run("while True: pass", cpu_s=1)
    assert found.cpu_exhausted
    assert not found.was_killed


def test_what_it_says_on_stderr_is_kept(run):
    found = run("raise SystemExit('no kernel')")
    assert found.exit_status == 1
    assert "no kernel" in found.stderr


@pytest.mark.slow
def test_who_sleeps_for_ever_is_ended_by_the_clock(run):
    with pytest.raises(InfrastructureError) as caught:
        run("time.sleep(3600)", wall_s=3)
    assert caught.value.code == "jail_deadline"


def test_there_is_no_network_and_no_program_inside(run):
    found = run(
        "try:\n    os.execv('/bin/true', ['true'])\nexcept OSError as error:\n"
        "    os.write(int(sys.argv[1]), type(error).__name__.encode())"
    )
    assert found.answer == b"PermissionError"


def test_one_that_may_write_and_start_programs_does_so_in_its_folder_alone(tmp_path):
    package, scratch = tmp_path / "compiler", tmp_path / "scratch"
    package.mkdir()
    scratch.mkdir()
    (package / "__init__.py").write_text("")
    (package / "code.py").write_text(
        "import os, subprocess, sys, tempfile\n"
        "def main():\n"
        "    subprocess.run(['/bin/sh', '-c', 'echo made > $TMPDIR/by_a_program'], check=True)\n"
        "    try:\n"
        f"        open({str(tmp_path / 'outside')!r}, 'w')\n"
        "    except OSError as error:\n"
        "        os.write(int(sys.argv[1]), tempfile.gettempdir().encode())\n"
    )
    limits = JailLimits(cpu_s=10, wall_s=120, memory_bytes=1 << 30, processes=1 << 12, file_bytes=1 << 20)
    program = replace(
        JailedProgram("compiler.code", packages=(package,), limits=limits), scratch=scratch, programs=True
    )
    found = run_unwatched(program, b"", jail_strength())
    assert (found.answer.decode(), found.stderr) == (str(scratch), "")
    assert (scratch / "by_a_program").read_text() == "made\n"
