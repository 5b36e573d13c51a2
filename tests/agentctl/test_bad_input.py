"""What people get wrong, and what disks do to logs: one clear line, a stable status, nothing lost."""

from __future__ import annotations

import asyncio
import errno
import re
import sqlite3
import subprocess
import sys
from pathlib import Path

import click
import pytest

from daemon import exits
from daemon.home_paths import waiting_commands
from state.home import HomeLayout
from state.log import EventLog
from state.reader import LogReader
from tests.support import fakes
from tests.support.command_line import Called
from tests.support.endless_kernels import ENDLESS
from tests.support.fakes import FAKE

ROOT = Path(__file__).parents[2]
GOOD = (ROOT / "seeds/problems/silu/kernel.py").read_text()


def assert_one_line(called: Called, status: int, *words: str) -> None:
    assert called.status == status, called.err
    (line,) = called.err.splitlines()
    assert line.startswith("agentctl: ")
    for word in words:
        assert word in line


# --- flags, problems, kernels, configuration -------------------------------------------------------


def test_an_unknown_problem_is_named_with_those_known(ctl, home):
    called = ctl("run", "--problem", "sliu")
    assert_one_line(called, exits.USAGE, "'sliu'", "did you mean 'silu'", "matmul")
    assert not home.exists()


def test_an_unknown_target_is_named_with_those_known(ctl, home):
    assert_one_line(ctl("run", *FAKE, "--target", "trn9"), exits.USAGE, "trn9", "trn1", "trn2")


@pytest.mark.parametrize(
    ("planner", "words"),
    [("nobody", ("nobody", "builtin")), ("anthropic", ("no model is given for anthropic", "run.llm.models"))],
)
def test_a_proposer_that_is_not_there(ctl, planner, words):
    called = ctl("run", *(word.replace("scripted", planner) for word in FAKE))
    assert_one_line(called, exits.USAGE, *words)


def test_an_unknown_evaluator(ctl):
    assert_one_line(
        ctl("run", *(word.replace("=fake", "=sym") for word in FAKE)), exits.USAGE, "'sym'", "sim"
    )


@pytest.mark.parametrize("value", ["huge", "Full", ""])
def test_a_wrong_size_names_the_flag(ctl, home, value):
    called = ctl("run", *FAKE, "--size", value)
    assert called.status == exits.USAGE
    assert "--size" in called.err
    assert "Traceback" not in called.err


def test_all_faults_of_a_configuration_are_reported_at_once(ctl, home):
    called = ctl(
        "run", *FAKE, "--rounds", 0, "--set", "run.serach.beam=3", "--set", "daemon.evaluations=many"
    )
    assert called.status == exits.USAGE
    assert all(word in called.err for word in ("--rounds", "run.serach.beam", "daemon.evaluations"))
    assert not home.exists()


def test_a_setting_without_a_value(ctl):
    called = ctl("run", *FAKE, "--set", "serach.beam=3")
    assert "--set: run.serach.beam: no such key; did you mean run.search.beam?" in called.err
    called = ctl("run", *FAKE, "--set", "run.seed")
    assert called.status == exits.USAGE
    assert "KEY=VALUE" in called.err


@pytest.mark.parametrize("verb", ["run", "submit", "try", "propose"])
def test_a_kernel_file_that_cannot_be_read(ctl, home, tmp_path, verb):
    (tmp_path / "latin.py").write_bytes(b"# caf\xe9\n")
    for path, why in [
        (tmp_path / "none.py", "No such file"),
        (tmp_path, "is a folder, and a kernel is a file"),
        (tmp_path / "latin.py", "UTF-8"),
    ]:
        arguments = {
            "run": ("--problem", "silu", "--kernel", path),
            "submit": ("--problem", "silu", "--kernel", path),
            "try": (path, "--problem", "silu"),
            "propose": ("a-run", path),
        }[verb]
        assert_one_line(ctl(verb, *arguments), exits.USAGE, str(path), why)
    assert not home.exists()


def test_an_unknown_verb(ctl):
    called = ctl("optimise")
    assert called.status == exits.USAGE
    assert "optimise" in called.err


