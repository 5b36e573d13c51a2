"""How the hosts stand that kernels run on, as the process that uses them last said."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from state.board import HostStanding, read
from state.errors import NoLog
from state.reader import LogReader

UNUSED = "unused"
"""A host that nobody uses now."""


@dataclass(frozen=True, slots=True)
class Host:
    """A host that judges kernels. Times are UTC in ISO 8601.

    `state` is a word: connecting, up, resting (it is asked again at `until`), quarantined (its times do not
    compare), set_aside (it is not what runs need) or unused; `why` is for people, and
    `remedy` is what to do about it, or for more use of it. `in_flight` of `slots`
    evaluations are under way there, `waiting` for any host; `done` ended there as they should, `lost` not.
    `ratio` is how long the calibration kernel took, relative to other hosts; where hosts disagree about
    that, and nobody can say which is wrong, `compares` is false.
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


def hosts(reader: LogReader, home: Path, *, running: bool) -> tuple[Host, ...]:
    """Return the hosts that are in use; none while nobody owns the home, as `running` says."""
    found = known(home, running=running, named=of_runs(reader)) if running else ()
    return tuple(one for one in found if one.state != UNUSED)


def of_runs(reader: LogReader) -> set[str]:
    """Return the hosts that runs name which have not ended."""
    live = (str(row["run"]) for row in reader.listed() if not row["ended"])
    return {host.address for run in live for host in reader.state(run).config.hosts}


def listed(home: Path, *, running: bool, configured: Iterable[str]) -> tuple[Host, ...]:
    """Return the hosts that are configured, and those of runs which have not ended.

    Raises:
        state.errors.StateError: the log cannot be used.
    """
    named = set(configured)
    with suppress(NoLog), LogReader.open(home) as reader:
        named |= of_runs(reader)
    return known(home, running=running, named=named)


def known(home: Path, *, running: bool, named: Iterable[str]) -> tuple[Host, ...]:
    """Return the hosts of these names, by name: those that somebody used with how they stand, or stood.

    What nobody names any more is left out; the home forgets it in time.
    """
    stood = {one.address: one for one in read(home)}
    return tuple(
        _host(stood[name], running=running) if name in stood else Host(name, UNUSED)
        for name in sorted(set(named))
    )


def _host(one: HostStanding, *, running: bool) -> Host:
    used = running and one.state != "closed"
    return Host(
        name=one.address,
        state=one.state if used else UNUSED,
        why=one.why,
        remedy=one.remedy,
        until=_iso(one.until) if used else None,
        heard=_iso(one.heard),
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


def _iso(time: datetime | None) -> str | None:
    return None if time is None else time.isoformat(timespec="seconds")
