"""A machine of its own for a test's SSH server: network, processes and boot id, made and ended by the test.

`dial` makes sockets in its network, for a proxy that lets the test in from outside. Killing the machine is
its power failing: nothing in it lives on.
"""

from __future__ import annotations

import contextlib
import ctypes
import shutil
import socket
import subprocess
import threading
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from tests.support.sshd import Sshd, descendants, wait_for

_CLONE_NEWNET = 0x40000000
_BOOT = """
set -e
ip link set lo up
mount --bind "$1" /proc/sys/kernel/random/boot_id
shift
exec "$@"
"""


class Machine:
    """Network and processes of one host. It runs as long as its server does."""

    def __init__(self, folder: Path, *, environment: Mapping[str, str] | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._boot_id = folder / "boot_id"
        self.sshd = Sshd(folder, inside=self._inside(), environment=environment)
        self._new_boot()

    def _inside(self) -> list[str]:
        apart = ["--net", "--pid", "--mount", "--mount-proc", "--fork", "--kill-child"]
        return ["unshare", *apart, "sh", "-c", _BOOT, "sh", str(self._boot_id)]

    def _new_boot(self) -> None:
        self._boot_id.write_text(f"{uuid.uuid4()}\n")

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.iptables_off()
        self.sshd.stop()

    def start(self) -> None:
        self.sshd.start()
        wait_for(self._answers, f"sshd in its namespace: {self.sshd.log()[-500:]}")

    def reboot(self) -> None:
        """Take its power away and give it back: no process lives on, what was in memory is gone."""
        self.sshd.stop()
        shutil.rmtree(self.sshd.leases, ignore_errors=True)
        self._new_boot()
        self.start()

    def _answers(self) -> bool:
        with contextlib.suppress(OSError), self.dial() as peer:
            peer.settimeout(5)
            peer.connect(("127.0.0.1", self.sshd.port))
            return peer.recv(4) == b"SSH-"
        return False

    def _pid(self) -> int:
        (first, *_) = descendants(self.sshd.pid)
        return first

    def _network(self) -> Path:
        return Path(f"/proc/{self._pid()}/ns/net")

    def dial(self) -> socket.socket:
        """Return a socket that is in the machine's network."""
        made: list[socket.socket] = []

        def make() -> None:
            # The machine may be off, or going off.
            with (
                contextlib.suppress(OSError, ValueError),
                Path(f"/proc/{self._pid()}/ns/net").open("rb") as network,
            ):
                if ctypes.CDLL(None, use_errno=True).setns(network.fileno(), _CLONE_NEWNET):
                    raise OSError(ctypes.get_errno(), "setns is refused")
                made.append(socket.socket())

        thread = threading.Thread(target=make)  # a thread of its own, because it moves there for good
        thread.start()
        thread.join()
        if not made:
            raise ConnectionRefusedError("the machine is off")
        return made[0]

    def iptables(self, *arguments: str) -> None:
        """Change what its network lets through."""
        command = ["nsenter", f"--net={self._network()}", "iptables", "-w", *arguments]
        subprocess.run(command, check=True, capture_output=True)

    def iptables_off(self) -> None:
        with contextlib.suppress(ValueError, subprocess.CalledProcessError, AssertionError):
            self.iptables("-F")
