"""Answers that a fork need not buy: its parent got them to questions that were in flight where it was cut.

An effect in flight at the cut is abandoned in the fork and asked for again, in the same words where nothing
that they follow from has changed. What its parent was answered to the same request is in the log already.
What the parent asked only later is none of this: a fork goes its own way.
"""

from __future__ import annotations

from itertools import count

from state.events import CallCompleted, CallStarted, RunForked
from state.log import EventLog
from state.model import Digest
from state.records import Recorded


def inherited(event_log: EventLog, run: str, key: str, call: int, request: Digest) -> Recorded | None:
    """Return the answer of a fork's parent to question `call` of an effect that was in flight at the cut.

    It is one to this very request, the latest; None where there is none, or `run` is no fork.
    """
    first = event_log.by_key(run, "created")
    forked = first.event if first is not None else None
    if not isinstance(forked, RunForked) or not _in_flight(event_log, forked, key):
        return None
    for attempt in count(1):
        name = f"{key}#call{call}.{attempt}"
        asked = _of(event_log, forked.parent, name)
        if asked is None:
            return None
        answered = _of(event_log, forked.parent, f"{name}#outcome")
        same = isinstance(asked.event, CallStarted) and asked.event.request == request
        if same and answered is not None and isinstance(answered.event, CallCompleted):
            return answered
    raise AssertionError("attempts are counted without end")


def _in_flight(event_log: EventLog, forked: RunForked, key: str) -> bool:
    """Whether the parent had begun the effect where the fork was cut, and had no outcome of it there."""
    begun = _of(event_log, forked.parent, f"{key}#start1")
    ended = _of(event_log, forked.parent, f"{key}#outcome")
    if begun is None or begun.run_seq > forked.parent_seq:
        return False
    return ended is None or ended.run_seq > forked.parent_seq


def _of(event_log: EventLog, stream: str, idem: str) -> Recorded | None:
    """Return an event of this run, and none of what it continues itself: there it was abandoned."""
    found = event_log.by_key(stream, idem)
    return found if found is not None and found.stream == stream else None
