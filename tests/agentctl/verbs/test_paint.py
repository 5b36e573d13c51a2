"""What reaches a terminal: text and our own colours; nothing that models wrote moves a cursor."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from agentctl.terminal_style import FAMILY_STYLES, STATE_STYLES, STYLES, make_printable, should_colour, style
from state.events import FAMILIES

PROGRAM = Path(sys.executable).with_name("agentctl")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain\ttext\n", "plain\ttext\n"),
        ("\x1b]0;owned\x07", "\\x1b]0;owned\\x07"),
        ("\x1b[2J\x1b[1;1H", "\\x1b[2J\\x1b[1;1H"),
        ("a\rb", "a\\rb"),
        ("\x9b31m", "\\x9b31m"),
        ("\x1b[8mhidden", "\\x1b[8mhidden"),
        ("if a: \u202e# } return", "if a: \\u202e# } return"),
        ("TILE\u200b_M\u00ad = 1\ufeff", "TILE\\u200b_M\\xad = 1\\ufeff"),
        ("a\u2028b", "a\\u2028b"),
        ("naïve 漢字 ▂▃", "naïve 漢字 ▂▃"),
    ],
)
def test_control_characters_are_spelled_out(text, shown):
    assert make_printable(text) == shown


def test_our_colours_pass():
    for name in STYLES:
        assert make_printable(style("text", name)) == style("text", name)
    assert style("text", None) == "text"


def test_every_family_and_state_has_a_style_that_there_is():
    assert set(FAMILY_STYLES) <= set(FAMILIES)
    assert {*FAMILY_STYLES.values(), *STATE_STYLES.values()} <= set(STYLES)


@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_colours_can_be_declined(monkeypatch, name, value):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert should_colour() is None
    monkeypatch.setenv(name, value)
    assert should_colour() is False


def on_a_terminal(home: Path, *arguments: str, **env: str) -> str:
    """Return what a command writes to a terminal that is high enough for all of it."""
    ours, theirs = pty.openpty()
    usual = {"PATH": "/usr/bin:/bin", "TERM": "xterm", "COLUMNS": "100", "LINES": "9000"}
    with subprocess.Popen(
        [PROGRAM, "--home", str(home), *arguments], stdin=theirs, stdout=theirs, stderr=theirs,
        env=usual | env,
    ) as process:  # fmt: skip
        os.close(theirs)
        written = b""
        while True:
            try:
                part = os.read(ours, 65536)
            except OSError:  # the other end is closed
                break
            if not part:
                break
            written += part
        os.close(ours)
        assert process.wait(timeout=60) == 0
    return written.decode()


def test_a_terminal_gets_colours_and_a_pipe_none(home, finished, ctl):
    assert "\x1b[" in on_a_terminal(home, "status")
    assert "\x1b[" not in on_a_terminal(home, "status", NO_COLOR="1")
    assert "\x1b[" not in ctl("status").out


def test_what_is_longer_than_the_terminal_goes_through_a_pager(home, finished, tmp_path):
    pager = tmp_path / "pager"
    pager.write_text("#!/bin/sh\necho paged\ncat\n")
    pager.chmod(0o755)
    long = on_a_terminal(home, "show", f"{finished}@1", LINES="5", PAGER=str(pager))
    assert long.startswith("paged")
    assert "RunCreated" in long
    assert "paged" not in on_a_terminal(home, "status", PAGER=str(pager))


def test_watching_ends_with_the_run_it_watches(home, finished):
    drawn = on_a_terminal(home, "status", finished, "--watch")
    assert "completed" in drawn
