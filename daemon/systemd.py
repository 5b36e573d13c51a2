"""Talks to the service manager: readiness, heartbeats, status lines and credentials.

The protocol is sd_notify(3): datagrams to the socket that NOTIFY_SOCKET names. Without that variable,
nothing is sent.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

_SEND_SECONDS = 1.0
_STATUS_LENGTH = 200


class ServiceNotifier:
    """Tells the service manager how this process is doing.

    `watchdog_seconds` is how long the manager waits for a heartbeat; None if it expects none.
    """

    def __init__(self, address: str | None, *, watchdog_seconds: float | None = None) -> None:
        self._address = address
        self.watchdog_seconds = watchdog_seconds if address else None
        self._status = ""

    @classmethod
    def from_env(cls, env: Mapping[str, str], *, pid: int | None = None) -> ServiceNotifier:
        """Return the notifier that `env` describes, for the process `pid` (None: this one)."""
        meant = env.get("WATCHDOG_PID") in (None, str(pid or os.getpid()))
        usec = env.get("WATCHDOG_USEC", "") if meant else ""
        return cls(env.get("NOTIFY_SOCKET"), watchdog_seconds=int(usec) / 1e6 if usec.isdecimal() else None)

    @property
    def is_listening(self) -> bool:
        """Whether a service manager listens."""
        return bool(self._address)

    def notify_ready(self) -> None:
        self._send_message("READY=1")

    def send_heartbeat(self) -> None:
        """Send the heartbeat that the watchdog waits for."""
        self._send_message("WATCHDOG=1")

    def set_status(self, text: str) -> None:
        """Set the status line that people see; an unchanged text is not sent again."""
        line = " ".join(text.split())
        line = line if len(line) <= _STATUS_LENGTH else f"{line[: _STATUS_LENGTH - 3]}..."
        if line != self._status and self._send_message(f"STATUS={line}"):
            self._status = line

    def extend_timeout(self, seconds: float) -> None:
        """Ask for `seconds` from now for the start or stop that is under way."""
        self._send_message(f"EXTEND_TIMEOUT_USEC={int(seconds * 1e6)}")

    def notify_stopping(self) -> None:
        self._send_message("STOPPING=1")

    def _send_message(self, message: str) -> bool:
        if not self._address:
            return False
        address = f"\0{self._address[1:]}" if self._address.startswith("@") else self._address
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.settimeout(_SEND_SECONDS)  # a manager that does not listen must not block us
            # an unconnected socket always looks writable, so waiting on a full queue would spin
            sender.connect(address)
            sender.send(message.encode())
            return True
        return False


NULL_NOTIFIER = ServiceNotifier(None)
"""For a process that no service manager started."""


def credential_files(env: Mapping[str, str]) -> dict[str, Path]:
    """Return the credential files that the service manager passed, by name."""
    folder = env.get("CREDENTIALS_DIRECTORY")
    return {path.name: path for path in sorted(Path(folder).iterdir())} if folder else {}
