"""What surrounds a command that takes long: progress, interrupts, deadlines, readers that go."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from nki_sim.cli import grammar, main, progress, verb_table
from tests.support.endless_kernels import ENDLESS
from tests.support.sweeps import parametrize_sweep


def endless(tmp_path: Path) -> Path:
    kernel = tmp_path / "endless.py"
    kernel.write_text(
        "import nki\n\n\n@nki.jit\ndef kernel(x):\n"
        "    while True:\n        try:\n            pass\n        except BaseException:\n            pass\n"
    )
    return kernel


def test_an_interrupt_while_tracing_ends_the_command(tmp_path: Path) -> None:
    """It is not taken for an exception of the kernel, which may catch what it likes."""
    kernel, started = tmp_path / "endless.py", tmp_path / "started"
    kernel.write_text(
        "import nki\n\n\n@nki.jit\ndef kernel(x):\n"
        f"    open({str(started)!r}, 'w').close()\n"
        "    while True:\n        try:\n            pass\n        except BaseException:\n            pass\n"
    )
    process = subprocess.Popen([sys.executable, "-m", "nki_sim.cli", "run", str(kernel), "--arg", "4x4"])
    try:
        while not started.exists():
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == -signal.SIGINT
    finally:
        process.kill()
        process.wait()


@parametrize_sweep("name", sorted(ENDLESS), quick={"sum in C", "power at import"})
def test_a_deadline_ends_every_kernel(name: str, tmp_path: Path) -> None:
    """Also one that is inside a single call of C, where no thread and no handler of a signal gets a turn."""
    kernel = tmp_path / "endless.py"
    kernel.write_text(ENDLESS[name])
    argv = [sys.executable, "-m", "nki_sim.cli", "trace", str(kernel), "--arg", "128x512"]
    done = subprocess.run(
        [*argv, "--deadline", "0.5", "--json"], check=False, capture_output=True, text=True, timeout=60
    )
    report = json.loads(done.stdout)
    assert (done.returncode, report["correct"], report["error"]["code"]) == (3, None, "limit_time")
    assert (report["file"], report["target"]) == (str(kernel), "trn2")


def test_a_command_that_is_killed_leaves_no_process(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "nki_sim.cli", "trace", str(endless(tmp_path)), "--arg", "4x4"]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    assert process.stderr.readline() == f"nki-sim: tracing {tmp_path / 'endless.py'} ...\n"
    process.kill()
    process.communicate(timeout=60)  # ends only when the child, which holds the pipes, is gone too


def test_what_takes_long_says_so_on_stderr(monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.setattr(progress, "QUIET_S", 0.0)
    with progress.report_progress("thinking"):
        time.sleep(0.05)
    first, last = capsys.readouterr().err.splitlines()
    assert first == "nki-sim: thinking ..."
    assert last.startswith("nki-sim: thinking: ")


def test_what_is_quick_says_nothing(capsys: Any) -> None:
    with progress.report_progress("thinking"):
        pass
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("extra", "seconds"),
    [((), 600.0), (("--eager",), None), (("--deadline", "0"), None), (("--deadline", "2", "--eager"), 2.0)],
)
def test_a_command_ends_some_day_unless_told_otherwise(extra: tuple[str, ...], seconds: float | None) -> None:
    options = grammar.build_parser(verb_table.VERBS.values()).parse_args(["run", "kernel.py", *extra])
    assert grammar.deadline_seconds(options) == seconds


@pytest.mark.parametrize("verb", ["run", "trace", "profile"])
def test_help_says_what_the_deadline_is(verb: str, capsys: Any) -> None:
    with pytest.raises(SystemExit) as caught:
        main([verb, "--help"])
    assert caught.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "give up after so long (default: 600, with --eager never" in text


@pytest.mark.parametrize("verb", ["ops", "rules", "--help"])
def test_a_reader_that_goes_ends_the_command_quietly(verb: str) -> None:
    argv = [sys.executable, "-m", "nki_sim.cli", verb]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert process.stderr.read() == ""
    process.stderr.close()
    assert process.wait(timeout=60) == -signal.SIGPIPE


def test_signals_are_what_they_were_afterwards() -> None:
    numbers = (signal.SIGINT, signal.SIGPIPE)
    before = [signal.getsignal(number) for number in numbers]
    with progress.use_default_signals():
        assert [signal.getsignal(number) for number in numbers] == [signal.SIG_DFL] * 2
    assert [signal.getsignal(number) for number in numbers] == before


@pytest.mark.parametrize("fails", ["None", "1 / 0"])
def test_the_end_of_the_time_is_the_end_of_the_process(fails: str) -> None:
    code = (
        "import time\nfrom nki_sim.cli import progress\n"
        f"with progress.enforce_deadline(0.01, 3, lambda: {fails}):\n    time.sleep(60)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, timeout=60)
    assert done.returncode == 3


def test_a_command_that_is_done_in_time_exits_as_it_would_without_a_deadline() -> None:
    code = (
        "import sys\nfrom nki_sim.cli import progress\n"
        "with progress.enforce_deadline(60.0, 3, sys.exit):\n    pass\n"
        "print('done')\nsys.exit(7)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, timeout=60)
    assert (done.returncode, done.stdout) == (7, b"done\n")
