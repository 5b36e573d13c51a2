"""A reader for somebody who looks again and again: states of runs are folded on, not anew.

Whoever asks how a run stands every second would otherwise fold up to a thousand events each time. What is
kept is checked by the hash of the last event that was folded: a log that was restored or compacted meanwhile
is read from its snapshots again.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import NamedTuple

from state.errors import StreamUnknown
from state.fold import RunState, apply
from state.home import Layout
from state.reader import LogReader

MOST = 24
"""Runs whose states are kept."""

PAGE = 2000


class _Held(NamedTuple):
    """A run's state after its event `run_seq`, which has this hash and this number in the log."""

    run_seq: int
    seq: int
    hash: str
    state: RunState


class FollowingReader(LogReader):
    """A `LogReader` that remembers the states it was asked for last."""

    def __init__(self, layout: Layout) -> None:
        super().__init__(layout)
        self._held: OrderedDict[str, _Held] = OrderedDict()
        self._following = threading.Lock()

    def state(self, run: str, to: int | None = None) -> RunState:
        """As `LogReader.state`; today's states are kept."""
        if to is not None:
            return super().state(run, to)
        with self._following:
            held = self._held.pop(run, None)
            found = self._on(run, held) if held is not None and self._same(run, held) else self._anew(run)
            self._held[run] = found
            while len(self._held) > MOST:
                self._held.popitem(last=False)
            return found.state

    def _same(self, run: str, held: _Held) -> bool:
        try:
            return self.hash_at(run, held.run_seq) == held.hash
        except StreamUnknown:
            return False

    def _on(self, run: str, held: _Held) -> _Held:
        while page := self.read(stream=run, after=held.seq, limit=PAGE):
            state = held.state
            for item in page:
                state = apply(state, item.event)
            held = _Held(page[-1].run_seq, page[-1].seq, page[-1].hash, state)
        return held

    def _anew(self, run: str) -> _Held:
        newest = self.read(stream=run, limit=1, newest=True)
        if not newest:
            raise StreamUnknown(f"no run {run}")
        last = newest[0]
        return self._on(run, _Held(last.run_seq, last.seq, last.hash, super().state(run, last.run_seq)))
