"""What process and disk are dealt: kills at any moment, errors at commits; and a writer without a thread.

A kill is what SIGKILL leaves: the files as the system has them at that moment, taken as a copy, on which
the world goes on. What the old process does while it is wound up happens to files that nobody looks at again.
"""

from __future__ import annotations

import asyncio
import random
import sqlite3
from collections.abc import Callable
from pathlib import Path

from state import writer
from state.appender import Appender
from state.errors import LogClosed
from state.turns import Turns

DISK_ERRORS = (
    ("log.before_commit", sqlite3.SQLITE_FULL),
    ("log.before_commit", sqlite3.SQLITE_IOERR),
    ("log.after_commit", sqlite3.SQLITE_IOERR),
)
PAUSES_S = (0, 0.001, 0.05, 0.5)
"""How long appends gather before they are stored."""

RARE = 10
"""How much likelier a kill is at places that are passed seldom: all but those of the commits."""


class Killed(KeyboardInterrupt):
    """Leaves the event loop at once, as only this kind of exception does."""


class Fates:
    """Takes the place of the fuse of `state.crash`: at each crash point it decides what happens."""

    def __init__(self, seed: int, kill: float, disk: float, mishaps: int, save: Callable[[], None]) -> None:
        """`save` is called when the process is killed: it takes the files as they are."""
        self.chosen = random.Random(f"fates {seed}")
        self._odds = {"kill": kill, "disk": disk}
        self._save = save
        self.left = mishaps
        self.ghost = False
        self.counts = {"kill": 0, "disk": 0, "stop": 0}

    def spend(self, what: str) -> bool:
        """Count a mishap; return whether there was one left to happen."""
        if self.ghost or self.left == 0:
            return False
        self.left -= 1
        self.counts[what] += 1
        return True

    def kill(self) -> None:
        """Kill the process here."""
        if self.spend("kill"):
            self._save()
            self.ghost = True
            raise Killed

    def burn(self, name: str) -> None:
        """Pass a crash point."""
        if self.ghost:
            return
        rare = 1 if name.startswith("log.") else RARE
        if self.chosen.random() < rare * self._odds["kill"]:
            self.kill()
        codes = [code for place, code in DISK_ERRORS if place == name]
        if codes and self.chosen.random() < self._odds["disk"] and self.spend("disk"):
            error = sqlite3.OperationalError("the simulated disk failed")
            error.sqlite_errorcode = self.chosen.choice(codes)
            raise error


class SteppedWriter(writer.Writer):
    """The log's writer as a part of the event loop: when it takes its turns is drawn."""

    def __init__(
        self, appender: Appender, head_path: Path, fates: Fates, looked: Callable[[Appender], None]
    ) -> None:
        """`looked` is called after each turn that stored something."""
        self._appender = appender
        self._head_path = head_path
        self.turns = Turns()
        self._fates = fates
        self._looked = looked
        self._pending: list[writer.Request] = []
        self._timer: asyncio.TimerHandle | None = None
        self._house: asyncio.TimerHandle | None = None
        self._stopped = False
        self._anchored = -1
        self._anchored_at = writer.time.monotonic()

    @property
    def waiting(self) -> int:
        return len(self._pending)

    def submit(self, request: writer.Request) -> None:
        if self._stopped:
            raise LogClosed("the log is closed")
        self._pending.append(request)
        self._set_timer()

    def _set_timer(self) -> None:
        if self._timer is None:
            pause = self._fates.chosen.choice(PAUSES_S)
            self._timer = asyncio.get_running_loop().call_later(pause, self._turn)

    def stop(self) -> None:
        self._stopped = True
        for timer in (self._timer, self._house):
            if timer is not None:
                timer.cancel()
        while self._pending and not self._fates.ghost:
            self._turn()

    def _turn(self) -> None:
        self._timer = None
        if self._fates.ghost:
            return
        group, self._pending = self._pending[: writer.GROUP], self._pending[writer.GROUP :]
        with self.turns:
            self._commit(group)
            self._looked(self._appender)
            self._keep_house()
        if self._pending and not self._stopped:
            self._set_timer()
        if not self._stopped and self._house is None:
            self._house = asyncio.get_running_loop().call_later(writer.HEAD_EVERY_S, self._anchor_late)

    def _anchor_late(self) -> None:
        self._house = None
        if not self._fates.ghost:
            self._keep_house()
