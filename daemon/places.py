"""Where things of the process lie in a home: found by who only looks, without what works with them."""

from __future__ import annotations

from pathlib import Path

INSTANCE = "agentd.instance"
"""The lock that only daemons take, so that a second one is told apart from a foreground owner."""


def folder(home: Path) -> Path:
    """Return the inbox of `home`."""
    return home / "inbox"


def waiting(home: Path) -> list[Path]:
    """Return the commands' files that wait, in the order in which they will be taken."""
    files = (path for path in folder(home).glob("*.json") if not path.name.startswith("."))
    return sorted(files, key=lambda path: path.stem)
