"""What process and disk are dealt: kills at any moment, errors at commits; and a writer without a thread.

A kill is what SIGKILL leaves: the files as the system has them at that moment, taken as a copy, on which
the world goes on; a commit that was being written may be there in part. What the old process does while it
is wound up happens to files that nobody looks at again.
"""

from __future__ import annotations

import asyncio
import random
import sqlite3
from collections import Counter
from collections.abc import Callable, Sequence

from state import writer
from state.appender import Appender
from state.errors import LogClosed
from state.home import HomeLayout

DISK_ERRORS = (
    ("log.before_commit", sqlite3.SQLITE_FULL, "no space, once"),
    ("log.before_commit", sqlite3.SQLITE_IOERR, "I/O error at a commit"),
    ("log.after_commit", sqlite3.SQLITE_IOERR, "I/O error after a commit"),
)
KILLED_AT = {
    "log.before_commit": "kill before a commit",
    "log.after_commit": "kill after a commit",
    "open": "kill in a start",
    "migrate": "kill in a start",
    "snapshot": "kill at a snapshot",
    "head": "kill at HEAD",
    "compaction": "kill in a compaction",
    "rewrite": "kill in a compaction",
    "host": "kill between a command and its run",
}
"""What a kill counts as, by the crash point or what its name begins with."""

TORN = "kill in a commit"
"""With a part of what it was to write."""

REFUSED = "commit without space"
"""On a disk that is full for a while."""

ANY_MOMENT = "kill at any moment"
STOP = "polite stop"
DISK = (*(what for _, _, what in DISK_ERRORS), REFUSED)
"""Why a daemon may fail."""

KINDS = (*dict.fromkeys(KILLED_AT.values()), TORN, ANY_MOMENT, STOP, *DISK)
"""All that a world can come to here, as it is counted."""

TORN_SHARE = 0.5

PAUSES_S = (0, 0.001, 0.05, 0.5)
"""How long appends gather before they are stored."""

RARE = 4
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
        self.counts: Counter[str] = Counter()
        self.full: Callable[[], bool] = lambda: False
        """Whether the disk has no space for a commit."""
        self.tear: Callable[[], None] = lambda: None
        """Called before a commit of which a kill is to leave a part."""
        self._doomed = False

    def spend(self, what: str) -> bool:
        """Count a mishap; return whether there was one left to happen."""
        if self.ghost or self.left == 0:
            return False
        self.left -= 1
        self.counts[what] += 1
        return True

    def kill(self, what: str = ANY_MOMENT) -> None:
        """Kill the process here."""
        if self.spend(what):
            self._save()
            self.ghost = True
            raise Killed

    def count_hit(self, name: str) -> None:
        """Pass a crash point."""
        if self.ghost:
            return
        if name == "log.before_commit" and self.full():
            self.counts[REFUSED] += 1
            raise _operational_error(sqlite3.SQLITE_FULL)
        if self.left:
            self._kill_at(name)
            self._fail_at(name)

    def _kill_at(self, name: str) -> None:
        doomed, self._doomed = self._doomed, False
        if doomed:  # unless the commit failed by itself
            self.kill(TORN if name == "log.after_commit" else ANY_MOMENT)
        at_commit = name.startswith("log.")
        if self.chosen.random() < (1 if at_commit else RARE) * self._odds["kill"]:
            self.kill(KILLED_AT[name if at_commit else name.partition(".")[0]])
        if name == "log.before_commit" and self.chosen.random() < TORN_SHARE * self._odds["kill"]:
            self._doomed = True
            self.tear()

    def _fail_at(self, name: str) -> None:
        found = [(code, what) for place, code, what in DISK_ERRORS if place == name]
        if found and self.chosen.random() < self._odds["disk"]:
            code, what = self.chosen.choice(found)
            if self.spend(what):
                raise _operational_error(code)


def _operational_error(code: int) -> sqlite3.OperationalError:
    error = sqlite3.OperationalError("the simulated disk failed")
    error.sqlite_errorcode = code
    return error


class SteppedWriter(writer.LogWriter):
    """The log's writer as a part of the event loop: when it takes its turns is drawn."""

    def commit_here(self, group: Sequence[writer.AppendRequest]) -> bool:
        """Leave every append to the writer's turns, which the seed decides."""
        return False

    def __init__(
        self, appender: Appender, layout: HomeLayout, fates: Fates, looked: Callable[[Appender], None]
    ) -> None:
        """`looked` is called after each turn that stored something."""
        super().__init__(appender, layout)
        self._fates = fates
        self._looked = looked
        self._pending: list[writer.AppendRequest] = []
        self._timer: asyncio.TimerHandle | None = None
        self._house: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Start no thread."""

    @property
    def queue_size(self) -> int:
        return len(self._pending)

    def submit(self, request: writer.AppendRequest) -> None:
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
        group, self._pending = self._pending[: writer.MAX_GROUP], self._pending[writer.MAX_GROUP :]
        with self.turns:
            self._commit_group(group)
            self._looked(self._appender)
            self._save_periodically()
        if self._pending and not self._stopped:
            self._set_timer()
        if not self._stopped and self._house is None:
            self._house = asyncio.get_running_loop().call_later(writer.HEAD_EVERY_S, self._anchor_late)

    def _anchor_late(self) -> None:
        self._house = None
        if not self._fates.ghost:
            self._save_periodically()
