"""Transfers what runs of a home learn to later runs, by adding events to the decisions that cause it.

Before its first round, a run receives what earlier runs learnt: sequences that paid off (it may try them
first, and its models are shown them), experiences for its models, and techniques that models invented.
When a run ends with a verified gain, its winning sequence, the content of its memory and its invented
techniques are recorded in the system stream. Everything is stored in the transaction of the decision, so
nothing is lost or stored twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import seeds
from agent_core import inventions, strategies
from agent_core.experiences import HISTORY_EVENTS as OF_EXPERIENCES
from agent_core.experiences import collect_experiences, select_experiences
from agent_core.proposers import can_look_ahead, is_llm_proposer
from agent_core.sequences import (
    HISTORY_EVENTS,
    Learnt,
    ProblemSetting,
    collect_sequence,
    describe_setting,
    select_nearest,
)
from daemon.structured_log import structlog
from state.errors import BlobMissing
from state.events import (
    Event,
    ExperiencesGiven,
    ExperiencesLearnt,
    RoundStarted,
    RunCompleted,
    SequenceLearnt,
    SequencesGiven,
    TechniquesGiven,
    TechniquesLearnt,
)
from state.fold import RunState
from state.log import EventLog
from state.model import SYSTEM_STREAM, Digest, Level, RunConfig
from state.records import NewEvent, RecordedEvent

PAGE = 500

log: structlog.stdlib.BoundLogger = structlog.get_logger("sequences")


def with_transfer_events(
    event_log: EventLog, run: str, state: RunState, events: Sequence[Event]
) -> list[NewEvent]:
    """Return the events to store when `events` are decided on `state`: these, plus transferred ones."""
    made: list[NewEvent] = []
    for event in events:
        if isinstance(event, RoundStarted) and event.round == 1:
            made += (NewEvent(run, given) for given in _given_events(event_log, run, state))
        made.append(NewEvent(run, event))
        if isinstance(event, RunCompleted) and event.level is Level.WHOLE:
            made += (NewEvent(SYSTEM_STREAM, taught) for taught in _learnt_events(event_log, run, state))
    return made


def _given_events(event_log: EventLog, run: str, state: RunState) -> Iterator[Event]:
    """Yield what a run receives before its first round, as far as its settings allow and use it."""
    known, config = event_log.system_state(), state.pending_config or state.config
    may = config.search.reuse and strategies.STRATEGIES[config.search.strategy].reuses
    asks = any(map(is_llm_proposer, config.planner))
    tries = may and (asks or _uses_sequences(config)) and state.sequences is None and known.sequences
    tells = may and asks and state.experiences is None and known.experiences
    offers = may and asks and state.techniques is None and known.techniques
    where = _run_setting(event_log, run, state) if tries or tells or offers else None
    if where is None:
        return
    if tries and (sequences := select_nearest(_available_entries(event_log, known.sequences), where.tags)):
        yield SequencesGiven(round=1, sequences=sequences)
    there = _available_entries(event_log, known.experiences) if tells else []
    if found := select_experiences(there, where.tags, state.toolchain):
        yield ExperiencesGiven(round=1, experiences=found)
    if offers and (techniques := inventions.select_techniques(known.techniques, where.tags)):
        yield TechniquesGiven(round=1, techniques=techniques)


def _available_entries(event_log: EventLog, known: Iterable[Learnt]) -> list[Learnt]:
    """Return the entries whose kernels are in the log; a repair may have lost some."""

    def there(digest: Digest) -> bool:
        try:
            event_log.get_blob(digest)
        except BlobMissing:
            return False
        return True

    return [one for one in known if all(map(there, one.source_digests))]


def _uses_sequences(config: RunConfig) -> bool:
    """Return whether a planner of the run can use sequences."""
    return config.search.lookahead_predictions > 0 and any(map(can_look_ahead, config.planner))


def _learnt_events(event_log: EventLog, run: str, state: RunState) -> Iterator[Event]:
    where = _run_setting(event_log, run, state)
    if where is None:
        return
    if (
        sequence := collect_sequence(run, state, read_history(event_log, run, HISTORY_EVENTS), where)
    ) is not None:
        yield SequenceLearnt(sequence=sequence)
    if experiences := collect_experiences(run, state, read_history(event_log, run, OF_EXPERIENCES), where):
        yield ExperiencesLearnt(experiences=experiences)
    history = read_history(event_log, run, inventions.HISTORY_EVENTS)
    if techniques := inventions.collect_techniques(run, state, history, where):
        yield TechniquesLearnt(techniques=techniques)


def _run_setting(event_log: EventLog, run: str, state: RunState) -> ProblemSetting | None:
    """Return what the run works on, or None if its files cannot be read; the run then transfers nothing."""
    if state.initial is None:
        return None
    try:
        files = {path: event_log.get_blob(digest) for path, digest in state.problem.files.items()}
        source = event_log.get_blob(state.initial.source).decode()
        return describe_setting(
            seeds.build_problem(files).spec, state.config.size, state.config.target, source
        )
    except (BlobMissing, seeds.SeedsError, UnicodeDecodeError) as error:
        log.warning("problem_unreadable", run=run, error=str(error))
        return None


def read_history(event_log: EventLog, run: str, kinds: Iterable[type[Event]]) -> Iterator[RecordedEvent]:
    """Yield the events of these types of a run and its ancestors, oldest first."""
    after = 0
    types = [kind.__name__ for kind in kinds]
    while page := event_log.read(stream=run, after=after, limit=PAGE, types=types):
        yield from page
        after = page[-1].seq
