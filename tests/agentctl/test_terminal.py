"""A run on a terminal: what moves in each phase, and how Ctrl-C is answered. Nothing here asks a clock."""

from __future__ import annotations

import os
import pty
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
CTRL_C = b"\x03"
PROBLEM = ("--problem", "silu", "--set", "search.rounds=1")


class Terminal:
    """A child process on a terminal of its own, and all that it has shown."""

    def __init__(self, command: Sequence[str]) -> None:
        self.shown = ""
        self.pid, self._fd = pty.fork()
        if self.pid == 0:
            os.execvpe(command[0], command, {**os.environ, "TERM": "xterm", "COLUMNS": "120", "LINES": "30"})

    def read_until(self, *texts: str) -> None:
        """Read until these were shown, one after the other, from here on."""
        place = len(self.shown)
        for text in texts:
            while (found := self.shown.find(text, place)) < 0:
                assert self._read(), f"{text!r} was not shown: {self.shown[-2000:]}"
            place = found + len(text)

    def press(self, key: bytes) -> None:
        os.write(self._fd, key)

    def wait(self) -> int:
        """Read to the end; return the exit status."""
        while self._read():
            pass
        os.close(self._fd)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def _read(self) -> bool:
        try:
            data = os.read(self._fd, 1 << 16)
        except OSError:  # how Linux tells that the other end is closed
            return False
        self.shown += _CONTROL.sub("", data.decode(errors="replace"))
        return bool(data)


@pytest.fixture
def start(tmp_path: Path):
    def start_run(*flags: str) -> Terminal:
        home = ("--home", str(tmp_path / "home"))
        return Terminal([sys.executable, "-m", "agentctl", "run", *home, *flags])

    return start_run


@pytest.mark.slow
def test_ctrl_c_is_answered_and_the_status_moves_until_the_work_in_flight_has_ended(start) -> None:
    terminal = start(*PROBLEM)
    terminal.read_until("since it began", "judging", "since it began", "since it began")
    terminal.press(CTRL_C)
    terminal.read_until("stopping: work in flight has", "Ctrl-C again stops at once", "since it began")
    terminal.read_until("since it began", "since it began")
    terminal.press(CTRL_C)
    assert terminal.wait() == 130
    end = terminal.shown.rindex("stopping: ")
    assert "interrupted" in terminal.shown[end:]
    assert "carry on with: " in terminal.shown[end:]


@pytest.mark.slow
def test_each_phase_of_a_round_is_on_the_status_line(start) -> None:
    few = ("search.lookahead_predictions=24", "search.plans=2", "starts=kernel")
    terminal = start(*PROBLEM, "--size", "reduced", *(word for one in few for word in ("--set", one)))
    terminal.read_until(
        "judging 1", "looking ahead 1 (", " of at most 24 predictions)", "judging", "auditing 1"
    )
    assert terminal.wait() in {0, 1}
    assert "Run silu-" in terminal.shown
