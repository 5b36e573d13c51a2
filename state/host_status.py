"""The status of hosts, published in a small file of the home that is replaced as a whole.

It is not part of the log: which host is up at the moment does not affect a run's results, and would fill a
log within days. The process that uses hosts writes the file; readers get the status as of that time.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError

from state.atomic_files import atomic_write
from state.errors import HomeUnreadable
from state.home_files import read_home_file
from state.model.base import FrozenModel

FILE_NAME = "hosts.json"
MAX_HOSTS = 256
"""The most hosts that are kept; those not heard of for longest are dropped."""

MAX_BYTES = 4 << 20

HostStateName = Literal["connecting", "up", "resting", "quarantined", "set_aside", "closed"]


class HostStatus(FrozenModel):
    """The status of one host. Times are UTC.

    `why` explains why a host is not up, or why the times of a host that is up may not compare with others
    (`compares`). `remedy` says what to do about that, or how to use a host that is up more.

    `resting`: it did not answer, and is tried again at `until`. `quarantined`: it takes `ratio` times as long
    for the calibration kernel as the others. `set_aside`: it differs from the others, or lacks a tag.
    `closed`: no process uses it now. `waiting` counts the evaluations that wait for any host.
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
    """The file's content; hosts are sorted by name."""

    version: Literal[1] = 1
    hosts: tuple[HostStatus, ...] = ()


def read_host_status(home: Path) -> tuple[HostStatus, ...]:
    """Return the last published status of the hosts; nothing if there is none, or the file is damaged."""
    try:
        return HostStatusFile.model_validate_json(read_home_file(home, FILE_NAME, most=MAX_BYTES)).hosts
    except (OSError, HomeUnreadable, ValidationError):
        return ()


def publish_host_status(home: Path, standings: Iterable[HostStatus]) -> None:
    """Publish the status of some hosts; that of others stays, as long as there is room.

    Raises:
        OSError: the file cannot be written; the previous one is unchanged.
    """
    known = {one.address: one for one in read_host_status(home)} | {one.address: one for one in standings}
    _write_file(home, known.values())


def forget_host(home: Path, address: str) -> bool:
    """Drop a host's status; return whether there was one.

    Raises:
        OSError: the file cannot be written; the previous one is unchanged.
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
    with atomic_write(home / FILE_NAME) as part:
        part.write_text(board.model_dump_json(exclude_defaults=True), encoding="utf-8")
