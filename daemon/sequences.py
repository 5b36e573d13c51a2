"""What runs of a home hand on to one another: learnt sequences, put beside the decisions that call for them.

Before a run's first round it is given what it may try first, as an event of its own; when it ends with a gain
that was verified, what led there is learnt, in the system stream. Both are stored in the transaction of the
decision, so that neither is lost, nor there twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import structlog

import seeds
from agent_core import strategies
from agent_core.proposers import looks_ahead
from agent_core.sequences import HISTORY, Setting, learnt, nearest, setting
from state.errors import BlobMissing
from state.events import Event, RoundStarted, RunCompleted, SequenceLearnt, SequencesGiven
from state.fold import RunState
from state.log import EventLog
from state.model import SYSTEM_STREAM, LearntSequence, Level, RunConfig
from state.records import NewEvent, Recorded

PAGE = 500

log: structlog.stdlib.BoundLogger = structlog.get_logger("sequences")


def beside(event_log: EventLog, run: str, state: RunState, events: Sequence[Event]) -> list[NewEvent]:
    """Return what is to be stored when `events` are decided on `state`: they, and what is handed on."""
    made: list[NewEvent] = []
    for event in events:
        if isinstance(event, RoundStarted) and (given := _given(event_log, run, state, event)):
            made.append(NewEvent(run, given))
        made.append(NewEvent(run, event))
        if isinstance(event, RunCompleted) and (taught := _taught(event_log, run, state, event)):
            made.append(NewEvent(SYSTEM_STREAM, taught))
    return made


def _given(event_log: EventLog, run: str, state: RunState, event: RoundStarted) -> SequencesGiven | None:
    """What the run may try first, where this is its first round and it would."""
    known = event_log.system().sequences
    if event.round > 1 or state.sequences is not None or not known:
        return None
    if not _tries_first(state.pending_config or state.config):
        return None
    where = _setting(event_log, run, state)
    found = nearest([one for one in known if _whole(event_log, one)], where.tags) if where is not None else ()
    return SequencesGiven(round=event.round, sequences=found) if found else None


def _whole(event_log: EventLog, one: LearntSequence) -> bool:
    """Whether the kernels of a sequence are there; a repair may have lost some."""
    try:
        return all(event_log.get_blob(leg.source) for leg in one.legs)
    except BlobMissing:
        return False


def _tries_first(config: RunConfig) -> bool:
    """Whether the run may be given sequences, and someone in it knows what to do with them."""
    search = config.search
    wanted = search.reuse and strategies.STRATEGIES[search.strategy].reuses
    return wanted and search.lookahead_predictions > 0 and any(map(looks_ahead, config.planner))


def _taught(event_log: EventLog, run: str, state: RunState, event: RunCompleted) -> SequenceLearnt | None:
    if event.level is not Level.WHOLE:
        return None
    where = _setting(event_log, run, state)
    found = learnt(run, state, _history(event_log, run), where) if where is not None else None
    return None if found is None else SequenceLearnt(sequence=found)


def _setting(event_log: EventLog, run: str, state: RunState) -> Setting | None:
    """What the run works on; None where its files cannot be read: it then goes without what others found."""
    if state.initial is None:
        return None
    try:
        files = {path: event_log.get_blob(digest) for path, digest in state.problem.files.items()}
        source = event_log.get_blob(state.initial.source).decode()
        return setting(seeds.from_files(files).spec, state.config.size, state.config.target, source)
    except (BlobMissing, seeds.SeedsError, UnicodeDecodeError) as error:
        log.warning("problem_unreadable", run=run, error=str(error))
        return None


def _history(event_log: EventLog, run: str) -> Iterator[Recorded]:
    after = 0
    types = [kind.__name__ for kind in HISTORY]
    while page := event_log.read(stream=run, after=after, limit=PAGE, types=types):
        yield from page
        after = page[-1].seq
