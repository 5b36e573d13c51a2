"""Colours of the command line, and what may be sent to a terminal.

Text of models, kernels and hosts is untrusted. Control characters in it could move the cursor, change
the window title or hide a line, so everything but our own colour codes is escaped.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping

import click

from agentctl.hidden_characters import is_hidden

STYLES: Mapping[str, Mapping[str, str | bool]] = {
    "good": {"fg": "green"},
    "bad": {"fg": "red"},
    "warn": {"fg": "yellow"},
    "key": {"fg": "cyan"},
    "dim": {"fg": "bright_black"},
    "head": {"bold": True},
}
"""The styles for emphasis; the text must be readable without them."""

FAMILY_STYLES: Mapping[str, str] = {
    "run": "head",
    "round": "head",
    "decision": "good",
    "evaluation": "key",
    "learning": "dim",
    "safety": "warn",
    "call": "warn",
}
"""The style of each event family in `agentctl tail`; other families have none."""

STATE_STYLES: Mapping[str, str] = {
    "running": "good",
    "up": "good",
    "completed": "key",
    "paused": "warn",
    "queued": "warn",
    "resting": "warn",
    "interrupted": "bad",
    "failing": "bad",
    "quarantined": "bad",
    "cancelled": "dim",
}


def style(text: str, name: str | None) -> str:
    """Return text in the colour of a style; None leaves it unchanged."""
    return text if name is None else click.style(text, **STYLES[name])  # type: ignore[arg-type]


_OWN_CODES = {style("", name).removesuffix("\x1b[0m") for name in STYLES} | {"\x1b[0m"}

_OWN_PATTERN = re.compile("(" + "|".join(re.escape(code) for code in sorted(_OWN_CODES)) + ")")


def make_printable(text: str) -> str:
    """Return text with hidden characters escaped, except line ends, tabs and our own colour codes.

    Control characters move the cursor, direction marks reorder a line, and zero-width characters make
    different texts look alike.
    """
    return "".join(part if part in _OWN_CODES else escape_marks(part) for part in _OWN_PATTERN.split(text))


def strip_colours(text: str) -> str:
    """Return text for programs: printable, without our own colour codes."""
    parts = _OWN_PATTERN.split(text)
    return "".join(escape_marks(part) for part in parts if part not in _OWN_CODES)


def escape_marks(text: str) -> str:
    """Return others' text with every hidden character escaped, our own colour codes too."""
    if text.isprintable():
        return text
    return "".join(ascii(mark)[1:-1] if is_hidden(mark) else mark for mark in text)


def should_colour() -> bool | None:
    """Return False with NO_COLOR or on a dumb terminal; else None, so that click decides."""
    return False if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" else None


def print_text(text: str, *, exact: bool = False) -> None:
    """Write text to stdout, through a pager if it is longer than the terminal is high.

    `exact` text is written unchanged, unless stdout is a terminal.
    """
    person = sys.stdout.isatty()
    clean = text if exact and not person else make_printable(text)
    if person and _needs_pager(clean):
        os.environ.setdefault("LESS", "FRX")
        click.echo_via_pager(clean + "\n", color=should_colour() is None)
    else:
        click.echo(clean, color=True if exact and not person else should_colour())


def print_line(text: str) -> None:
    """Write one line of output that appears line by line."""
    click.echo(make_printable(text), color=should_colour())


def _needs_pager(text: str) -> bool:
    from shutil import get_terminal_size

    return text.count("\n") >= get_terminal_size().lines
