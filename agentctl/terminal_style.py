"""Colours of the command line, and what a terminal may be sent at all.

What models, kernels and hosts wrote is shown as text: control characters in it would move the cursor, retitle
the window or hide a line, so all but our own colours are spelled out.
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
"""What may stand out, and how; all of it can be read without."""

FAMILY_STYLES: Mapping[str, str] = {
    "run": "head",
    "round": "head",
    "decision": "good",
    "evaluation": "key",
    "learning": "dim",
    "safety": "warn",
    "call": "warn",
}
"""How events of a family stand out in `agentctl tail`; those of others do not."""

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
    """Return text with the colour of a style; none leaves it as it is."""
    return text if name is None else click.style(text, **STYLES[name])  # type: ignore[arg-type]


_OWN_CODES = {style("", name).removesuffix("\x1b[0m") for name in STYLES} | {"\x1b[0m"}

_OWN_PATTERN = re.compile("(" + "|".join(re.escape(code) for code in sorted(_OWN_CODES)) + ")")


def make_printable(text: str) -> str:
    """Return text without what nobody sees, but line ends, tabs and our own colours: it is spelled out.

    Control characters move the cursor, marks of direction have a line read as another, and what has no
    width tells apart what looks the same.
    """
    return "".join(part if part in _OWN_CODES else _escape_hidden(part) for part in _OWN_PATTERN.split(text))


def _escape_hidden(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(ascii(mark)[1:-1] if is_hidden(mark) else mark for mark in text)


def should_colour() -> bool | None:
    """Return whether to write colours: not with NO_COLOR or on a dumb terminal, else None: click decides."""
    return False if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" else None


def print_text(text: str, *, exact: bool = False) -> None:
    """Write text to stdout, through a pager where it is longer than the terminal is high.

    What is `exact` is written as it is to what is no terminal.
    """
    person = sys.stdout.isatty()
    clean = text if exact and not person else make_printable(text)
    if person and _needs_pager(clean):
        os.environ.setdefault("LESS", "FRX")
        click.echo_via_pager(clean + "\n", color=should_colour() is None)
    else:
        click.echo(clean, color=True if exact and not person else should_colour())


def print_line(text: str) -> None:
    """Write a line of what comes line by line."""
    click.echo(make_printable(text), color=should_colour())


def _needs_pager(text: str) -> bool:
    from shutil import get_terminal_size

    return text.count("\n") >= get_terminal_size().lines
