"""A cache of folded states, for streams that were read but not yet appended to.

After a start, several parts look at every run that has not ended: the supervisor, the watchers of disk and
configuration, and the writer at its first append. Folding takes most of the start, so the first result is
kept until the writer has its own tip.
"""

from __future__ import annotations

import sqlite3
import threading

from state import queries, snapshots
from state.snapshots import Tip

MAX_STREAMS = 32
"""The most streams to keep; a home with hundreds of paused runs would fill the memory."""


class FoldCache:
    """Tips by stream; usable from any thread, if each has its own connection."""

    def __init__(self) -> None:
        self._tips: dict[str, Tip] = {}
        self._mutex = threading.Lock()

    def load_tip(self, connection: sqlite3.Connection, stream: str) -> Tip | None:
        """Return a stream's tip as the connection sees the log; None if there is no such stream.

        Raises:
            LogTooNew, LogDamaged: as for `snapshots.load_tip`.
        """
        known = self._tips.get(stream)
        if known is not None and _is_last_row(connection, known):
            return known
        found = snapshots.load_tip(connection, stream)
        if found is not None and not found.has_ended:  # there are many ended runs, and nobody waits for them
            self._remember_tip(found)
        return found

    def forget_stream(self, stream: str) -> None:
        """Drop a stream that the writer tracks itself from now on."""
        with self._mutex:
            self._tips.pop(stream, None)

    def _remember_tip(self, tip: Tip) -> None:
        with self._mutex:
            self._tips[tip.stream] = tip
            if len(self._tips) > MAX_STREAMS:
                del self._tips[next(iter(self._tips))]


def _is_last_row(connection: sqlite3.Connection, tip: Tip) -> bool:
    """Return whether nothing follows a tip: the hash of a stream's last row covers its whole history."""
    last = queries.last_row(connection, tip.stream)
    return last is not None and last.hash == tip.hash
