"""Wraps systemd for `agentctl service`: where unit files are, faults in a unit, and the state of a
service.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from agentctl.systemd_unit import SERVICE_USER, STATE_FOLDER, UNIT_NAME, ServiceScope
from daemon.errors import DaemonError

SYSUSERS = Path("/etc/sysusers.d") / f"{STATE_FOLDER}.conf"

SHOWN_PROPERTIES = (
    "LoadState", "ActiveState", "SubState", "StatusText", "Result", "MainPID", "NRestarts",
    "ActiveEnterTimestamp", "ExecMainStatus", "MemoryCurrent", "CPUUsageNSec", "UnitFileState",
)  # fmt: skip
"""The properties of a service that are shown."""

_SCORE = re.compile(r"Overall exposure level for \S+: ([\d.]+) (\w+)")


class ServiceFailed(DaemonError):  # noqa: N818 - named for what happened
    """systemd refused; the message is systemd's."""

    default_code = "service_failed"


@dataclass(frozen=True, slots=True)
class ExposureScore:
    """The score of `systemd-analyze security`, from 0 (nothing is exposed) to 10."""

    exposure: float
    word: str

    def __str__(self) -> str:
        return f"{self.exposure} of 10 ({self.word})"


@dataclass(frozen=True, slots=True)
class ServiceManager:
    """The service manager of the system, or of this user."""

    scope: ServiceScope
    env: Mapping[str, str]

    @property
    def unit_path(self) -> Path:
        """The path of the unit file."""
        if self.scope is ServiceScope.SYSTEM:
            return Path("/etc/systemd/system") / UNIT_NAME
        base = Path(self.env.get("XDG_CONFIG_HOME") or Path.home() / ".config")
        return base / "systemd" / "user" / UNIT_NAME

    @property
    def is_running(self) -> bool:
        """Whether this manager runs, so that it can start a service."""
        runtime = Path(self.env.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}")
        folder = Path("/run") if self.scope is ServiceScope.SYSTEM else runtime
        return (folder / "systemd" / ("system" if self.scope is ServiceScope.SYSTEM else "private")).exists()

    def find_unit_faults(self, text: str) -> list[str]:
        """Return the faults that `systemd-analyze verify` finds in a unit; its exit status is not
        reliable.
        """
        return [
            line
            for line in self._analyze_unit("verify", "--man=no", text=text).splitlines()
            if UNIT_NAME in line
        ]

    def exposure_score(self, text: str) -> ExposureScore | None:
        """Return how exposed the unit leaves its service; None if systemd is too old to say."""
        found = _SCORE.search(self._analyze_unit("security", "--offline=true", "--no-pager", text=text))
        return ExposureScore(float(found[1]), found[2]) if found else None

    def _analyze_unit(self, *arguments: str, text: str) -> str:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / UNIT_NAME
            file.write_text(text, encoding="utf-8")
            done = self._run_program("systemd-analyze", *arguments, str(file), check=False)
        return done.stdout + done.stderr

    def systemctl(self, *arguments: str) -> str:
        """Run systemctl and return its output.

        Raises:
            ServiceFailed: it failed, or is not installed.
        """
        return self._run_program("systemctl", *arguments).stdout

    def properties(self) -> dict[str, str]:
        """Return the properties `SHOWN_PROPERTIES` of the service."""
        text = self.systemctl("show", UNIT_NAME, f"--property={','.join(SHOWN_PROPERTIES)}")
        return dict(line.split("=", 1) for line in text.splitlines() if "=" in line)

    def create_user(self) -> None:
        """Create the user of a system service, if it does not exist."""
        write_system_file(
            SYSUSERS, f'u {SERVICE_USER} - "Kernel optimisation daemon" /var/lib/{STATE_FOLDER}\n'
        )
        self._run_program("systemd-sysusers", str(SYSUSERS), user_flag=False)

    def _run_program(
        self, program: str, *arguments: str, check: bool = True, user_flag: bool = True
    ) -> subprocess.CompletedProcess[str]:
        if shutil.which(program) is None:
            raise ServiceFailed(f"{program} is not installed", hint="a service needs systemd")
        scope = ["--user"] if user_flag and self.scope is ServiceScope.USER else []
        done = subprocess.run(
            [program, *scope, *arguments],
            capture_output=True,
            text=True,
            check=False,
            env={**self.env, "LC_ALL": "C.UTF-8", "SYSTEMD_COLORS": "0"},
        )
        if check and done.returncode:
            said = (done.stderr or done.stdout).strip()
            words = " ".join(word for word in arguments if not word.startswith("-"))
            raise ServiceFailed(f"{program} {words}: {said or f'status {done.returncode}'}")
        return done


def write_system_file(path: Path, text: str) -> None:
    """Write a file atomically, and create its folders.

    Raises:
        ServiceFailed: it may not be written.
    """
    part = path.with_name(f".{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(text, encoding="utf-8")
        part.chmod(0o644)
        part.rename(path)
    except OSError as error:
        hint = "for all users this takes root; for you alone, --user" if error.errno in (1, 13) else None
        raise ServiceFailed(f"{path}: {error.strerror}", code="not_permitted", hint=hint) from error
