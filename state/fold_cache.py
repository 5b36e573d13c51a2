"""States of streams that were read and not appended to yet: folded once, for all who ask.

After a start everybody looks at every run that has not ended: the supervisor, whoever watches the disk or the
configuration, and the writer with the first append. Folding is most of what a start costs, so the first one's
result is kept until the writer has a tip of its own.
"""

from __future__ import annotations

import sqlite3
import threading

from state import queries, snapshots
from state.snapshots import Tip

MAX_STREAMS = 32
"""Streams that are kept; of a home with hundreds of paused runs not all states belong in memory."""


class FoldCache:
    """Tips by stream; used from any thread, each with a connection of its own."""

    def __init__(self) -> None:
        self._tips: dict[str, Tip] = {}
        self._mutex = threading.Lock()

    def load_tip(self, connection: sqlite3.Connection, stream: str) -> Tip | None:
        """Return a stream's tip as the connection sees the log; None when there is no such stream.

        Raises:
            LogTooNew, LogDamaged: as `snapshots.load`.
        """
        known = self._tips.get(stream)
        if known is not None and _is_last_row(connection, known):
            return known
        found = snapshots.load_tip(connection, stream)
        if found is not None and not found.has_ended:  # ended runs are many, and nobody waits for them
            self._remember_tip(found)
        return found

    def forget_stream(self, stream: str) -> None:
        """Drop what the writer knows itself from now on."""
        with self._mutex:
            self._tips.pop(stream, None)

    def _remember_tip(self, tip: Tip) -> None:
        with self._mutex:
            self._tips[tip.stream] = tip
            if len(self._tips) > MAX_STREAMS:
                del self._tips[next(iter(self._tips))]


def _is_last_row(connection: sqlite3.Connection, tip: Tip) -> bool:
    """Return whether nothing follows a tip: the hash of a stream's last row tells its whole history."""
    last = queries.last_row(connection, tip.stream)
    return last is not None and last.hash == tip.hash
