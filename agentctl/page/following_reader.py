"""A log reader for repeated queries: it keeps states of runs and folds only new events into them.

Otherwise, a page that asks for a run's state every second would fold up to a thousand events each time.
A kept state is checked by the hash of its last event. If the log was restored or compacted meanwhile,
the state is read from the log's snapshots again.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import NamedTuple

from state.errors import StreamUnknown
from state.fold import RunState, apply_event
from state.home import HomeLayout
from state.reader import LogReader

MAX_STATES = 24
"""The number of runs whose states are kept."""

PAGE = 2000


class _HeldState(NamedTuple):
    """A run's state after its event `run_seq`, with the hash and the log's sequence number of that event."""

    run_seq: int
    seq: int
    hash: str
    state: RunState


class FollowingReader(LogReader):
    """A `LogReader` that keeps the states that were requested last."""

    def __init__(self, layout: HomeLayout) -> None:
        super().__init__(layout)
        self._held: OrderedDict[str, _HeldState] = OrderedDict()
        self._following = threading.Lock()

    def run_state(self, run: str, to: int | None = None) -> RunState:
        """Like `LogReader.run_state`, but current states are kept."""
        if to is not None:
            return super().run_state(run, to)
        with self._following:
            held = self._held.pop(run, None)
            found = (
                self._fold_on(run, held)
                if held is not None and self._is_current(run, held)
                else self._load_held(run)
            )
            self._held[run] = found
            while len(self._held) > MAX_STATES:
                self._held.popitem(last=False)
            return found.state

    def _is_current(self, run: str, held: _HeldState) -> bool:
        try:
            return self.event_hash(run, held.run_seq) == held.hash
        except StreamUnknown:
            return False

    def _fold_on(self, run: str, held: _HeldState) -> _HeldState:
        while page := self.read(stream=run, after=held.seq, limit=PAGE):
            state = held.state
            for item in page:
                state = apply_event(state, item.event)
            held = _HeldState(page[-1].run_seq, page[-1].seq, page[-1].hash, state)
        return held

    def _load_held(self, run: str) -> _HeldState:
        newest = self.read(stream=run, limit=1, newest=True)
        if not newest:
            raise StreamUnknown(f"no run {run}")
        last = newest[0]
        return self._fold_on(
            run, _HeldState(last.run_seq, last.seq, last.hash, super().run_state(run, last.run_seq))
        )