@pytest.mark.parametrize(
    "arguments",
    [("best", "x"), ("diff", "x"), ("show", "x@1"), ("resume", "x"), ("status", "x"), ("tail", "--run", "x")],
)
def test_an_unknown_run(ctl, finished, arguments):
    assert_one_line(ctl(*arguments), exits.NOT_THERE, "x")


def test_a_run_without_a_correct_kernel_has_no_best(ctl, home):
    run = fakes.submit_run(home)
    fakes.take_commands(home)
    assert_one_line(ctl("best", run), exits.NOT_THERE, "no correct kernel yet")


# --- judging one kernel ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "verdict", "words"),
    [
        ("def kernel(:\n", "lint_error", ("line 1", "\n      def kernel(:\n")),
        ("import os\n" + GOOD, "lint_error", ("os",)),
        (GOOD.replace("scale=-1.0", "scale=-2.0"), "incorrect", ("L2",)),
    ],
    ids=["does not parse", "imports what it must not", "computes something else"],
)
def test_a_kernel_that_is_wrong(ctl, tmp_path, source, verdict, words):
    path = tmp_path / "k.py"
    path.write_text(source)
    assert source != GOOD
    called = ctl("try", path, "--problem", "silu", "--size", "reduced")
    assert called.status == exits.FAILURE
    assert f"{path}: {verdict}" in called.out
    assert all(word in called.out for word in words)
    assert "Traceback" not in called.err + called.out


def test_a_run_says_what_to_do_with_an_initial_kernel_that_is_rejected(ctl, tmp_path):
    path = tmp_path / "k.py"
    path.write_text(GOOD.replace("buffer=nl.shared_hbm", "buffer=nl.sbuf"))
    called = ctl(
        "run",
        "--kernel",
        path,
        "--problem",
        "silu",
        "--size",
        "reduced",
        "--rounds",
        "1",
        "--set",
        "run.starts=kernel",
    )
    assert called.status == exits.FAILURE
    before, _, after = called.out.partition("found no correct kernel: ")
    assert before
    assert re.search(r"\n  in line \d+ of the kernel\n  hint: .", after), after


def test_a_kernel_that_is_no_kernel_is_refused_before_a_run(ctl, home, tmp_path):
    path = tmp_path / "k.py"
    path.write_text(GOOD.replace("@nki.jit\n", ""))
    line = next(at for at, text in enumerate(path.read_text().splitlines(), 1) if text.startswith("def "))
    called = ctl("run", "--kernel", path, "--problem", "silu", "--size", "reduced")
    assert called.status == exits.USAGE
    assert f"{path}:{line}: the function `" in called.err
    assert "write @nki.jit on the line above `def " in called.err
    assert not (home / "events.db").exists()


def test_a_verdict_that_does_not_come_in_time(ctl, fake_kernel, monkeypatch):
    async def never(*_):
        await asyncio.Event().wait()

    monkeypatch.setattr(fakes.FakeEvaluator, "evaluate", never)
    monkeypatch.setattr("agentctl.verbs.try_.SAY_AFTER_SECONDS", 0.0)
    monkeypatch.setenv("NKI_AGENT_DAEMON__EVALUATION_SECONDS", "0.2")
    monkeypatch.setenv("NKI_AGENT_RUN__EVALUATOR", "fake")
    called = ctl("try", fake_kernel, "--problem", "silu")
    assert called.status == exits.TIMEOUT
    first, last = called.err.splitlines()
    assert first == "judging: 0 s, 0.2 s at most"
    assert last == "agentctl: no verdict within 0.2 s, by daemon.evaluation_seconds"


def test_a_kernel_that_is_right(ctl, home, tmp_path):
    path = tmp_path / "k.py"
    path.write_text(GOOD)
    called = ctl("try", path, "--problem", "silu", "--size", "reduced", "--json")
    assert called.status == 0
    assert called.json["verdict"] == "correct"
    assert called.json["benchmark"]["predicted"] is True
    assert 0 < called.json["percent_of_tight_bound"] <= 100
    assert not (home / "events.db").exists()


