"""The process that owns a home: an `agentd`, a foreground `agentctl`, or none."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from daemon.home_paths import INSTANCE_LOCK, waiting_commands
from state.home import HomeLayout
from state.lock import read_owner


@dataclass(frozen=True, slots=True)
class OwnerProcess:
    """`state` is running or stopped, `kind` is agentd or agentctl, `since` is UTC in ISO 8601.

    `queued` counts commands that wait in the inbox. `config_refused` lists the faults of an edit of the
    configuration file that the owner refused. `waits_for` is what its appends wait for.
    """

    state: str
    kind: str | None
    pid: int | None
    since: str | None
    home: str
    queued: int
    config_refused: str | None = None
    waits_for: str | None = None

    @property
    def is_running(self) -> bool:
        return self.state == "running"


def find_owner_process(home: Path, *, refused: str | None = None) -> OwnerProcess:
    """Return the owner of `home`.

    Raises:
        HomeUnreadable: its lock may not be read.
    """
    holder = read_owner(HomeLayout(home).lock)
    service = read_owner(home / INSTANCE_LOCK)
    kind = "agentd" if service and holder and service.pid == holder.pid else "agentctl"
    return OwnerProcess(
        state="running" if holder else "stopped",
        kind=kind if holder else None,
        pid=holder.pid if holder else None,
        since=iso_from_us(holder.since * 1e6) if holder else None,
        home=str(home),
        queued=len(waiting_commands(home)),
        config_refused=refused,
        waits_for=holder.waits_for if holder else None,
    )


def is_service_waiting(home: Path) -> bool:
    """Return whether an `agentd` waits until another process leaves the home."""
    holder, service = read_owner(HomeLayout(home).lock), read_owner(home / INSTANCE_LOCK)
    return service is not None and (holder is None or service.pid != holder.pid)


def iso_from_us(us: float) -> str:
    """Return a time in microseconds since 1970 as UTC in ISO 8601, to the second."""
    return datetime.fromtimestamp(us / 1e6, UTC).isoformat(timespec="seconds")
