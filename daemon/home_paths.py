"""Paths of the process's files in a home. Readers import this without the rest of the daemon."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

APP_NAME = "nki-kernel-agent"

INBOX = "inbox"

INSTANCE_LOCK = "agentd.instance"
"""A lock that only daemons take. It tells a second daemon from a foreground run that owns the home."""


def resolve_home(option: str | Path | None, env: Mapping[str, str]) -> Path:
    """Return the home: `option`, else `$STATE_DIRECTORY`, else a folder in the user's state directory."""
    if option is not None:
        home = Path(option).expanduser().absolute()
        return home.resolve() if ".." in home.parts else home  # a jail lacks the folder before the ".."
    if service := env.get("STATE_DIRECTORY"):
        return Path(service.split(":")[0])  # systemd separates several folders with colons
    xdg = Path(env.get("XDG_STATE_HOME", ""))
    base = xdg if xdg.is_absolute() else Path.home() / ".local" / "state"
    return base / APP_NAME


def inbox_folder(home: Path) -> Path:
    """Return the inbox folder of `home`."""
    return home / INBOX


def waiting_commands(home: Path) -> list[Path]:
    """Return the files of waiting commands, in the order in which they will be taken."""
    files = (path for path in inbox_folder(home).glob("*.json") if not path.name.startswith("."))
    return sorted(files, key=lambda path: path.stem)


class HomeType(click.Path):
    """A path option that refuses the empty string: an unset variable must not mean the working directory."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not os.fspath(value):
            self.fail("a home cannot be the empty path", param, ctx)
        return super().convert(value, param, ctx)


HOME = HomeType(path_type=Path)
