"""What may take long shows a bar: on a terminal, after a while, and never where JSON is asked for."""

from __future__ import annotations

import fcntl
import os
import pty
import shutil
import struct
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

import state.queries
import state.reader
from agentctl import progress_bar
from agentctl.app import Session
from agentctl.progress_bar import ProgressBar
from agentctl.verb_table import VERBS
from tests.support.otlp import receiver
from tests.support.simulated_logs import record, world_of

RUN = "toy-5eed01"

TOLD: dict[str, tuple[str, ...]] = {
    "replay": ("replay", RUN),
    "lineage": ("lineage",),
    "stats": ("stats",),
    "tail": ("tail", "--grep", "nothing has this"),
    "report": ("report", RUN, "-o", "OUT.html"),
    "export-git": ("export", RUN, "--git", "-o", "OUT"),
    "export-layout": ("export", RUN, "--layout", "nki-kernel-agent", "-o", "OUT"),
    "export-otlp": ("export", RUN, "--otlp", "RECEIVER"),
    "verify": ("verify",),
    "backup": ("backup", "OUT"),
    "restore": ("restore", "BACKUP"),
    "archive": ("archive", RUN, "-o", "OUT"),
    "import": ("import", "ARCHIVE", "--home", "OTHER"),
    "compact": ("compact",),
    "repair": ("repair",),
}
"""Verbs that read a whole log or run, and say how far they have come."""

WAITED: dict[str, tuple[str, ...]] = {
    "tree": ("tree", RUN),
    "show": ("show", RUN, "best"),
    "show-state": ("show", f"{RUN}@9", "--state"),
    "why": ("why", RUN, "best"),
    "diff": ("diff", RUN),
    "best": ("best", RUN),
    "rescore": ("rescore", RUN),
    "tail-after": ("tail", "--after", "0", "--grep", "nothing has this"),
    "migrate": ("migrate",),
    "doctor": ("doctor",),
    "host": ("host", "check", "127.0.0.1:1"),
    "calibrate": ("calibrate", "--host", "127.0.0.1:1"),
}
"""Verbs that wait for a question to the log or to others: nobody knows how long that takes."""

OTHERWISE = {
    **dict.fromkeys(
        ("run", "resume", "tune", "translate", "wait", "ui", "bench", "try", "target"),
        "says itself how it goes on",
    ),
    "mcp": "tells its client how it goes on",
    **dict.fromkeys(
        ("submit", "pause", "cancel", "set", "approve", "propose", "fork"),
        "hands a command over",
    ),
    **dict.fromkeys(
        ("init", "status", "problems", "config", "prompts", "memory", "service", "completion", "plugin"),
        "reads as much of a long log as of a short one",
    ),
}
"""Verbs without a bar, and why."""


class Watched(ProgressBar):
    """A bar that remembers what it was told."""

    def __init__(self, what: str) -> None:
        super().__init__(what, wanted=False)
        self.told: list[tuple[int, int]] = []
        self.ended = False

    def __call__(self, done: int, total: int) -> None:
        assert not self.ended
        self.told.append((done, total))

    def __exit__(self, *_: object) -> None:
        self.ended = True


@pytest.fixture(scope="module")
def kept(tmp_path_factory) -> Path:
    home = tmp_path_factory.mktemp("kept") / "home"
    record(home, {RUN: world_of().finish()})
    return home


@pytest.fixture
def watched(monkeypatch) -> list[Watched]:
    """The bars that a verb makes; logs are read a few events at a time."""
    monkeypatch.setattr(state.queries, "PAGE", 10)
    monkeypatch.setattr(state.reader, "PAGE", 10)
    found: list[Watched] = []

    def bar(_: Session, what: str) -> Watched:
        found.append(Watched(what))
        return found[-1]

    monkeypatch.setattr(Session, "progress_bar", bar)
    return found


