"""Where replicas of a log lie: a folder of this machine, or one on an SSH host.

A destination is the path of a folder, or `ssh://[USER@]HOST[:PORT]/PATH`. The host needs a shell with
`mkdir`, `ls`, `cat`, `dd`, `sync` and `mv`, and nothing of ours. Its key must be known, as for hosts that
judge kernels.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

from remote.errors import InfrastructureError
from state.replica import MAX_SEGMENT_BYTES, FolderStore, ReplicaStore

SCHEME = "ssh://"
DEADLINE_S = 20.0
PIECE_BYTES = 2 << 20
"""Bytes of a segment read by one command; a command's output is bounded."""

_WRITE = """umask 077; mkdir -p "$1" && cat > "$1/.$2.part" && sync "$1/.$2.part" &&
mv "$1/.$2.part" "$1/$2" && sync "$1"
"""

T = TypeVar("T")


def open_store(destination: str, home: Path, *, config: Path | None = None) -> ReplicaStore:
    """Return the replica at a destination; nothing is reached before it is used.

    `config` replaces the user's ssh_config.

    Raises:
        remote.ssh.errors.BadHostError: the address of a host is none.
    """
    if not destination.startswith(SCHEME):
        return FolderStore(Path(destination).expanduser())
    address, _, path = destination.removeprefix(SCHEME).partition("/")
    return SshStore(address, f"/{path}", home=home, config=config)


class SshStore:
    """A replica on an SSH host; usable from any thread."""

    def __init__(self, address: str, folder: str, *, home: Path, config: Path | None = None) -> None:
        from remote.ssh.host import HostSpec
        from remote.ssh.link import SshLink

        self._folder = folder
        self._link = SshLink(HostSpec.parse(address), home=home, config=config)
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="replica", daemon=True).start()

    def list_names(self) -> list[str]:
        return self._run('mkdir -p "$1" && ls -1 "$1"').decode().split("\n")

    def read(self, name: str, /) -> bytes:
        data = bytearray()
        while piece := self._run(
            'dd if="$1/$2" bs=65536 skip="$3" count=32 2>/dev/null', name, str(len(data) // 65536)
        ):
            data += piece
            if len(piece) < PIECE_BYTES or len(data) > MAX_SEGMENT_BYTES:
                break
        return bytes(data)

    def write(self, name: str, data: bytes, /) -> None:
        self._run(_WRITE, name, stdin=data)

    def _run(self, script: str, *arguments: str, stdin: bytes = b"") -> bytes:
        argv = ["sh", "-c", script, "sh", self._folder, *arguments]
        done = self._wait(self._link.run_command(argv, stdin=stdin, deadline_s=DEADLINE_S))
        if done.status != 0:
            said = done.stderr.decode(errors="replace").strip()[-500:]
            raise InfrastructureError("replica_failed", f"{self._link.host.address}:{self._folder}: {said}")
        return done.stdout

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()
