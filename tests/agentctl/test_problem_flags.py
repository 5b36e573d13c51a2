"""What a kernel, a path or the beginning of a run's id stands for, and what is said where it is unclear."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from daemon import exits
from state.log import EventLog
from tests.support import fakes

SEEDS = Path(__file__).parents[2] / "seeds" / "problems"
BROKEN = "import nki\n\n\n@nki.jit\ndef kernel(x)\n    return x\n"


@pytest.fixture
def folder(tmp_path) -> Path:
    return Path(shutil.copytree(SEEDS / "silu", tmp_path / "mine"))


def test_a_kernel_s_problem_is_that_of_its_folder(ctl, folder, home):
    called = ctl("submit", "--kernel", folder / "kernel.py", "--set", "evaluator=fake", "--json")
    assert called.status == exits.OK
    assert called.json["run"].startswith("silu-")


def test_a_kernel_without_a_problem_beside_it_is_asked_about(ctl, fake_kernel):
    called = ctl("submit", "--kernel", fake_kernel)
    assert called.status == exits.USAGE
    assert "which problem does" in fakes.join_wrapped_lines(called.err)
    assert "--problem NAME or FOLDER" in fakes.join_wrapped_lines(called.err)


def test_a_kernel_that_is_not_there_is_not_asked_about(ctl, tmp_path):
    for verb in (("try",), ("run", "--kernel")):
        called = ctl(*verb, tmp_path / "gone" / "kernel.py")
        assert called.status == exits.USAGE
        assert called.err == f"agentctl: {tmp_path / 'gone' / 'kernel.py'}: No such file or directory\n"


def test_a_file_and_a_folder_that_is_not_there_are_told_apart(ctl, folder):
    file = ctl("submit", "--problem", folder / "kernel.py")
    assert file.status == exits.USAGE
    assert f"--problem {folder}" in fakes.join_wrapped_lines(file.err)
    gone = ctl("submit", "--problem", folder / "gone")
    assert gone.status == exits.USAGE
    assert "is no folder" in gone.err
    assert "agentctl problems" in gone.err


def test_a_kernel_that_cannot_be_read_is_refused_with_its_line_before_a_run_begins(ctl, folder, home):
    (folder / "kernel.py").write_text(BROKEN)
    called = ctl("run", "--kernel", folder / "kernel.py", "--problem", "silu")
    assert called.status == exits.USAGE
    assert f"{folder / 'kernel.py'}:5: expected ':'" in called.err
    assert "def kernel(x)" in called.err
    assert not (home / "log.db").exists()


def test_an_own_kernel_without_jit_is_told_where_it_belongs(ctl, folder, home):
    source = (folder / "kernel.py").read_text()
    line = source[: source.index("def silu")].count("\n")
    (folder / "kernel.py").write_text(source.replace("@nki.jit\n", ""))
    called = ctl("run", "--problem", folder, "--size", "reduced")
    told = fakes.join_wrapped_lines(called.err)
    assert called.status == exits.USAGE
    assert f"kernel.py:{line}" in told
    assert "write @nki.jit on the line above `def silu`" in told
    assert not (home / "log.db").exists()


def test_a_run_that_begins_from_the_translation_does_not_ask_for_the_own_kernel(ctl, folder):
    source = (folder / "kernel.py").read_text()
    (folder / "kernel.py").write_text(source.replace("@nki.jit\n", ""))
    wanted = ("--set", "evaluator=fake", "--set", "starts=translation")
    assert ctl("submit", "--problem", folder, *wanted).status == exits.OK


def test_a_run_is_named_by_the_beginning_of_its_id(ctl, finished, home):
    short = finished[:7]
    story = ctl("why", short)
    assert story.status == exits.OK
    assert finished in story.out
    assert ctl("cancel", short).status == exits.FAILURE, "the run has ended"
    fakes.submit_run(home)
    fakes.take_commands(home)
    with EventLog.open(home) as log:
        assert len(log.run_ids()) == 2
    several = ctl("why", "silu-")
    assert several.status == exits.NOT_THERE
    assert "several runs begin with 'silu-'" in several.err


def test_a_fork_of_a_finished_run_says_that_it_would_end_at_once(ctl, finished):
    called = ctl("fork", finished)
    assert "give it more to do, such as --set search.rounds=N" in called.err


def test_a_service_can_be_shown_without_installing_it(ctl, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    called = ctl("service", "install", "--user", "--dry-run")
    assert called.status == exits.OK, called.err
    assert "ExecStart=" in called.out
    assert not (tmp_path / "config").exists()
