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


_OURS = {style("", name).removesuffix("\x1b[0m") for name in STYLES} | {"\x1b[0m"}

_CONTROL = re.compile(
    "(?P<ours>" + "|".join(re.escape(code) for code in sorted(_OURS)) + ")"
    "|(?P<other>[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069])"
)


def printable(text: str) -> str:
    """Return text without control characters but line ends, tabs and our own colours: others are spelled out.

    Marks that reverse the direction of writing are spelled out too: with them a line reads as another.
    """
    return _CONTROL.sub(lambda found: found["ours"] or ascii(found["other"])[1:-1], text)


def coloured() -> bool | None:
    """Return whether to write colours: not with NO_COLOR or on a dumb terminal, else None: click decides."""
    return False if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" else None


def say(text: str, *, exact: bool = False) -> None:
    """Write text to stdout, through a pager where it is longer than the terminal is high.

    What is `exact` is written as it is to what is no terminal.
    """
    person = sys.stdout.isatty()
    clean = text if exact and not person else printable(text)
    if person and _long(clean):
        os.environ.setdefault("LESS", "FRX")
        click.echo_via_pager(clean + "\n", color=coloured() is None)
    else:
        click.echo(clean, color=True if exact and not person else coloured())


def echo(text: str) -> None:
    """Write a line of what comes line by line."""
    click.echo(printable(text), color=coloured())


def _long(text: str) -> bool:
    from shutil import get_terminal_size

    return text.count("\n") >= get_terminal_size().lines
