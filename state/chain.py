"""The hash chain: every row carries the hash of the row before it, in its stream and in the whole log.

hash = SHA-256(prev | log_prev | header | payload). The header is the row's other columns as text, separated
by U+001F; the payload is the stored bytes. Changing, swapping, dropping or inserting a row breaks the chain
at that row, and `ChainVerifier` finds the first such row.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256

from state.errors import LogDamaged
from state.records import EventRow

GENESIS = bytes(32)
"""The hash before the first row of a log, or of a stream that continues no other."""

ChainLink = tuple[int, bytes]
"""(run_seq, hash) of a row, which the next row of the stream continues."""


RowContent = tuple[
    int, str, int, str, int, int, int | None, str | None, str, bytes, bytes, bytes | None, int | None
]
"""A row without its hash: the other columns of `EventRow`, in order."""


def row_hash(content: RowContent) -> bytes:
    """Return the hash over a row's other columns."""
    seq, stream, run_seq, type_, sv, ts_us, cause, idem, payload, prev, log_prev, state_hash, fold = content
    stated = "" if state_hash is None else state_hash.hex()
    text = (
        f"{seq}\x1f{stream}\x1f{run_seq}\x1f{type_}\x1f{sv}\x1f{ts_us}\x1f"
        f"{'' if cause is None else cause}\x1f{idem or ''}\x1f{stated}\x1f{fold or ''}\x1f{payload}"
    )
    return sha256(prev + log_prev + text.encode()).digest()


def check_link(row: EventRow, link: ChainLink | None) -> None:
    """Check that a row follows `link` in its stream.

    Raises:
        LogDamaged: it does not, or its content does not match its hash.
    """
    if link is None or link != (row.run_seq - 1, row.prev):
        raise _damaged_row(row, "does not continue its stream")
    if row_hash(row[:-1]) != row.hash:
        raise _damaged_row(row, "its content does not match its hash: it was edited")


class ChainVerifier:
    """Checks rows in log order, from any starting point.

    `before` returns what a stream's first row must continue, None if that is unknown. `seq` and `log_hash`
    are the number and hash of the row before the first one. `beyond` returns where the log goes on after
    events that were taken out: the number of the last one, and the hash that the next row continues.
    """

    def __init__(
        self,
        *,
        seq: int,
        log_hash: bytes,
        before: Callable[[EventRow], ChainLink | None],
        beyond: Callable[[int], tuple[int, bytes] | None] = lambda _: None,
    ) -> None:
        self.seq = seq
        self.log_hash = log_hash
        self._before = before
        self._beyond = beyond
        self._links: dict[str, ChainLink] = {}

    def check_row(self, row: EventRow) -> None:
        """Check the next row of the log.

        Raises:
            LogDamaged: it does not follow, or its content does not match its hash.
        """
        if row.seq != self.seq + 1:
            self.seq, self.log_hash = self._beyond(self.seq + 1) or (self.seq, self.log_hash)
        if row.seq != self.seq + 1:
            raise _damaged_row(row, f"event {self.seq + 1} is missing")
        if row.log_prev != self.log_hash:
            raise _damaged_row(
                row, "does not continue the log: the row before it is not the one it was written after"
            )
        check_link(row, self._links.get(row.stream) or self._before(row))
        self.seq = row.seq
        self.log_hash = row.hash
        self._links[row.stream] = (row.run_seq, row.hash)


def _damaged_row(row: EventRow, what: str) -> LogDamaged:
    return LogDamaged(what, seq=row.seq, stream=row.stream, run_seq=row.run_seq)