# --- homes -----------------------------------------------------------------------------------------


READERS = [
    ("status",),
    ("tail",),
    ("verify",),
    ("show", "x@1"),
    ("best", "x"),
    ("diff", "x"),
    ("resume", "--last"),
]


STEERERS = [("pause", "x"), ("cancel", "x"), ("resume", "x"), ("propose", "x", __file__)]


@pytest.mark.parametrize("arguments", READERS + STEERERS)
def test_a_home_that_does_not_exist_is_not_made_by_looking_or_steering(ctl, home, arguments):
    assert_one_line(ctl(*arguments), exits.NOT_THERE, str(home), "no such directory")
    assert not home.exists()


def test_an_empty_home_is_not_the_working_directory(ctl, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    called = ctl("status", home="")
    assert called.status == exits.USAGE
    assert "empty" in called.err
    assert ctl("status", home=".").status == 0


@pytest.mark.parametrize("arguments", [("run", *FAKE), ("submit", *FAKE), ("status",), ("verify",)])
def test_a_home_that_is_a_file(ctl, home, arguments):
    home.write_text("mine")
    assert_one_line(ctl(*arguments), exits.USAGE, str(home), "is a directory, this is a file")
    assert home.read_text() == "mine"


@pytest.mark.parametrize("arguments", [("verify",), ("tail",), ("show", "x@1"), ("resume", "--last")])
def test_a_home_without_a_log(ctl, home, arguments):
    home.mkdir()
    assert_one_line(ctl(*arguments), exits.NOT_THERE, str(home))


def test_status_of_a_home_without_a_log_says_that_there_are_no_runs(ctl, home):
    home.mkdir()
    assert ctl("status", "--json").json["runs"] == []


# --- logs ------------------------------------------------------------------------------------------


def change(home: Path, *statements: str) -> None:
    """Change a log at rest as no program of ours would: without its triggers."""
    with sqlite3.connect(HomeLayout(home).database) as connection:
        triggers = connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall()
        for (name,) in triggers:
            connection.execute(f"DROP TRIGGER {name}")
        for statement in statements:
            connection.execute(statement)
    connection.close()


def test_an_edited_log_is_found_and_its_row_named(ctl, home, finished):
    with LogReader.open(home) as reader:
        victim = next(item for item in reader.read(stream=finished) if item.type == "KernelProposed")
    change(home, f"UPDATE event SET payload = replace(payload, 'note', 'n0te') WHERE seq = {victim.seq}")
    called = ctl("verify")
    assert called.status == exits.LOG
    assert f"event {victim.seq} ({finished}@{victim.run_seq})" in called.out
    found = ctl("verify", "--json")
    assert found.status == exits.LOG
    assert found.json["ok"] is False
    assert f"{finished}@{victim.run_seq}" in found.json["findings"][0]


def test_a_log_that_lost_its_tail_is_not_written_to(ctl, home, finished):
    with LogReader.open(home) as reader:
        head = reader.head.seq
    change(home, f"DELETE FROM event WHERE seq > {head - 3}")
    called = ctl("run", *FAKE)
    assert called.status == exits.LOG
    assert str(head) in called.err
    assert ctl("verify").status == exits.LOG
    assert len(waiting_commands(home)) == 1, "the command is kept for when the log is repaired"


@pytest.mark.parametrize("arguments", [("resume", "--last"), ("status",)])
def test_a_run_that_lost_its_end_is_not_waited_for(ctl, home, finished, arguments):
    with LogReader.open(home) as reader:
        head = reader.head.seq
    change(home, f"DELETE FROM event WHERE seq > {head - 3}")
    assert_one_line(ctl(*arguments), exits.LOG, f"ends at event {head - 3}", f"event {head} was acknowledged")


@pytest.mark.parametrize("lose", [Path.unlink, lambda path: path.write_bytes(b"")])
@pytest.mark.parametrize(
    "arguments", [("status",), ("verify",), ("resume", "--last"), ("tail",), ("run", *FAKE)]
)
def test_a_log_that_is_gone_is_not_one_that_never_was(ctl, home, finished, arguments, lose):
    with LogReader.open(home) as reader:
        head = reader.head.seq
    lose(HomeLayout(home).database)
    assert_one_line(ctl(*arguments), exits.LOG, "ends at event 0", f"event {head} was acknowledged")


def test_without_a_head_verify_says_what_it_cannot_see(ctl, home, finished):
    assert ctl("verify", "--json").json["anchored"] is True
    assert "HEAD" not in ctl("verify").out
    for witness in home.glob("HEAD*"):
        witness.unlink()
    assert ctl("verify", "--json").json["anchored"] is False
    called = ctl("verify")
    assert (called.status, called.out.splitlines()[1:]) == (0, ["no HEAD: a lost tail cannot be noticed"])


def test_a_head_that_is_a_directory(ctl, home, finished):
    HomeLayout(home).head.unlink()
    HomeLayout(home).head.mkdir()
    called = ctl("verify")
    assert (called.status, called.err) == (exits.LOG, "")
    assert "HEAD is not a HEAD anchor" in called.out
    assert_one_line(ctl("run", *FAKE), exits.LOG, "HEAD")


def test_a_log_without_its_table(ctl, home, finished):
    change(home, "DROP TABLE event")
    called = ctl("verify")
    assert (called.status, called.err) == (exits.LOG, "")
    assert "no such table: event" in called.out
    assert_one_line(ctl("run", *FAKE), exits.LOG, "no such table: event")


@pytest.mark.usefixtures("patient_verification")
@pytest.mark.parametrize("how", ["run", "resume", "resume of an ended run"])
def test_a_foreground_run_too_has_the_old_log_proved(ctl, home, finished, how):
    """Opening looks at what is new; run and resume end with the damage's status like the daemon."""
    with EventLog.open(home):
        """A clean stop: what is there now counts as looked at."""
    other = fakes.submit_run(home)
    fakes.take_commands(home)
    with LogReader.open(home) as reader:
        victim = next(item for item in reader.read(stream=finished) if item.type == "KernelProposed")
    change(home, f"UPDATE event SET payload = replace(payload, 'note', 'n0te') WHERE seq = {victim.seq}")
    arguments = {"run": ("run", *FAKE), "resume": ("resume", other)}.get(how, ("resume", finished))
    called = ctl(*arguments)
    assert called.status == exits.LOG
    assert f"event {victim.seq} ({finished}@{victim.run_seq})" in called.err.splitlines()[-1]


@pytest.mark.parametrize("arguments", [("run", *FAKE), ("status",), ("verify",), ("tail",)])
def test_a_log_of_a_newer_version(ctl, home, finished, arguments):
    change(home, "PRAGMA user_version = 9999")
    assert_one_line(ctl(*arguments), exits.LOG, "newer")


def test_a_file_that_is_no_log(ctl, home):
    home.mkdir()
    HomeLayout(home).database.write_bytes(b"not a database, " * 100)
    assert ctl("status").status == exits.LOG
    assert ctl("run", *FAKE).status == exits.LOG
    assert HomeLayout(home).database.read_bytes() == b"not a database, " * 100


def test_only_commands_in_a_message_get_the_home():
    text = "agentctl did not write it; where agentctl runs, `agentctl run` does"
    said = exits.add_home_option(text, ("--home", "a b"), ["run", "status"])
    assert said == "agentctl did not write it; where agentctl runs, `agentctl run --home 'a b'` does"


@pytest.mark.parametrize("arguments", [("status",), ("best",), ("verify", "--json")])
def test_a_full_disk_under_the_output_is_one_line(home, finished, arguments):
    arguments = (*arguments, finished) if arguments == ("best",) else arguments
    with Path("/dev/full").open("w") as full:
        called = subprocess.run(
            [sys.executable, "-m", "agentctl", "--home", home, *arguments],
            stdout=full, stderr=subprocess.PIPE, text=True, cwd=ROOT, check=False,
        )  # fmt: skip
    assert called.returncode == exits.STORAGE
    assert called.stderr == "agentctl: cannot write: No space left on device\n"


def test_an_error_of_the_system_that_no_disk_made_is_a_bug(monkeypatch):
    def breaks() -> None:
        raise ConnectionResetError(errno.ECONNRESET, "a bug")

    with pytest.raises(ConnectionResetError):
        exits.run_command(click.Command("it", callback=breaks), "it", [])


def test_a_home_that_another_process_owns_is_read_all_the_same(ctl, home, finished):
    with EventLog.open(home):
        assert ctl("status").status == 0
        assert ctl("verify").status == 0
        assert ctl("best", finished).status == 0


# --- what never ends -------------------------------------------------------------------------------


def test_a_deadline_ends_a_kernel_inside_one_call(ctl, tmp_path, monkeypatch):
    path = tmp_path / "k.py"
    path.write_text(ENDLESS["sum in C"])
    monkeypatch.setenv("NKI_AGENT_DAEMON__EVALUATION_SECONDS", "1")
    called = ctl("try", path, "--problem", "silu", "--size", "reduced")
    assert_one_line(called, exits.TIMEOUT, "no verdict within 1 s", "daemon.evaluation_seconds")


def test_a_deadline_ends_a_reference_that_is_translated(ctl, tmp_path, monkeypatch):
    path = tmp_path / "endless.py"
    path.write_text(
        'INPUT_SPECS = {"x": ((128, 512), "float32")}\n\n\n'
        "def reference(x):\n    sum(iter(int, 1))\n    return x\n"
    )
    monkeypatch.setenv("NKI_AGENT_DAEMON__EVALUATION_SECONDS", "1")
    called = ctl("translate", path)
    assert called.status == exits.TIMEOUT
    assert called.err.splitlines()[-1] == "agentctl: no translation within 1 s, by daemon.evaluation_seconds"


# --- kernels that no rewrite reads -----------------------------------------------------------------

IRREGULAR = """
import nki
import nki.isa as nisa
import nki.language as nl


class Rows:
    def __init__(self, x, out):
        self.x, self.out = x, out

    def silu(self, row, first, end):
        t = nl.ndarray((1, end - first), dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=t, src=self.x[row:row + 1, first:end])
        nisa.activation(dst=t, op=nl.silu, data=t)
        nisa.dma_copy(dst=self.out[row:row + 1, first:end], src=t)


@nki.jit
def kernel(x):
    M, N = x.shape
    out = nl.ndarray((M, N), dtype=x.dtype, buffer=nl.shared_hbm)
    rows = Rows(x, out)
    for row in range(M):
        cut = 1 + (row * row * 37) % (N - 1)
        rows.silu(row, 0, cut)
        rows.silu(row, cut, N)
    return out
"""


def test_a_kernel_that_no_rewrite_reads_is_refused_before_a_run(ctl, home, tmp_path):
    path = tmp_path / "k.py"
    path.write_text(IRREGULAR)
    called = ctl("run", "--kernel", path, "--problem", "silu", "--size", "reduced")
    assert called.status == exits.USAGE
    last = called.err.splitlines()[-1]
    assert f"{path}: no rewrite can read it: the kernel was not raised: " in last
    assert "name a model that writes kernels in run.planner" in last
    assert not (home / "events.db").exists()


def test_what_no_rewrite_reads_of_a_kernel_is_told_before_a_run(ctl, tmp_path):
    path = tmp_path / "k.py"
    plain = (
        "    t = nl.ndarray((1, N), dtype=nl.float32, buffer=nl.sbuf)\n    nisa.memset(dst=t, value=0.0)\n"
    )
    path.write_text(IRREGULAR.replace("    for row in range(M):\n", plain + "    for row in range(M):\n"))
    called = ctl("run", "--kernel", path, "--problem", "silu", "--size", "reduced", "--dry-run")
    assert called.status == 0
    last = called.err.splitlines()[-1]
    assert last.startswith(
        f"note: rewrites leave out what they cannot read of {path}: the kernel was not raised"
    )