@pytest.fixture
def call(ctl, kept, home, tmp_path):
    """Call a verb on a home of its own; what names files, receivers and homes stands for these."""
    shutil.copytree(kept, home)
    stand = {"OUT": tmp_path / "out", "OUT.html": tmp_path / "out.html", "OTHER": tmp_path / "other"}

    def called(arguments: tuple[str, ...]):
        for name, verb in (("BACKUP", ("backup",)), ("ARCHIVE", ("archive", RUN, "-o"))):
            if name in arguments:
                stand[name] = tmp_path / name
                assert ctl(*verb, stand[name]).status == 0
        with receiver() as got:
            stand["RECEIVER"] = got.address
            return ctl(*(stand.get(one, one) for one in arguments))

    return called


@pytest.mark.needs("git")
@pytest.mark.parametrize("name", TOLD)
def test_what_reads_a_whole_log_says_how_far_it_is(call, watched, name):
    assert call(TOLD[name]).status == 0
    told = [one for bar in watched for one in bar.told]
    assert told
    assert all(0 <= done <= total for done, total in told)
    assert max(done / total for done, total in told) > 0.5
    assert all(bar.ended for bar in watched)


@pytest.mark.parametrize("name", WAITED)
def test_what_may_wait_long_has_a_bar(call, watched, name):
    call(WAITED[name])
    assert watched, f"{name}: work inside `with session.progress_bar(...)`, or say in OTHERWISE why not"
    assert all(bar.ended for bar in watched)


def test_every_verb_has_a_bar_or_a_reason():
    named = {arguments[0] for table in (TOLD, WAITED) for arguments in table.values()} | set(OTHERWISE)
    assert named == set(VERBS)


# --- the bar itself --------------------------------------------------------------------------------


@contextmanager
def terminal(monkeypatch) -> Iterator[int]:
    """Have a terminal of 80 columns as stderr; gives its other end. A fixture's would be pytest's again."""
    other, ours = pty.openpty()
    fcntl.ioctl(ours, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("COLUMNS", raising=False)
    with os.fdopen(ours, "w") as stderr:
        monkeypatch.setattr(sys, "stderr", stderr)
        yield other
    os.close(other)


def until(other: int, text: str) -> str:
    """Return what a terminal shows up to a text; without it, this waits for as long as tests may take."""
    shown = ""
    while text not in shown:
        shown += os.read(other, 65536).decode(errors="replace")
    return shown


def rest(other: int) -> str:
    """Return what a terminal was sent and nobody has read."""
    os.set_blocking(other, False)
    with suppress(BlockingIOError):
        return os.read(other, 65536).decode(errors="replace")
    return ""


def test_a_bar_appears_by_itself_and_goes_as_far_as_it_is_told(monkeypatch):
    monkeypatch.setattr(progress_bar, "SAY_AFTER_SECONDS", 0.0)
    with terminal(monkeypatch) as other:
        with Session().progress_bar("folding") as bar:
            assert "%" not in until(other, "folding")
            bar(1, 4)
            until(other, "25%")
            bar(3, 4)
            until(other, "75%")
        assert rest(other).endswith("\x1b[2K")  # nothing of it stays


def test_what_is_done_soon_shows_nothing(monkeypatch):
    with terminal(monkeypatch) as other:
        with Session().progress_bar("folding") as bar:
            bar(1, 4)
        assert rest(other) == ""


def test_nobody_sees_a_bar_where_json_is_asked_for_or_stderr_is_a_file(monkeypatch, tmp_path):
    begun: list[object] = []
    monkeypatch.setattr(progress_bar, "Timer", lambda *_: begun.append(1))
    with terminal(monkeypatch), Session(json=True).progress_bar("folding") as bar:
        bar(1, 4)
    with (tmp_path / "stderr").open("w") as file:
        monkeypatch.setattr(sys, "stderr", file)
        with Session().progress_bar("folding"):
            pass
    assert begun == []
