"""The home directory: its files, how it is created, and when it is refused.

One home holds one log. `events.db` (with SQLite's `-wal` and `-shm`) is the log, `HEAD` its anchor, and
`agentd.lock` names the owner. A home is created with mode 0700. If a group may enter it (a service's home,
0750), that group can read its files, which have mode 0640.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from state.errors import READ_ONLY, HomeOnNetwork, HomeUnreadable, NoLog, StorageFailed, to_home_error

NETWORK_FILESYSTEMS = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "afs", "ceph", "9p", "fuse.sshfs", "fuse.glusterfs", "glusterfs"}
)
"""File systems on which advisory locks or fsync do not do what SQLite's WAL needs."""

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
    "known_hosts*",
    "judge.secret",
    "agentctl.log",
    "prompts",
    "calibrations",
    ".*",
)
"""Names that belong to the home, in lower case. Files that a person asks for are never written there."""


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
        """Where replaced logs are kept."""
        return self.home / "replaced"

    @property
    def head(self) -> Path:
        return self.home / "HEAD"

    @property
    def lock(self) -> Path:
        return self.home / "agentd.lock"


def is_home_file(name: str) -> bool:
    """Return whether this name belongs to the home; case is ignored, as some file systems do."""
    return any(fnmatchcase(name.casefold(), pattern) for pattern in HOME_FILES)


def filesystem_type(path: Path, mounts: str) -> str | None:
    """Return the type of the file system that holds `path`; `mounts` is the text of /proc/mounts."""
    best: tuple[int, str] | None = None
    for line in mounts.splitlines():
        fields = line.split()
        point = Path(fields[1].replace("\\040", " "))
        if path.is_relative_to(point) and (best is None or len(point.parts) >= best[0]):
            best = (len(point.parts), fields[2])
    return None if best is None else best[1]


def prepare_home(home: Path, *, create: bool) -> HomeLayout:
    """Return the layout of a home that this process may write; create the directory if asked to.

    Raises:
        NoLog: the directory is missing, and `create` is false.
        HomeUnreadable: not a directory, not writable, or another user's while this process is root.
        StorageFull, StorageFailed: the disk is full, read-only, or failed.
        HomeOnNetwork: it lies on a network file system.
    """
    try:
        require_directory(home)
        if create:
            home.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = home.is_dir()
        read_only = found and bool(os.statvfs(home).f_flag & os.ST_RDONLY)
        if found:
            _refuse_foreign(home)
    except OSError as error:
        raise to_home_error(error, home) from error
    if not found:
        raise missing_home_error(home)
    if read_only:
        raise StorageFailed(f"{home}: {READ_ONLY}")
    if not os.access(home, os.R_OK | os.W_OK | os.X_OK):
        raise HomeUnreadable(f"{home}: no permission to write here")
    _refuse_network(home.resolve())
    return HomeLayout(home)


def home_identity(home: Path) -> tuple[int, int] | None:
    """Return what tells a home from another one at the same path; None if there is none."""
    try:
        found = home.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def require_directory(home: Path) -> None:
    """Refuse a home that exists and is not a directory; raises HomeUnreadable."""
    if home.exists() and not home.is_dir():
        raise HomeUnreadable(f"{home}: a home is a directory, this is a file")


def missing_home_error(home: Path) -> NoLog:
    """Return the error for a missing home: most likely nothing was started yet."""
    return NoLog(f"{home}: no such directory; no runs yet, `agentctl run` starts one")


def _refuse_foreign(home: Path) -> None:
    """Refuse root a home that somebody else may change, for example one that they made just now.

    Root acts as the user of a home, but where there is none yet it may find out too early who that is.
    """
    if os.geteuid() != 0:
        return
    for found in (home.lstat(), home.stat()):
        if found.st_uid != 0:
            raise HomeUnreadable(f"{home}: belongs to user {found.st_uid} and not to root; try again")


def _refuse_network(home: Path) -> None:
    if not MOUNTS.exists():
        return
    kind = filesystem_type(home, MOUNTS.read_text(encoding="utf-8"))
    if kind in NETWORK_FILESYSTEMS:
        raise HomeOnNetwork(f"{home}: is on {kind}; the log needs a local disk, use another --home")
