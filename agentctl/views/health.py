"""How a run's surroundings stood after any of its events: endpoints of models, hosts, and what failed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from agentctl.views.overview import CALLS, TROUBLES, Provider, provider
from agentctl.views.series import event_at, last_of
from state.events import CallCompleted, CallFailed, CallLost, EvaluationCompleted
from state.reader import LogReader
from state.recent import Asked
from state.records import Recorded

JUDGED = 200
"""Verdicts that say which hosts are in use."""

SHOWN = 10
"""Troubles that are told of, the newest first."""


@dataclass(frozen=True, slots=True)
class JudgedOn:
    """A host, its device, how many of the last verdicts are its, and when the latest came (UTC)."""

    host: str
    device: str
    verdicts: int
    latest: str


@dataclass(frozen=True, slots=True)
class Trouble:
    """Something that failed and was no kernel's fault: its event, when (UTC), and what was said."""

    place: str
    time: str
    type: str
    text: str


@dataclass(frozen=True, slots=True)
class Health:
    """`providers` by their last attempts at answers, `hosts` by the last `of_verdicts` verdicts.

    Without hosts, kernels were judged on the machine of the run. `troubles` are the newest first.
    """

    at: int
    providers: tuple[Provider, ...]
    hosts: tuple[JudgedOn, ...]
    of_verdicts: int
    troubles: tuple[Trouble, ...]


def health(reader: LogReader, run: str, *, at: int | None = None) -> Health:
    """Return how endpoints and hosts stood after a run's event `at` (None: as they stand).

    Raises:
        StreamUnknown: there is no such run.
        UnknownEvent: it has no such event.
    """
    here = event_at(reader, run, last_of(reader, run) if at is None else at)

    def newest(types: Sequence[str], limit: int) -> list[Recorded]:
        return reader.read(stream=run, types=types, upto=here.seq, limit=limit, newest=True)[::-1]

    judged = newest(("EvaluationCompleted",), JUDGED)
    resting = reader.system(upto=None if at is None else here.seq).breakers
    return Health(
        at=here.run_seq,
        providers=_providers(newest(("CallCompleted", "CallFailed", "CallLost"), CALLS), resting),
        hosts=_hosts(judged),
        of_verdicts=len(judged),
        troubles=tuple(map(_trouble, newest(TROUBLES, SHOWN))),
    )


def _providers(calls: Iterable[Recorded], resting: dict[str, str]) -> tuple[Provider, ...]:
    asked: dict[str, list[Asked]] = {}
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
        asked.setdefault(endpoint, []).append(Asked(endpoint, model, outcome, took))
    return tuple(provider(name, asked[name], resting.get(name)) for name in sorted(asked))


def _hosts(judged: Iterable[Recorded]) -> tuple[JudgedOn, ...]:
    counted: Counter[tuple[str, str]] = Counter()
    latest: dict[tuple[str, str], str] = {}
    for item in judged:
        if isinstance(item.event, EvaluationCompleted) and item.event.where is not None:
            place = (item.event.where.host, item.event.where.device)
            counted[place] += 1
            latest.setdefault(place, item.time.isoformat(timespec="seconds"))
    return tuple(JudgedOn(*place, number, latest[place]) for place, number in sorted(counted.items()))


def _trouble(item: Recorded) -> Trouble:
    error = getattr(item.event, "error", None)
    said = error.message if error is not None else str(getattr(item.event, "reason", item.type))
    return Trouble(item.place, item.time.isoformat(timespec="seconds"), item.type, said)
