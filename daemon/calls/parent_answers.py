"""Reuses answers of a fork's parent to questions that were in flight at the cut.

The fork abandons an effect in flight at the cut and asks again, with the same text if nothing that it
depends on has changed. The parent's answer to the same request is already in the log, so the fork need
not pay for it. Questions that the parent asked only after the cut are not reused, because a fork goes
its own way.
"""

from __future__ import annotations

from itertools import count

from state.events import CallCompleted, CallStarted, RunForked
from state.log import EventLog
from state.model import Digest
from state.records import RecordedEvent


def find_parent_answer(
    event_log: EventLog, run: str, key: str, call: int, request: Digest
) -> RecordedEvent | None:
    """Return the answer of a fork's parent to question `call` of an effect that was in flight at the
    cut.

    It is the latest answer to exactly this request; None if there is none, or if `run` is no fork.
    """
    first = event_log.event_by_key(run, "created")
    forked = first.event if first is not None else None
    if not isinstance(forked, RunForked) or not _was_in_flight(event_log, forked, key):
        return None
    for attempt in count(1):
        name = f"{key}#call{call}.{attempt}"
        asked = _own_event(event_log, forked.parent, name)
        if asked is None:
            return None
        answered = _own_event(event_log, forked.parent, f"{name}#outcome")
        same = isinstance(asked.event, CallStarted) and asked.event.request == request
        if same and answered is not None and isinstance(answered.event, CallCompleted):
            return answered
    raise AssertionError("attempts are counted without end")


def _was_in_flight(event_log: EventLog, forked: RunForked, key: str) -> bool:
    """Return whether the parent had started the effect at the cut and had no outcome of it there."""
    begun = _own_event(event_log, forked.parent, f"{key}#start1")
    ended = _own_event(event_log, forked.parent, f"{key}#outcome")
    if begun is None or begun.run_seq > forked.parent_seq:
        return False
    return ended is None or ended.run_seq > forked.parent_seq


def _own_event(event_log: EventLog, stream: str, idem: str) -> RecordedEvent | None:
    """Return an event of this run itself, not of its parent, where the effect was abandoned."""
    found = event_log.event_by_key(stream, idem)
    return found if found is not None and found.stream == stream else None
