"""Steering from the page: what a form says becomes a command file in the inbox, as from the command line.

Only what concerns a run that is there, and nothing that names a file, a program or a host of any machine: a
kernel comes as text, a problem not at all. The command carries where it was given, and the process that owns
the home decides and answers in the log.
"""

from __future__ import annotations

import json
from typing import Any

import click
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from agentctl.answers import Sent, answer_to, refuse_early, send
from agentctl.choices import assignments
from agentctl.page import asked
from agentctl.page.answers import Json, answered, refused
from agentctl.page.source import Source
from agentctl.runs import event_number, known_run
from agentctl.seek import event_at
from daemon.amend import amended, run_keys
from daemon.errors import CommandRefused, DaemonError
from daemon.names import unknown
from daemon.verbs import Command, Fork, Steering, Submit, parse, run_id

FIELDS: dict[str, frozenset[str]] = {
    "pause": frozenset({"reason"}),
    "resume": frozenset({"reason"}),
    "cancel": frozenset({"reason"}),
    "approve": frozenset({"reason"}),
    "set": frozenset({"settings"}),
    "fork": frozenset({"seq", "settings"}),
    "propose": frozenset({"source", "note"}),
}
"""The verbs of the page, and what each may say beside the run."""

ELSEWHERE: dict[str, str] = {
    "run.problem": "a problem comes with its files",
    "run.score": "it says what a host runs",
    "run.hosts": "it says where kernels run, and as whom",
    "run.host": "it says where kernels run",
}
"""Settings, with all below them, that are for the command line, and why."""

MOST_BYTES = 1 << 20
"""What a form may send: more than any kernel takes."""


class NotHere(DaemonError):  # noqa: N818 - named for what it is about
    """Something that the page does not do."""

    default_code = "not_on_the_page"


def command_of(content: Any) -> Command:
    """Return the command that a form says.

    Raises:
        NotHere: the page has no such verb, field or setting.
        CommandRefused: a field is wrong.
        click.UsageError: a setting is not KEY=VALUE.
    """
    if not isinstance(content, dict) or not isinstance(content.get("verb"), str):
        raise CommandRefused("not a command: a verb and what it concerns were expected", code="bad_command")
    verb = content["verb"]
    if verb not in FIELDS:
        raise NotHere(f"the page has no {verb[:40]!r}; it has: {', '.join(FIELDS)}")
    odd = sorted(content.keys() - FIELDS[verb] - {"verb", "run"})
    if odd:
        raise NotHere(f"{verb}: the page does not send {', '.join(odd)[:80]}")
    if "settings" in content:
        content = {**content, "settings": _settings(content["settings"])}
    return parse(json.dumps({**content, "origin": "page"}).encode())


def _settings(given: Any) -> dict[str, Any]:
    if not isinstance(given, list) or not all(isinstance(one, str) for one in given):
        raise CommandRefused("settings: a list of KEY=VALUE was expected", code="bad_command")
    settings = assignments(given)
    for name, key in zip(settings, run_keys(settings), strict=True):
        for prefix, why in ELSEWHERE.items():
            if key == prefix or key.startswith((f"{prefix}.", f"{prefix}_")):
                raise NotHere(f"{name} is not set on the page: {why}", hint="agentctl can")
    return settings


class Control:
    """Takes forms and says what became of them."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def routes(self) -> list[Route]:
        return [
            Route("/api/control", self.take, methods=["POST"]),
            Route("/api/control/{id}", answered(self.answer), methods=["GET"]),
        ]

    async def take(self, request: Request) -> Response:
        """Put a form's command into the inbox; the answer says under which id."""
        if not self._source.control:
            return refused("read_only", "this page only looks", "agentctl ui --control lets it steer")
        if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
            return refused("bad_request", "JSON was expected")
        data = bytearray()
        async for part in request.stream():
            data += part
            if len(data) > MOST_BYTES:
                return refused("too_large", f"more than {MOST_BYTES} bytes")
        return await run_in_threadpool(self._taken, bytes(data))

    def _taken(self, data: bytes) -> Response:
        try:
            command = command_of(json.loads(data))
            self._check(command)
            sent = send(self._source.home, command)
        except (ValueError, RecursionError):
            return refused("bad_request", "JSON was expected")
        except click.UsageError as error:
            return refused("bad_setting", error.message)
        except DaemonError as error:
            return refused(error.code, str(error), error.hint)
        said: dict[str, Any] = {"id": sent.id, "after": sent.after}
        if isinstance(command, Fork):
            row = known_run(self._source.reader(), command.run)
            said["run"] = run_id(sent.id, str(row["problem"]))
        return Json(said, status_code=202)

    def _check(self, command: Command) -> None:
        """Refuse what is known to be wrong, as the command line does.

        Raises:
            DaemonError: there is no such run or event, or a setting is wrong.
        """
        if isinstance(command, Steering):
            refuse_early(self._source.home, command)
        elif isinstance(command, Fork):
            reader = self._source.reader()
            known_run(reader, command.run)
            if command.seq is not None:
                event_at(reader, command.run, command.seq)
            state = reader.state(command.run, command.seq)
            amended(state.pending_config or state.config, command.settings, look_up=unknown)
        else:
            assert not isinstance(command, Submit)  # no form makes one

    def answer(self, request: Request) -> dict[str, Any]:
        """Return what became of a command: done with a result, rejected with why, or waiting."""
        after = event_number(request.query_params.get("after", ""))
        sent = Sent(asked_id(request), after or 0)
        reader = self._source.if_any()
        try:
            found = None if reader is None else answer_to(reader, sent)
        except DaemonError as error:
            return {"state": "rejected", "error": error.info.model_dump()}
        if found is None:
            return {"state": "waiting" if self._source.owned else "queued"}
        return {"state": "done", "result": found.result}


def asked_id(request: Request) -> str:
    """Return the id of a command that an address names."""
    return str(request.path_params["id"])[: asked.MOST_TEXT]
