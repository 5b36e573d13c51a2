"""`run.sh`: installs once, passes its flags on, and says in one line what stands in its way.

The script runs in a copy of the checkout, in a folder with a space in its name, with programs in `.venv`
that write down how they were called instead of doing anything.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FAKE = """#!/bin/sh
name=$(basename "$0")
echo "$name $*" >>"$CALLS"
case " $FAILING " in *" $name "*) exit 3;; esac
"""
TESTS = "python -m pytest -n 2 --dist worksteal"
CHECKS = {"ruff check .", "ruff format --check .", "mypy ", "lint-imports "}


class Checkout:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.calls = root / "calls"
        self.bin = root / ".venv" / "bin"
        self.bin.mkdir(parents=True)
        for name in ("run.sh", "pyproject.toml", "requirements.lock", "requirements-dev.lock"):
            shutil.copy(ROOT / name, root)
        for name in ("python", "agentctl", "ruff", "mypy", "lint-imports"):
            self.program(self.bin / name, FAKE)

    def program(self, path: Path, text: str) -> None:
        path.write_text(text)
        path.chmod(0o755)

    def run(self, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
        self.calls.unlink(missing_ok=True)
        return subprocess.run(
            [self.root / "run.sh", *args],
            cwd="/",
            env={"PATH": os.environ["PATH"], "CALLS": str(self.calls), "FAILING": "", **env},
            capture_output=True,
            text=True,
            check=False,
        )

    def list_calls(self) -> list[str]:
        """What was called since the last run began, leaving out the look at .venv and at bytecode."""
        lines = self.calls.read_text().splitlines() if self.calls.exists() else []
        return [line for line in lines if line != "python -c import pip" and "compileall" not in line]


@pytest.fixture
def checkout(tmp_path) -> Checkout:
    return Checkout(tmp_path / "a b")


def test_the_first_call_installs_and_the_second_goes_straight_on(checkout):
    first = checkout.run("--problem", "silu size")
    lock, project, run = checkout.list_calls()
    assert "--require-hashes" in lock
    assert lock.endswith(f"-r {checkout.root}/requirements.lock")
    assert project.endswith(f"--no-deps --no-build-isolation -e {checkout.root}")
    assert run == "agentctl run --problem silu size"
    assert first.returncode == 0
    assert first.stderr.splitlines() == [
        "Installing requirements.lock into .venv (about a minute, once) ...",
        "Installing nki-kernel-agent itself ...",
        "Installed; the first start takes a few seconds ...",
    ]
    second = checkout.run()
    assert checkout.list_calls() == ["agentctl config show", "agentctl run"]
    assert (second.returncode, second.stdout, second.stderr) == (0, "", "")


@pytest.mark.parametrize(
    ("source", "args", "called"),
    [
        ("default", (), "agentctl run --problem silu"),
        ("/etc/config.toml", (), "agentctl run"),
        ("default", ("--size", "reduced"), "agentctl run --size reduced"),
    ],
)
def test_the_first_run_is_of_a_problem_that_is_soon_done(checkout, source, args, called):
    """Unless somebody said which: in a configuration, or as a flag."""
    shown = f"""case "$*" in "config show") echo 'problem = "rmsnorm_matmul"  # {source}';; esac\n"""
    checkout.program(checkout.bin / "agentctl", FAKE + shown)
    checkout.run(*args)
    assert checkout.list_calls()[-1] == called


@pytest.mark.parametrize("name", ["requirements.lock", "pyproject.toml"])
def test_a_changed_lock_is_installed_again(checkout, name):
    checkout.run()
    with (checkout.root / name).open("a") as file:
        file.write("\n# changed\n")
    checkout.run()
    assert len(checkout.list_calls()) == 4


def test_a_failed_installation_stops_and_is_tried_again(checkout):
    # The fake python fails at everything, so .venv looks broken and $PYTHON has to make a new one.
    result = checkout.run(FAILING="python", PYTHON="/nonexistent")
    assert result.returncode == 1
    assert "agentctl run" not in checkout.list_calls()
    checkout.program(checkout.bin / "python", FAKE + 'case "$*" in *-e*) exit 1;; esac\n')
    for _ in range(2):
        result = checkout.run()
        assert result.returncode == 1
        assert len(checkout.list_calls()) == 2
        assert result.stderr.endswith("run.sh: installation failed; the lines above say why\n")


def test_modules_are_compiled_for_jails_which_never_write_bytecode(checkout):
    """Whoever starts something has the bytecode of what was edited since, whatever the environment says."""
    room = checkout.root / "a room"
    room.mkdir()
    compiling = f'case "$*" in *compileall*) exec "{sys.executable}" "$@";; esac\n'
    checkout.program(checkout.bin / "python", FAKE + compiling)
    for edited_at_s, said in enumerate(("first", "edited since")):
        (room / "module.py").write_text(f"NAME = {said!r}\n")
        os.utime(room / "module.py", (edited_at_s, edited_at_s))
        checkout.run("--problem", "silu", PYTHONDONTWRITEBYTECODE="1")
        (compiled,) = room.rglob("*.pyc")
        assert said.encode() in compiled.read_bytes()
    (room / "broken.py").write_text("no Python")
    assert checkout.run("--problem", "silu").returncode == 0


@pytest.mark.slow
def test_while_pip_is_silent_something_moves(checkout):
    silent = 'case "$*" in *--require-hashes*) echo Collecting numpy; sleep 5; printf "no newline";; esac\n'
    checkout.program(checkout.bin / "python", FAKE + silent)
    lines = checkout.run().stderr.splitlines()
    assert lines[1:4] == ["Collecting numpy", "  ... 2 s", "  ... 4 s"]
    assert lines[4].startswith("no newline")


def test_hosts_with_and_without_a_user_go_to_the_run(checkout):
    checkout.run("ubuntu@10.0.0.1", "trn2.lab", "[::1]:2222", "--problem", "silu")
    assert checkout.list_calls()[-1] == (
        "agentctl run --host ubuntu@10.0.0.1 --host trn2.lab --host [::1]:2222 --problem silu"
    )
    (checkout.root / ".ssh").mkdir()
    (checkout.root / ".ssh" / "config").write_text("Host other trn2-lab\n  User ubuntu\n")
    checkout.run("trn2-lab", HOME=str(checkout.root))
    assert checkout.list_calls()[-1] == "agentctl run --host trn2-lab"


def test_resume_means_the_last_run(checkout):
    checkout.run("--resume", "--json")
    assert checkout.list_calls()[-1] == "agentctl resume --last --json"


def test_the_exit_status_is_the_programs(checkout):
    assert checkout.run(FAILING="agentctl").returncode == 3


def test_all_checks_run_and_those_that_failed_are_named(checkout):
    good = checkout.run("test", "--all", "--require-all", "-k", "x")
    assert set(checkout.list_calls()[-5:]) == {*CHECKS, f"{TESTS} --all --require-all -k x"}
    assert (good.returncode, good.stdout.splitlines()[-1]) == (0, "run.sh: all checks passed")
    bad = checkout.run("test", FAILING="mypy lint-imports")
    assert set(checkout.list_calls()) == {*CHECKS, TESTS}
    assert (bad.returncode, bad.stderr) == (1, "run.sh: failed: architecture types\n")


@pytest.mark.parametrize(
    ("first", "again", "tries", "status"),
    [(0, 1, 1, 0), (1, 0, 2, 0), (1, 1, 2, 1), (2, 0, 1, 1), (5, 0, 1, 1)],
    ids=["passes", "passes alone", "fails twice", "is interrupted", "finds no tests"],
)
def test_what_failed_beside_others_is_tried_once_more_alone(checkout, first, again, tries, status):
    pytest_ = f'case "$*" in *--last-failed*) exit {again};; *pytest*) exit {first};; esac\n'
    checkout.run("test")
    checkout.program(checkout.bin / "python", FAKE + pytest_)
    result = checkout.run("test", "-k", "x")
    called = [line for line in checkout.list_calls() if "pytest" in line]
    assert (len(called), result.returncode) == (tries, status)
    assert all(line.endswith("-k x") for line in called)


@pytest.mark.parametrize(
    ("flaky", "again", "said"),
    [(0, 1, "failed: tests"), (3, 0, ""), (3, 1, "failed: tests"), (4, 0, "failed: flaky")],
    ids=["none", "a few", "a few, and one fails twice", "too many"],
)
def test_what_passes_alone_is_counted_as_flaky(checkout, flaky, again, said):
    names = [f"tests/test_a.py::test_b[{number} of {flaky}]" for number in range(flaky)]
    summary = "".join(f"echo 'PASSED {name}'; " for name in names)
    checkout.run("test")
    checkout.program(
        checkout.bin / "python",
        f'{FAKE}case "$*" in *--last-failed*) {summary} exit {again};; *pytest*) exit 1;; esac\n',
    )
    result = checkout.run("test")
    assert (result.returncode, result.stderr) == ((1, f"run.sh: {said}\n") if said else (0, ""))
    assert (checkout.root / ".venv" / ".flaky").read_text().splitlines() == names
    told = result.stdout.partition("== tests that failed first and passed alone")[2].splitlines()
    assert told[1 : 1 + flaky] == names
    assert ("more than 3 flaky tests fail the run" in told) == (flaky > 3)


def test_a_run_without_flaky_tests_names_none_of_the_run_before(checkout):
    (checkout.root / ".venv" / ".flaky").write_text("tests/test_a.py::test_b\n")
    result = checkout.run("test")
    assert (checkout.root / ".venv" / ".flaky").read_text() == ""
    assert "passed alone" not in result.stdout


RELAPSING = """
from pathlib import Path

