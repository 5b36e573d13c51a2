"""Appends events that depend on the state of runs, and retries if the runs moved on meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from state.errors import StaleAppend
from state.events import Event
from state.fold import RunState
from state.log import EventLog
from state.records import NewEvent, RecordedEvent


async def append_if_current(
    log: EventLog,
    runs: Iterable[str],
    say: Callable[[RunState], Event | None],
    *,
    with_: Sequence[NewEvent] = (),
    blobs: Sequence[bytes] = (),
) -> Sequence[RecordedEvent]:
    """Append the event that `say` returns for each run that has not ended, with `with_`, in one
    transaction.

    `blobs` are stored in the same transaction. If a run moved on between the read and the append, it is
    read again: it may have ended or been paused.

    Raises:
        state.errors.AppendError: the log could not store it.
    """
    wanted = tuple(runs)
    while True:
        # read first: if the state is newer than this, `expect` makes the append fail
        seen = {run: log.run_seq(run) for run in wanted}
        said = {run: say(state) for run in wanted if not (state := log.run_state(run)).has_ended}
        events = [NewEvent(run, event) for run, event in said.items() if event is not None]
        if not (events or with_):
            return ()
        try:
            expect = {event.stream: seen[event.stream] for event in events}
            return await log.append([*with_, *events], blobs=blobs, expect=expect)
        except StaleAppend:
            continue
