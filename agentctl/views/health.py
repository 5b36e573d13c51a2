"""The state of model endpoints and hosts after any event of a run, and recent failures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from agentctl.views.overview import CALLS_PER_RUN, FAILURE_TYPES, ProviderStatus, provider_status
from agentctl.views.series import last_run_seq, require_event
from state.events import CallCompleted, CallFailed, CallLost, EvaluationCompleted
from state.reader import LogReader
from state.recent_events import CallAttempt
from state.records import RecordedEvent

MAX_VERDICTS = 200
"""The number of last verdicts that tell which hosts are in use."""

MAX_SHOWN = 10
"""The number of failures that are shown, newest first."""


@dataclass(frozen=True, slots=True)
class HostVerdicts:
    """A host, its device, its share of the last verdicts (a count), and the time of the latest one (UTC)."""

    host: str
    device: str
    verdicts: int
    latest: str


@dataclass(frozen=True, slots=True)
class FailureEvent:
    """A failure that was no kernel's fault: its event, its time (UTC), and its message."""

    place: str
    time: str
    type: str
    text: str


@dataclass(frozen=True, slots=True)
class RunHealth:
    """`providers` by their last attempts at answers, `hosts` by the last `of_verdicts` verdicts.

    Without hosts, kernels were judged on the run's own machine. `troubles` are newest first.
    """

    at: int
    providers: tuple[ProviderStatus, ...]
    hosts: tuple[HostVerdicts, ...]
    of_verdicts: int
    troubles: tuple[FailureEvent, ...]


def run_health(reader: LogReader, run: str, *, at: int | None = None) -> RunHealth:
    """Return the state of endpoints and hosts after a run's event `at` (None: now).

    Raises:
        StreamUnknown: there is no such run.
        UnknownEvent: it has no such event.
    """
    here = require_event(reader, run, last_run_seq(reader, run) if at is None else at)

    def newest(types: Sequence[str], limit: int) -> list[RecordedEvent]:
        return reader.read(stream=run, types=types, upto=here.seq, limit=limit, newest=True)[::-1]

    judged = newest(("EvaluationCompleted",), MAX_VERDICTS)
    resting = reader.system_state(upto=None if at is None else here.seq).breakers
    return RunHealth(
        at=here.run_seq,
        providers=_provider_statuses(
            newest(("CallCompleted", "CallFailed", "CallLost"), CALLS_PER_RUN), resting
        ),
        hosts=_host_verdicts(judged),
        of_verdicts=len(judged),
        troubles=tuple(map(_failure_event, newest(FAILURE_TYPES, MAX_SHOWN))),
    )


def _provider_statuses(calls: Iterable[RecordedEvent], resting: dict[str, str]) -> tuple[ProviderStatus, ...]:
    asked: dict[str, list[CallAttempt]] = {}
    took: float | None
    for item in calls:
        match item.event:
            case CallCompleted(model=model, ms=ms, reused_from=None):
                outcome, took = "answered", ms
            case CallFailed(model=model, kind=kind, ms=ms):
                outcome, took = kind, ms
            case CallLost(model=model):
                outcome, took = "lost", None
            case _:
                continue
        endpoint = model.partition("/")[0]
        asked.setdefault(endpoint, []).append(CallAttempt(endpoint, model, outcome, took))
    return tuple(provider_status(name, asked[name], resting.get(name)) for name in sorted(asked))


def _host_verdicts(judged: Iterable[RecordedEvent]) -> tuple[HostVerdicts, ...]:
    counted: Counter[tuple[str, str]] = Counter()
    latest: dict[tuple[str, str], str] = {}
    for item in judged:
        if isinstance(item.event, EvaluationCompleted) and item.event.where is not None:
            place = (item.event.where.host, item.event.where.device)
            counted[place] += 1
            latest.setdefault(place, item.time.isoformat(timespec="seconds"))
    return tuple(HostVerdicts(*place, number, latest[place]) for place, number in sorted(counted.items()))


def _failure_event(item: RecordedEvent) -> FailureEvent:
    error = getattr(item.event, "error", None)
    said = error.message if error is not None else str(getattr(item.event, "reason", item.type))
    return FailureEvent(item.event_id, item.time.isoformat(timespec="seconds"), item.type, said)
