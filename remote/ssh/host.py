"""A host as the user names it: an address, and what this project may use there.

Nothing here opens a connection or imports asyncssh, because the configuration is read with it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from remote.ssh.errors import BadHostError

DEFAULT_WORKDIR = ".cache/nki-kernel-agent"
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
_NAME = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]{0,253}[A-Za-z0-9_])?")
_V6 = re.compile(r"[0-9A-Fa-f:.]{2,45}(%[A-Za-z0-9]+)?")
_PATH = re.compile(r"[^\x00-\x1f\x7f]{1,512}")


@dataclass(frozen=True, slots=True)
class HostSpec:
    """Where to log in, and what may be used there.

    `name` may be an alias of ssh_config. `user` and `port` are left to ssh_config where None. `python` is the
    interpreter on the host, None to look for the SDK's. `workdir` is relative to the user's home there unless
    it begins with /. `cores` are the device cores that may be used, None for all. `slots` bounds the
    evaluations in progress there, None for as many as it has CPUs.
    """

    name: str
    user: str | None = None
    port: int | None = None
    tags: frozenset[str] = frozenset()
    python: str | None = None
    workdir: str = DEFAULT_WORKDIR
    cores: tuple[int, ...] | None = None
    slots: int | None = None

    def __post_init__(self) -> None:
        for what, path in (("workdir", self.workdir), ("python", self.python)):
            if path is not None and (not _PATH.fullmatch(path) or path.startswith("-")):
                raise BadHostError(f"{self.address}: {what} {path!r} is not a path")
        if self.workdir.startswith("~"):
            home = self.workdir.removeprefix("~/")
            if home == self.workdir:
                raise BadHostError(f"{self.address}: workdir {self.workdir!r} names another user's home")
            object.__setattr__(self, "workdir", home)
        if self.cores is not None and (not self.cores or min(self.cores) < 0):
            raise BadHostError(f"{self.address}: cores must name at least one device core, counted from 0")

    @property
    def address(self) -> str:
        """`[user@]host[:port]`, as written in a configuration."""
        name = f"[{self.name}]" if ":" in self.name and self.port else self.name
        user = f"{self.user}@" if self.user else ""
        return user + name + (f":{self.port}" if self.port else "")

    @property
    def login_command(self) -> str:
        """The command with which a person logs in there."""
        port = f"-p {self.port} " if self.port else ""
        return f"ssh {port}{self.user}@{self.name}" if self.user else f"ssh {port}{self.name}"

    @classmethod
    def parse(cls, text: str, **options: object) -> HostSpec:
        """Return the host that `[user@]host[:port]` names; `options` are the other fields.

        Raises:
            BadHostError: the address is invalid.
        """
        user, at, place = text.strip().rpartition("@")
        if at and not _USER.fullmatch(user):
            raise _bad_address(text, f"{user!r} is not a user's name")
        name, port = _split_port(text, place)
        if not (_NAME.fullmatch(name) or _V6.fullmatch(name)):
            raise _bad_address(text, f"{name!r} is not a host's name")
        return cls(name=name, user=user or None, port=port, **options)  # type: ignore[arg-type]


def _split_port(text: str, place: str) -> tuple[str, int | None]:
    """Return name and port of `host`, `host:port`, `[v6]`, `[v6]:port` or a bare IPv6 address."""
    if place.startswith("["):
        name, closed, rest = place[1:].partition("]")
        if not closed or (rest and not rest.startswith(":")):
            raise _bad_address(text, "its brackets do not enclose an address")
        port = rest[1:] if rest else None
    elif place.count(":") == 1:
        name, _, port = place.partition(":")
    else:
        name, port = place, None
    if port is None:
        return name, None
    if not re.fullmatch(r"[0-9]{1,5}", port) or not 0 < int(port) < 1 << 16:
        raise _bad_address(text, f"{port!r} is not a port")
    return name, int(port)


def _bad_address(text: str, why: str) -> BadHostError:
    return BadHostError(f"{text!r} is not an address of the form [user@]host[:port]: {why}")
