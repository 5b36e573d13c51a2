"""How hosts stand, published for whoever looks: a small file of the home, replaced whole, no part of the log.

Which host is up at the moment decides nothing that a run finds, and would fill a log in days. So the process
that uses hosts writes it here, and readers take it for what was known when it was written.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError

from state.model.base import FrozenModel

FILE_NAME = "hosts.json"
MAX_HOSTS = 256
"""Hosts that are remembered; those heard of longest ago are forgotten."""

MAX_BYTES = 4 << 20

HostStateName = Literal["connecting", "up", "resting", "quarantined", "set_aside", "closed"]


class HostStatus(FrozenModel):
    """How one host stands. Times are UTC; `why` is there where it is not up, and where it is up and its times
    may not compare with those of others (`compares`); `remedy` is what to do about that, or for more use of
    a host that is up.

    `resting`: it did not answer, and is asked again at `until`; `quarantined`: it times the calibration
    kernel `ratio` times as long as the others; `set_aside`: it is not like the others, or lacks a tag;
    `closed`: nobody uses it now. `waiting` are the evaluations that wait for any host.
    """

    address: str
    state: HostStateName
    since: datetime
    why: str | None = None
    remedy: str | None = None
    until: datetime | None = None
    heard: datetime | None = None
    device: str | None = None
    toolchain: str | None = None
    tags: tuple[str, ...] = ()
    slots: int = Field(default=0, ge=0)
    running: int = Field(default=0, ge=0)
    waiting: int = Field(default=0, ge=0)
    done: int = Field(default=0, ge=0)
    lost: int = Field(default=0, ge=0)
    ratio: float | None = None
    compares: bool = True


class HostStatusFile(FrozenModel):
    """What the file holds, hosts in the order of their names."""

    version: Literal[1] = 1
    hosts: tuple[HostStatus, ...] = ()


def read_host_status(home: Path) -> tuple[HostStatus, ...]:
    """Return how hosts stood when that was last written; nothing where nobody has, or the file is damaged."""
    try:
        with (home / FILE_NAME).open("rb") as file:
            return HostStatusFile.model_validate_json(file.read(MAX_BYTES)).hosts
    except (OSError, ValidationError):
        return ()


def publish_host_status(home: Path, standings: Iterable[HostStatus]) -> None:
    """Write how some hosts stand; what is known of others stays, as long as there is room.

    Raises:
        OSError: the file cannot be written; the one before it is as it was.
    """
    known = {one.address: one for one in read_host_status(home)} | {one.address: one for one in standings}
    _write_file(home, known.values())


def forget_host(home: Path, address: str) -> bool:
    """Drop what is known of a host; return whether there was anything.

    Raises:
        OSError: the file cannot be written; the one before it is as it was.
    """
    known = read_host_status(home)
    left = [one for one in known if one.address != address]
    if len(left) == len(known):
        return False
    _write_file(home, left)
    return True


def _write_file(home: Path, known: Iterable[HostStatus]) -> None:
    newest = sorted(known, key=lambda one: one.heard or one.since)[-MAX_HOSTS:]
    board = HostStatusFile(hosts=tuple(sorted(newest, key=lambda one: one.address)))
    part = home / f".{FILE_NAME}.{os.getpid()}.part"
    try:
        part.write_text(board.model_dump_json(exclude_defaults=True), encoding="utf-8")
        part.replace(home / FILE_NAME)
    except OSError:
        part.unlink(missing_ok=True)
        raise