import pytest


@pytest.mark.parametrize("name", ["one", "the other"])
def test_passes_at_the_second_try(name):
    print("PASSED it says, and is not believed")
    tried = Path(__file__).with_name(name)
    assert tried.exists() or tried.touch()


def test_passes():
    pass
"""


def test_flaky_tests_are_found_in_what_pytest_says(checkout):
    folder = checkout.root / "tests"
    folder.mkdir()
    (folder / "test_relapsing.py").write_text(RELAPSING)
    checkout.run("test")
    checkout.program(checkout.bin / "python", f'#!/bin/sh\n[ "$2" = pip ] || exec "{sys.executable}" "$@"\n')
    result = checkout.run("test")
    assert result.returncode == 0, result.stdout
    assert (checkout.root / ".venv" / ".flaky").read_text().splitlines() == [
        f"tests/test_relapsing.py::test_passes_at_the_second_try[{name}]" for name in ("one", "the other")
    ]


def test_a_kernel_in_the_place_of_a_host_is_no_host(checkout, tmp_path):
    kernel = tmp_path / "mine.py"
    kernel.write_text("")
    result = checkout.run(str(kernel))
    assert result.returncode == 2
    assert f"{kernel} is no host; to start from it as a kernel: ./run.sh --kernel {kernel}" in result.stderr
    assert checkout.list_calls() == []


def test_a_problem_in_the_place_of_a_host_is_named_as_one(checkout, tmp_path):
    (checkout.root / "seeds" / "problems" / "silu").mkdir(parents=True)
    own = tmp_path / "mine"
    own.mkdir()
    (own / "problem.toml").touch()
    for given in ("silu", str(own)):
        result = checkout.run(given)
        assert result.returncode == 2
        assert result.stderr == f"run.sh: {given} is a problem: ./run.sh --problem {given}\n"
        assert checkout.list_calls() == []


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["tset"], "neither a command nor a host, [user@]host[:port]: tset"),
        (["ubuntu@10.0.0.1", "a b"], "neither a command nor a host, [user@]host[:port]: a b"),
        (["nowhere/problem"], "nowhere/problem: no such folder"),
        (["/usr"], "/usr has no problem.toml"),
        (["kernle.py"], "kernle.py: no such file"),
        (["a@b;reboot"], "neither a command nor a host, [user@]host[:port]: a@b;reboot"),
    ],
)
def test_what_it_cannot_do_is_a_usage_error_that_runs_nothing(checkout, args, said):
    result = checkout.run(*args)
    assert result.returncode == 2
    assert said in result.stderr
    assert checkout.list_calls() == []


def test_without_a_python_one_line_says_so(checkout):
    shutil.rmtree(checkout.root / ".venv")
    tools = checkout.root / "tools"
    tools.mkdir()
    for name in ("bash", "cat", "cksum", "dirname", "env"):
        (tools / name).symlink_to(shutil.which(name) or name)
    none = checkout.run(PATH=str(tools))
    assert (none.returncode, none.stderr.count("\n")) == (1, 1)
    assert "no Python 3.11 or newer found" in none.stderr
    chosen = checkout.run(PATH=str(tools), PYTHON="python9")
    assert chosen.stderr == "run.sh: PYTHON=python9 is not a Python 3.11 or newer\n"
    checkout.program(tools / "python3", '#!/bin/sh\ncase "$*" in *ensurepip*) exit 1;; esac\n')
    bare = checkout.run(PATH=str(tools))
    assert bare.stderr.startswith("run.sh: python3 has no venv module")


def test_a_checkout_that_moved_gets_a_new_venv(checkout):
    (checkout.root / ".venv" / ".root").write_text("/elsewhere\n")
    result = checkout.run(PYTHON="/nonexistent")
    assert "PYTHON=/nonexistent is not a Python" in result.stderr
