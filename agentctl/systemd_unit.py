"""The systemd unit of `agentd`: the files of `deploy/`, filled in for this installation.

A unit is `agentd.service`, followed by the part for its scope and by what differs between installations:
where the program is, which home a user's service has, and which credentials it gets.
"""

from __future__ import annotations

import re
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from daemon.errors import DaemonError

UNIT_NAME = "agentd.service"
SERVICE_USER = "nki-agent"
"""The user and group of a system service; members of the group may read its home."""

STATE_FOLDER = "nki-kernel-agent"
"""The folder of a system service in /var/lib; it is its home."""

DEPLOY = Path(__file__).parents[1] / "deploy"
_CREDENTIAL = re.compile(r"[a-z0-9_.-]{1,100}", re.ASCII)
_USUAL_FOLDERS = ("/usr", "/opt", "/srv", "/var/lib")
"""Folders that every service sees; a program outside them must be mounted into the service."""


class ServiceScope(StrEnum):
    """Whose service manager runs the unit."""

    SYSTEM = "system"
    USER = "user"


class BadUnit(DaemonError):  # noqa: N818 - named for what it is about
    """The unit cannot be made here."""

    default_code = "bad_unit"


@dataclass(frozen=True, slots=True)
class ServiceUnit:
    """The settings of one service: its scope, its credentials by name, and a user's home."""

    scope: ServiceScope
    credentials: Mapping[str, Path] = field(default_factory=dict)
    home: Path | None = None

    def __post_init__(self) -> None:
        for name, path in self.credentials.items():
            if _CREDENTIAL.fullmatch(name) is None:
                raise BadUnit(f"{name!r} is no name of a credential: a-z, 0-9, '_', '.' and '-'")
            if not path.is_file():
                raise BadUnit(f"credential {name}: {path} is not a file")
        for path in self.named_paths():
            if re.search(r"[\s:%$\"'\\]", str(path)):
                raise BadUnit(f"{path}: a unit cannot name a path with spaces, colons, quotes, '%' or '$'")

    @property
    def state_directory(self) -> Path:
        """The home that the service will use."""
        return self.home or Path("/var/lib") / STATE_FOLDER

    def named_paths(self) -> list[Path]:
        """Return the paths that the unit names."""
        return [*self.credentials.values(), *([self.home] if self.home else []), *program_folders()]

    def render_text(self) -> str:
        """Return the unit file.

        Raises:
            BadUnit: the installation lacks the files that the unit is made from.
        """
        values = {"agentd": " ".join(self._exec_command()), "user": SERVICE_USER, "state": STATE_FOLDER}
        parts = [_read_part(UNIT_NAME), _read_part(f"{self.scope}.conf")]
        filled = re.sub(r"@(\w+)@", lambda found: values[found[1]], "".join(parts))
        return (
            filled
            + "\n# --- for this installation\n[Service]\n"
            + "".join(f"{s}\n" for s in self._service_settings())
        )

    def _exec_command(self) -> Iterator[str]:
        yield str(Path(sys.executable).with_name("agentd"))
        if self.home is not None:
            yield from ("--home", str(self.home))

    def _service_settings(self) -> Iterator[str]:
        yield from (f"BindReadOnlyPaths={path}" for path in program_folders())
        if self.home is not None:
            yield f"BindPaths={self.home}"
        yield from (f"LoadCredential={name}:{path}" for name, path in sorted(self.credentials.items()))


def unreadable_folders() -> list[Path]:
    """Return the program's folders that only their owner may read.

    Their parent folders do not matter, because a service is shown the folders themselves.
    """
    return [path for path in program_folders() if path.stat().st_mode & 0o005 != 0o005]


def program_folders() -> list[Path]:
    """Return the program's folders outside `_USUAL_FOLDERS`: checkout, environment, interpreter."""
    places = [DEPLOY.parent, Path(sys.prefix), Path(sys.base_prefix), Path(sysconfig.get_path("purelib"))]
    wanted = [path for path in places if not any(path.is_relative_to(usual) for usual in _USUAL_FOLDERS)]
    return [
        path
        for path in dict.fromkeys(wanted)
        if not any(path != other and path.is_relative_to(other) for other in wanted)
    ]


def _read_part(name: str) -> str:
    try:
        return (DEPLOY / name).read_text(encoding="utf-8")
    except OSError as error:
        raise BadUnit(
            f"{DEPLOY / name}: {error.strerror}", hint="a service is installed from a checkout"
        ) from error
