"""The read-only addresses of the page, and the view that answers each."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.routing import Route

from agentctl.command_answers import queued_runs
from agentctl.event_lookup import find_event
from agentctl.formatting import format_command
from agentctl.page import request_params
from agentctl.page.dialogues import SessionPage, session_page
from agentctl.page.event_list import EventPage, EventQuery, event_line, query_events
from agentctl.page.json_responses import json_endpoint, shorten_text
from agentctl.page.kernels import KernelPage, SourceComparison, compare_sources, kernel_page
from agentctl.page.source import HomeSource
from agentctl.plots import plot_spending
from agentctl.run_lookup import find_run
from agentctl.views import shown_fields
from agentctl.views.health import RunHealth, run_health
from agentctl.views.overview import HomeOverview, home_overview
from agentctl.views.owner_process import find_owner_process
from agentctl.views.run import INTERRUPTED, QUEUED
from agentctl.views.run_at_event import RunAtEvent, run_at_event
from agentctl.views.series import CandidateSeries, candidate_series
from agentctl.views.spending import load_spending
from daemon.run_settings import diff_configs
from state.errors import BlobMissing, BlobPruned
from state.reader import LogReader

MAX_BLOB_CHARS = 200_000
"""Characters of a blob that an event shows."""

_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class RunRemedy:
    """What you can do about a run, as a command to type."""

    run: str
    why: str
    command: str


@dataclass(frozen=True, slots=True)
class HomePage:
    """A home now: its overview, its queued runs, and suggested commands.

    `control` is true if the page may steer; `now` is the server's clock (ms since 1970).
    """

    overview: HomeOverview
    waiting: tuple[str, ...]
    remedies: tuple[RunRemedy, ...]
    control: bool
    now: int


@dataclass(frozen=True, slots=True)
class RunComparison:
    """Two runs side by side: the current state of each, and the settings in which they differ."""

    a: RunAtEvent
    b: RunAtEvent
    settings: dict[str, tuple[Any, Any]]


class Pages:
    """The views of one home, by address."""

    def __init__(self, source: HomeSource) -> None:
        self._source = source

    def routes(self) -> list[Route]:
        table: dict[str, Callable[[Request], Any]] = {
            "/api/home": self.home_page,
            "/api/runs/{run}/series": self.candidate_series,
            "/api/runs/{run}/moment": self.run_at_event,
            "/api/runs/{run}/spending": self.run_spending,
            "/api/runs/{run}/health": self.run_health,
            "/api/runs/{run}/kernels/{name}": self.kernel_page,
            "/api/runs/{run}/kernels/{name}/session": self.session_page,
            "/api/runs/{run}/diff": self.source_diff,
            "/api/events": self.list_events,
            "/api/events/{run}/{seq}": self.show_event,
            "/api/compare": self.compare_runs,
        }
        return [Route(path, json_endpoint(answer), methods=["GET"]) for path, answer in table.items()]

    def home_page(self, request: Request) -> HomePage:
        reader = self._source.reader_or_none()
        refused = reader.system_state().refused if reader else None
        owner = find_owner_process(self._source.home, refused=refused)
        everything = request.query_params.get("all") == "1"
        found = home_overview(reader, owner, now_us=time.time() * 1e6, all_=everything)
        return HomePage(
            overview=found,
            waiting=tuple(run for run, _ in queued_runs(self._source.home)),
            remedies=tuple(self._run_remedies(found)),
            control=self._source.control,
            now=round(time.time() * 1e3),
        )

    def _run_remedies(self, found: HomeOverview) -> list[RunRemedy]:
        words = self._source.words
        remedies = []
        for run in found.runs:
            if run.needs_approval:
                waits = f"waits for a person: {', '.join(run.needs_approval)}"
                remedies.append(RunRemedy(run.id, waits, format_command("approve", *words, run.id)))
            elif run.state == INTERRUPTED or (run.state == QUEUED and not found.daemon.is_running):
                remedies.append(
                    RunRemedy(run.id, "nobody drives it", format_command("resume", *words, run.id))
                )
            elif run.state == "paused":
                remedies.append(
                    RunRemedy(run.id, run.reason or "paused", format_command("resume", *words, run.id))
                )
        return remedies

    def candidate_series(self, request: Request) -> CandidateSeries:
        reader, run = self._requested_run(request)
        since = request_params.number_param(request, "since", least=0)
        return candidate_series(reader, run, at=request_params.number_param(request, "at"), since=since or 0)

    def run_at_event(self, request: Request) -> RunAtEvent:
        reader, run = self._requested_run(request)
        return run_at_event(
            reader, run, at=request_params.number_param(request, "at"), owned=self._source.is_owned
        )

    def run_spending(self, request: Request) -> dict[str, Any]:
        found = load_spending(*self._requested_run(request), at=request_params.number_param(request, "at"))
        return {**shown_fields(found), "figure": plot_spending(found.curve)}

    def run_health(self, request: Request) -> RunHealth:
        return run_health(*self._requested_run(request), at=request_params.number_param(request, "at"))

    def kernel_page(self, request: Request) -> KernelPage:
        return kernel_page(
            *self._requested_run(request),
            request.path_params["name"],
            at=request_params.number_param(request, "at"),
        )

    def session_page(self, request: Request) -> SessionPage:
        return session_page(
            *self._requested_run(request),
            request.path_params["name"],
            at=request_params.number_param(request, "at"),
        )

    def source_diff(self, request: Request) -> SourceComparison:
        a, b = (request_params.text_param(request, name) for name in "ab")
        return compare_sources(
            *self._requested_run(request), a, b, at=request_params.number_param(request, "at")
        )

    def list_events(self, request: Request) -> EventPage:
        sought = EventQuery(
            run=request_params.text_param(request, "run") or None,
            types=request_params.event_types_param(request),
            text=request_params.text_param(request, "text"),
            after=request_params.number_param(request, "after", least=0) or 0,
            before=request_params.number_param(request, "before"),
        )
        return query_events(self._source.reader(), sought)

    def show_event(self, request: Request) -> dict[str, Any]:
        """Return an event with the blobs that it names, as text."""
        reader = self._source.reader()
        item = find_event(
            reader, request.path_params["run"], request_params.event_number_param(request, "seq")
        )
        event = item.event.model_dump(mode="json")
        blobs = {digest: _blob_text(reader, digest) for digest in _find_digests(event)}
        return {
            "line": event_line(item),
            "event": event,
            "blobs": {digest: text for digest, text in blobs.items() if text is not None},
            "hash": item.hash,
            "state_hash": item.state_hash,
        }

    def compare_runs(self, request: Request) -> RunComparison:
        reader, names = self._source.reader(), [request_params.text_param(request, name) for name in "ab"]
        for name in names:
            find_run(reader, name)
        a, b = (run_at_event(reader, name, owned=self._source.is_owned) for name in names)
        one, other = (reader.run_state(name).config for name in names)
        return RunComparison(a, b, diff_configs(one, other))

    def _requested_run(self, request: Request) -> tuple[LogReader, str]:
        """Return the reader and the run in the request's path.

        Raises:
            UnknownRun: there is none of that name.
        """
        reader, run = self._source.reader(), str(request.path_params["run"])
        find_run(reader, run)
        return reader, run


def _find_digests(event: dict[str, Any]) -> list[str]:
    """Return the strings of an event that could name a blob, each once, in order; prompt sets are left
    out.
    """
    text = json.dumps({name: value for name, value in event.items() if name != "prompts"})
    return list(dict.fromkeys(_DIGEST.findall(text)))


def _blob_text(reader: LogReader, digest: str) -> str | None:
    """Return a blob as text, shortened; None if the digest names something else."""
    try:
        text = reader.get_blob(digest).decode(errors="replace")
    except BlobPruned as error:
        return f"({error})"
    except BlobMissing:
        return None
    return shorten_text(text, MAX_BLOB_CHARS)
