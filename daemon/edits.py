"""Edits of the configuration file while a process owns the home: picked up, checked as a whole, recorded.

A changed `[daemon]` counts at once where that is possible. What changed in `[run]` counts for runs to come,
and from their next round on for those under way, but for keys that somebody set for a run, and for what
kernels are judged by, which a run keeps. What changed is told by the log, which has what the file said when
it was last taken: edits that were made while nobody owned the home are found when somebody does. A file
with faults changes nothing: it is refused, with every fault, in the log and in the status, until it is
right again. The file is looked at periodically, and taken only when two looks in a row find the same: editors
write in steps.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import structlog
from pydantic import ValidationError

from daemon.amend import JUDGED_BY, amended, changes
from daemon.config import FILE_NAME, Config, ConfigError, DaemonConfig, load
from daemon.looking import append_seen
from daemon.names import unknown
from state.events import ConfigChanged, ConfigRefused, Event
from state.fold import RunState
from state.log import EventLog
from state.model import SYSTEM_STREAM, ErrorInfo
from state.records import NewEvent, Recorded

LOOK_SECONDS = 1.0

Stamp = tuple[int, int, int] | None
"""When a file was written, its size and its inode; None where there is no file."""

NEVER: Stamp = (-1, -1, -1)
"""The stamp of no file: whatever is there was not taken yet."""

log: structlog.stdlib.BoundLogger = structlog.get_logger("config")


class Edits:
    """Watches the configuration file of the home that is owned, and applies what changes in it."""

    def __init__(
        self,
        event_log: EventLog,
        *,
        turn: asyncio.Lock,
        apply: Callable[[DaemonConfig], None],
        env: Mapping[str, str] = os.environ,
        look_seconds: float = LOOK_SECONDS,
    ) -> None:
        """`turn` is held while settings are read and changed; `apply` puts the daemon's own into force."""
        self._log = event_log
        self._path = event_log.home / FILE_NAME
        self._turn = turn
        self._apply = apply
        self._env = env
        self._look_seconds = look_seconds
        self._seen = self._stamp()
        self._taken = NEVER
        self._known = self._last_taken()
        self._in_force = self._at_start()

    async def watch(self) -> None:
        """Take the file as it is, then look at it now and then, until cancelled."""
        await self.look()
        while True:
            await asyncio.sleep(self._look_seconds)
            await self.look()

    async def look(self) -> None:
        """Take the file if it changed, and did not change again since the last look."""
        stamp = self._stamp()
        settled, self._seen = stamp == self._seen, stamp
        if settled and stamp != self._taken:
            self._taken = stamp
            async with self._turn:
                await self._take()

    def _last_taken(self) -> Config:
        """Return what the file said when it was last taken, by this process or one before it."""
        try:
            return Config.model_validate(self._log.system().config or {})
        except ValidationError:  # another version's, with keys that are gone
            return Config()

    def _at_start(self) -> DaemonConfig | None:
        """Return the process's settings that it began with, but for flags."""
        try:
            return load(self._path.parent, self._env).config.daemon
        except ConfigError:
            return None

    def _stamp(self) -> Stamp:
        for follow in (True, False):  # a link that leads nowhere, or in a circle, is there too
            with suppress(OSError):
                found = self._path.stat(follow_symlinks=follow)
                return found.st_mtime_ns, found.st_size, found.st_ino
        return None

    async def _take(self) -> None:
        try:
            fresh = load(self._path.parent, {}, look_up=unknown).config
            effective = load(self._path.parent, self._env).config.daemon
            if fresh == self._known and self._log.system().refused is None:
                return
            stored = await self._record(fresh)
        except ConfigError as error:
            await self._refuse(error)
            return
        self._known = fresh
        if effective != self._in_force:  # else flags of this process would be undone by edits of other keys
            self._in_force = effective
            self._apply(effective)
        log.info("config_changed", file=str(self._path), runs=[one.stream for one in stored[1:]])

    async def _record(self, fresh: Config) -> Sequence[Recorded]:
        """Store what the file says now, and what that changes in the runs under way."""
        changed = changes(self._known.run, fresh.run)
        taken = NewEvent(SYSTEM_STREAM, ConfigChanged(config=fresh.model_dump(mode="json")))
        return await append_seen(
            self._log, self._log.runs(), lambda state: _edited(state, changed), with_=[taken]
        )

    async def _refuse(self, error: ConfigError) -> None:
        if self._log.system().refused != str(error):
            info = ErrorInfo(code=error.code, message=str(error), hint=f"correct {self._path}")
            await self._log.append([NewEvent(SYSTEM_STREAM, ConfigRefused(error=info))])
        log.warning("config_refused", file=str(self._path), faults=list(error.faults))


def _edited(state: RunState, changed: Mapping[str, tuple[Any, Any]]) -> Event | None:
    """Return what an edit changes in a run under way.

    Raises:
        ConfigError: what it changes does not go with what the run has.
    """
    settings = {key: new for key, (_, new) in changed.items() if key not in {*state.pinned, *JUDGED_BY}}
    before = state.pending_config or state.config
    after = amended(before, settings)
    return ConfigChanged(config=after.model_dump(mode="json")) if after != before else None
