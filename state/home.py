"""The home directory: which files it holds, how it is made, and when it is refused.

One home is one log. `events.db` (with SQLite's `-wal` and `-shm`) is the log, `HEAD` its anchor,
`agentd.lock` says who owns it. A home is made 0700; one that a group may enter (a service's, 0750) is
readable by that group, whose files are 0640.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from state.errors import HomeOnNetwork, HomeUnreadable, NoLog

NETWORK_FILESYSTEMS = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "afs", "ceph", "9p", "fuse.sshfs", "fuse.glusterfs", "glusterfs"}
)
"""Where advisory locks or fsync do not mean what SQLite's WAL needs them to mean."""

MOUNTS = Path("/proc/self/mounts")

HOME_FILES = (
    "events.db*",
    "head*",
    "agentd.*",
    "reserve",
    "replaced",
    "inbox",
    "config.toml",
    "cache",
    "hosts.json",
    "known_hosts",
)
"""What in a home is its own, in small letters: nothing that a person asks for is written there."""


@dataclass(frozen=True, slots=True)
class HomeLayout:
    """The files of one home; `name` is its database, or another one in the same folder."""

    home: Path
    name: str = "events.db"

    @property
    def database(self) -> Path:
        return self.home / self.name

    @property
    def wal(self) -> Path:
        return self.home / f"{self.name}-wal"

    @property
    def shm(self) -> Path:
        return self.home / f"{self.name}-shm"

    @property
    def reserve(self) -> Path:
        return self.home / "reserve"

    @property
    def replaced_logs(self) -> Path:
        """Where logs are kept that others took the place of."""
        return self.home / "replaced"

    @property
    def head(self) -> Path:
        return self.home / "HEAD"

    @property
    def lock(self) -> Path:
        return self.home / "agentd.lock"


def is_home_file(name: str) -> bool:
    """Return whether a home's file or folder of this name is its own, on any file system."""
    return any(fnmatchcase(name.casefold(), pattern) for pattern in HOME_FILES)


def filesystem_type(path: Path, mounts: str) -> str | None:
    """Return the type of the file system that holds `path`, by a text in the format of /proc/mounts."""
    best: tuple[int, str] | None = None
    for line in mounts.splitlines():
        fields = line.split()
        point = Path(fields[1].replace("\\040", " "))
        if path.is_relative_to(point) and (best is None or len(point.parts) >= best[0]):
            best = (len(point.parts), fields[2])
    return None if best is None else best[1]


def prepare_home(home: Path, *, create: bool) -> HomeLayout:
    """Return the layout of a home that this process may write, making the directory if asked to.

    Raises:
        NoLog: missing and not to be created.
        HomeUnreadable: not a directory, or not writable.
        HomeOnNetwork: it lies on a network file system.
    """
    try:
        require_directory(home)
        if create:
            home.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = home.is_dir()
    except OSError as error:
        raise HomeUnreadable(f"{home}: {error.strerror}") from error
    if not found:
        raise missing_home_error(home)
    if not os.access(home, os.R_OK | os.W_OK | os.X_OK):
        raise HomeUnreadable(f"{home}: no permission to write here")
    _refuse_network(home.resolve())
    return HomeLayout(home)


def require_directory(home: Path) -> None:
    """Refuse a home that is there and no directory; raises HomeUnreadable."""
    if home.exists() and not home.is_dir():
        raise HomeUnreadable(f"{home}: a home is a directory, this is a file")


def missing_home_error(home: Path) -> NoLog:
    """Return the error for a home that is not there: most likely nothing was started yet."""
    return NoLog(f"{home}: no such directory; no runs yet, `agentctl run` starts one")


def _refuse_network(home: Path) -> None:
    if not MOUNTS.exists():
        return
    kind = filesystem_type(home, MOUNTS.read_text(encoding="utf-8"))
    if kind in NETWORK_FILESYSTEMS:
        raise HomeOnNetwork(f"{home}: is on {kind}; the log needs a local disk, use another --home")
