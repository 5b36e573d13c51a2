"""Starts an `agentd` for a home that nobody owns, if the server was asked to, and ends it with the server."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from agentctl.command_answers import is_owned
from agentctl.mcp.answers import RefusedCall

START_SECONDS = 30.0
STOP_SECONDS = 30.0
LOOK_SECONDS = 0.05


@dataclass
class OwnerStarter:
    """The `agentd` of a server's home; `is_wanted`: the server may start one."""

    home: Path
    is_wanted: bool = False
    _process: subprocess.Popen[bytes] | None = None
    _starting: threading.Lock = field(default_factory=threading.Lock)

    def ensure_owner(self) -> None:
        """Start an `agentd` if nobody owns the home and one is wanted.

        Raises:
            RefusedCall: it ended at once, or does not take the home.
        """
        if not self.is_wanted:
            return
        with self._starting:
            if is_owned(self.home):
                return
            if self._process is None or self._process.poll() is not None:
                command = [sys.executable, "-m", "daemon", "--home", str(self.home)]
                self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=sys.stderr)
            self._wait_for_owner(self._process)

    def _wait_for_owner(self, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + START_SECONDS
        while not is_owned(self.home):
            if process.poll() is not None:
                hint = f"Run `agentd --home {self.home}` in a shell to see why."
                raise RefusedCall("no_owner", f"agentd ended with status {process.returncode}", hint)
            if time.monotonic() >= deadline:
                raise RefusedCall("no_owner", f"agentd did not take the home within {START_SECONDS:g} s")
            time.sleep(LOOK_SECONDS)

    def stop(self) -> None:
        """End the `agentd` that this server started; its runs can be resumed."""
        if self._process is None or self._process.poll() is not None:
            return
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
