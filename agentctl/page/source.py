"""The home that a page shows: its reader, opened when there is a log, and its ownership."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from pathlib import Path

from agentctl.page.following_reader import FollowingReader
from state.errors import NoLog
from state.home import HomeLayout
from state.lock import read_owner


@dataclass(slots=True)
class HomeSource:
    """One home; `words` are its options in suggested commands; with `control` the page may steer it."""

    home: Path
    words: tuple[str, ...] = ()
    control: bool = False
    _reader: FollowingReader | None = None
    _opening: threading.Lock = field(default_factory=threading.Lock)

    def reader(self) -> FollowingReader:
        """Return the reader, the same each time.

        Raises:
            NoLog: nothing was recorded there yet.
            state.errors.StateError: the log cannot be read.
        """
        with self._opening:
            if self._reader is None:
                self._reader = FollowingReader.open(self.home)
            return self._reader

    def reader_or_none(self) -> FollowingReader | None:
        """Return the reader, None if there is no log."""
        try:
            return self.reader()
        except NoLog:
            return None

    @property
    def is_owned(self) -> bool:
        """Whether a process owns the home now."""
        return read_owner(HomeLayout(self.home).lock) is not None

    def last_seq(self) -> int:
        """Return the log's last sequence number, 0 if there is no log."""
        reader = self.reader_or_none()
        return 0 if reader is None else reader.head.seq

    def close(self) -> None:
        with self._opening:
            if self._reader is not None:
                self._reader.close()
                self._reader = None
