"""The state of the hosts that kernels run on, as the process that uses them last reported it."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from state.errors import NoLog
from state.host_status import HostStatus, read_host_status
from state.reader import LogReader

UNUSED = "unused"
"""The state of a host that nobody uses now."""


@dataclass(frozen=True, slots=True)
class HostView:
    """A host that judges kernels. Times are UTC in ISO 8601.

    `state` is connecting, up, resting (it is asked again at `until`), quarantined (its times do not
    compare), set_aside (it is not what runs need) or unused. `why` explains the state, and `remedy` says
    how to mend it or to use the host more. Of `slots` evaluations, `in_flight` are under way there, and
    `waiting` wait for any host. `done` evaluations ended normally there, `lost` ones did not. `ratio` is
    the time of the calibration kernel relative to other hosts; `compares` is false if hosts disagree
    about it and nobody can say which one is wrong.
    """

    name: str
    state: str
    why: str | None = None
    remedy: str | None = None
    until: str | None = None
    heard: str | None = None
    device: str | None = None
    toolchain: str | None = None
    tags: tuple[str, ...] = ()
    slots: int = 0
    in_flight: int = 0
    waiting: int = 0
    done: int = 0
    lost: int = 0
    ratio: float | None = None
    compares: bool = True


def active_hosts(reader: LogReader, home: Path, *, running: bool) -> tuple[HostView, ...]:
    """Return the hosts in use; none if nobody owns the home (`running` is false)."""
    found = host_views(home, running=running, named=hosts_of_runs(reader)) if running else ()
    return tuple(one for one in found if one.state != UNUSED)


def hosts_of_runs(reader: LogReader) -> set[str]:
    """Return the hosts of runs that have not ended."""
    live = (str(row["run"]) for row in reader.run_rows() if not row["ended"])
    return {host.address for run in live for host in reader.run_state(run).config.hosts}


def list_hosts(home: Path, *, running: bool, configured: Iterable[str]) -> tuple[HostView, ...]:
    """Return the configured hosts, and those of runs that have not ended.

    Raises:
        state.errors.StateError: the log cannot be used.
    """
    named = set(configured)
    with suppress(NoLog), LogReader.open(home) as reader:
        named |= hosts_of_runs(reader)
    return host_views(home, running=running, named=named)


def host_views(home: Path, *, running: bool, named: Iterable[str]) -> tuple[HostView, ...]:
    """Return the hosts of these names, sorted, with their last known state.

    Other hosts are left out; the home forgets them in time.
    """
    stood = {one.address: one for one in read_host_status(home)}
    return tuple(
        _host_view(stood[name], running=running) if name in stood else HostView(name, UNUSED)
        for name in sorted(set(named))
    )


def _host_view(one: HostStatus, *, running: bool) -> HostView:
    used = running and one.state != "closed"
    return HostView(
        name=one.address,
        state=one.state if used else UNUSED,
        why=one.why,
        remedy=one.remedy,
        until=_iso_time(one.until) if used else None,
        heard=_iso_time(one.heard),
        device=one.device,
        toolchain=one.toolchain,
        tags=one.tags,
        slots=one.slots,
        in_flight=one.running if used else 0,
        waiting=one.waiting if used else 0,
        done=one.done,
        lost=one.lost,
        ratio=one.ratio,
        compares=one.compares or not used,
    )


def _iso_time(time: datetime | None) -> str | None:
    return None if time is None else time.isoformat(timespec="seconds")
