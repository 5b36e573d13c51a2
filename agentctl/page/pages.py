"""What can be asked: each address and the view that answers it. Nothing here changes anything."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.routing import Route

from agentctl.answers import queued_runs
from agentctl.page import asked
from agentctl.page.answers import answered
from agentctl.page.kernels import Comparison, KernelPage, comparison, kernel
from agentctl.page.source import Source
from agentctl.page.stream import Lines, Sought, line, lines
from agentctl.runs import known_run
from agentctl.seek import event_at
from agentctl.views.health import Health, health
from agentctl.views.moment import Moment, moment
from agentctl.views.overview import Overview, overview
from agentctl.views.process import process
from agentctl.views.run import INTERRUPTED, QUEUED
from agentctl.views.series import Series, series
from agentctl.views.spending import Spending, spending_of
from agentctl.words import typed
from daemon.amend import changes
from state.errors import BlobMissing, BlobPruned
from state.reader import LogReader

MOST_BLOB = 200_000
"""Characters of a blob that an event shows."""

_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Remedy:
    """What a person may do about a run, as a command to type."""

    run: str
    why: str
    command: str


@dataclass(frozen=True, slots=True)
class Home:
    """A home now: all of it that fits on a screen, runs that wait to be taken up, and what could be done.

    `control` says that the page may steer, `now` is the server's clock (ms since 1970).
    """

    overview: Overview
    waiting: tuple[str, ...]
    remedies: tuple[Remedy, ...]
    control: bool
    now: int


@dataclass(frozen=True, slots=True)
class Difference:
    """Two runs beside one another, as they are: how each stands, and the settings in which they differ."""

    a: Moment
    b: Moment
    settings: dict[str, tuple[Any, Any]]


class Pages:
    """The answers for one home."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def routes(self) -> list[Route]:
        table: dict[str, Callable[[Request], Any]] = {
            "/api/home": self.home,
            "/api/runs/{run}/series": self.series,
            "/api/runs/{run}/moment": self.moment,
            "/api/runs/{run}/spending": self.spending,
            "/api/runs/{run}/health": self.health,
            "/api/runs/{run}/kernels/{name}": self.kernel,
            "/api/runs/{run}/diff": self.diff,
            "/api/events": self.events,
            "/api/events/{run}/{seq}": self.event,
            "/api/compare": self.compare,
        }
        return [Route(path, answered(answer), methods=["GET"]) for path, answer in table.items()]

    def home(self, request: Request) -> Home:
        reader = self._source.if_any()
        refused = reader.system().refused if reader else None
        owner = process(self._source.home, refused=refused)
        everything = request.query_params.get("all") == "1"
        found = overview(reader, owner, now_us=time.time() * 1e6, all_=everything)
        return Home(
            overview=found,
            waiting=tuple(run for run, _ in queued_runs(self._source.home)),
            remedies=tuple(self._remedies(found)),
            control=self._source.control,
            now=round(time.time() * 1e3),
        )

    def _remedies(self, found: Overview) -> list[Remedy]:
        words = self._source.words
        remedies = []
        for run in found.runs:
            if run.needs_approval:
                waits = f"waits for a person: {', '.join(run.needs_approval)}"
                remedies.append(Remedy(run.id, waits, typed("approve", *words, run.id)))
            elif run.state == INTERRUPTED or (run.state == QUEUED and not found.daemon.running):
                remedies.append(Remedy(run.id, "nobody drives it", typed("resume", *words, run.id)))
            elif run.state == "paused":
                remedies.append(Remedy(run.id, run.reason or "paused", typed("resume", *words, run.id)))
        return remedies

    def series(self, request: Request) -> Series:
        reader, run = self._run(request)
        since = asked.number(request, "since", least=0)
        return series(reader, run, at=asked.number(request, "at"), since=since or 0)

    def moment(self, request: Request) -> Moment:
        reader, run = self._run(request)
        return moment(reader, run, at=asked.number(request, "at"), owned=self._source.owned)

    def spending(self, request: Request) -> Spending:
        return spending_of(*self._run(request), at=asked.number(request, "at"))

    def health(self, request: Request) -> Health:
        return health(*self._run(request), at=asked.number(request, "at"))

    def kernel(self, request: Request) -> KernelPage:
        return kernel(*self._run(request), request.path_params["name"], at=asked.number(request, "at"))

    def diff(self, request: Request) -> Comparison:
        a, b = (asked.text(request, name) for name in "ab")
        return comparison(*self._run(request), a, b, at=asked.number(request, "at"))

    def events(self, request: Request) -> Lines:
        sought = Sought(
            run=asked.text(request, "run") or None,
            types=asked.types(request),
            text=asked.text(request, "text"),
            after=asked.number(request, "after", least=0) or 0,
            before=asked.number(request, "before"),
        )
        return lines(self._source.reader(), sought)

    def event(self, request: Request) -> dict[str, Any]:
        """Return an event with the blobs that it names, as text."""
        reader = self._source.reader()
        item = event_at(reader, request.path_params["run"], asked.place(request, "seq"))
        event = item.event.model_dump(mode="json")
        blobs = {digest: _blob(reader, digest) for digest in _digests(event)}
        return {
            "line": line(item),
            "event": event,
            "blobs": {digest: text for digest, text in blobs.items() if text is not None},
            "hash": item.hash,
            "state_hash": item.state_hash,
        }

    def compare(self, request: Request) -> Difference:
        reader, names = self._source.reader(), [asked.text(request, name) for name in "ab"]
        for name in names:
            known_run(reader, name)
        a, b = (moment(reader, name, owned=self._source.owned) for name in names)
        one, other = (reader.state(name).config for name in names)
        return Difference(a, b, changes(one, other))

    def _run(self, request: Request) -> tuple[LogReader, str]:
        """Return the reader and the run that an address names.

        Raises:
            UnknownRun: there is none of that name.
        """
        reader, run = self._source.reader(), str(request.path_params["run"])
        known_run(reader, run)
        return reader, run


def _digests(event: dict[str, Any]) -> list[str]:
    """Return what of an event could name a blob, each once, in order; sets of prompts are left out."""
    text = json.dumps({name: value for name, value in event.items() if name != "prompts"})
    return list(dict.fromkeys(_DIGEST.findall(text)))


def _blob(reader: LogReader, digest: str) -> str | None:
    """Return a blob as text, shortened; None where the digest is one of something else."""
    try:
        text = reader.blob(digest).decode(errors="replace")
    except BlobPruned as error:
        return f"({error})"
    except BlobMissing:
        return None
    return text if len(text) <= MOST_BLOB else f"{text[:MOST_BLOB]}\n(cut: {len(text)} characters)"
