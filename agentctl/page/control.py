"""Steering from the page: turns a form into a command file in the inbox, as the command line does.

The page can only command existing runs, and cannot name a file, a program or a host of any machine: a
kernel comes as text, and a problem cannot come at all. The command carries its origin. The process that
owns the home decides, and answers in the log.
"""

from __future__ import annotations

import json
from typing import Any

import click
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from agentctl.command_answers import SentCommand, find_answer, refuse_illegal_command, send_command
from agentctl.event_lookup import find_event
from agentctl.page import request_params
from agentctl.page.json_responses import ViewResponse, error_response, json_endpoint
from agentctl.page.source import HomeSource
from agentctl.run_flags import parse_assignments
from agentctl.run_lookup import find_run, parse_event_number
from daemon.command_models import Command, Fork, SteeringCommand, Submit, parse_command, run_id
from daemon.errors import CommandRefused, DaemonError
from daemon.name_checks import find_unknown_names
from daemon.run_settings import apply_settings, expand_run_keys

FORM_FIELDS: dict[str, frozenset[str]] = {
    "pause": frozenset({"reason"}),
    "resume": frozenset({"reason"}),
    "cancel": frozenset({"reason"}),
    "approve": frozenset({"reason"}),
    "set": frozenset({"settings"}),
    "fork": frozenset({"seq", "settings"}),
    "propose": frozenset({"source", "note"}),
}
"""The verbs of the page, and the fields that each may have besides the run."""

CLI_ONLY_SETTINGS: dict[str, str] = {
    "run.problem": "a problem comes with its files",
    "run.score": "it says what a host runs",
    "run.hosts": "it says where kernels run, and as whom",
    "run.host": "it says where kernels run",
    "run.agent": "it says which program is started here",
}
"""Settings, with all below them, that only the command line may change, and why."""

MAX_FORM_BYTES = 1 << 20
"""The maximum size of a form: more than any kernel needs."""


class NotOnPage(DaemonError):  # noqa: N818 - named for what it is about
    """Something that the page does not do."""

    default_code = "not_on_the_page"


def parse_form(content: Any) -> Command:
    """Return the command in a form.

    Raises:
        NotOnPage: the page has no such verb, field or setting.
        CommandRefused: a field is wrong.
        click.UsageError: a setting is not KEY=VALUE.
    """
    if not isinstance(content, dict) or not isinstance(content.get("verb"), str):
        raise CommandRefused("not a command: a verb and what it concerns were expected", code="bad_command")
    verb = content["verb"]
    if verb not in FORM_FIELDS:
        raise NotOnPage(f"the page has no {verb[:40]!r}; it has: {', '.join(FORM_FIELDS)}")
    odd = sorted(content.keys() - FORM_FIELDS[verb] - {"verb", "run"})
    if odd:
        raise NotOnPage(f"{verb} has no field {', '.join(odd)[:80]}")
    if "settings" in content:
        content = {**content, "settings": _parse_settings(content["settings"])}
    return parse_command(json.dumps({**content, "origin": "page"}).encode())


def _parse_settings(given: Any) -> dict[str, Any]:
    if not isinstance(given, list) or not all(isinstance(one, str) for one in given):
        raise CommandRefused("settings: a list of KEY=VALUE was expected", code="bad_command")
    settings = parse_assignments(given)
    for name, key in zip(settings, expand_run_keys(settings), strict=True):
        if (why := find_cli_only(key)) is not None:
            raise NotOnPage(f"{name} is not set on the page: {why}", hint="agentctl can")
    return settings


def find_cli_only(key: str) -> str | None:
    """Return why only the command line may change a setting; None if others may."""
    for prefix, why in CLI_ONLY_SETTINGS.items():
        if key == prefix or key.startswith((f"{prefix}.", f"{prefix}_")):
            return why
    return None


class ControlRoutes:
    """Accepts forms and reports what happened to their commands."""

    def __init__(self, source: HomeSource) -> None:
        self._source = source

    def routes(self) -> list[Route]:
        return [
            Route("/api/control", self.receive_form, methods=["POST"]),
            Route("/api/control/{id}", json_endpoint(self.command_answer), methods=["GET"]),
        ]

    async def receive_form(self, request: Request) -> Response:
        """Put a form's command into the inbox; the response has its id."""
        if not self._source.control:
            return error_response("read_only", "this page only looks", "agentctl ui --control lets it steer")
        if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
            return error_response("bad_request", "JSON was expected")
        data = bytearray()
        async for part in request.stream():
            data += part
            if len(data) > MAX_FORM_BYTES:
                return error_response("too_large", f"more than {MAX_FORM_BYTES} bytes")
        return await run_in_threadpool(self._send_form, bytes(data))

    def _send_form(self, data: bytes) -> Response:
        try:
            command = parse_form(json.loads(data))
            self._check_command(command)
            sent = send_command(self._source.home, command)
        except (ValueError, RecursionError):
            return error_response("bad_request", "JSON was expected")
        except click.UsageError as error:
            return error_response("bad_setting", error.message)
        except DaemonError as error:
            return error_response(error.code, str(error), error.hint)
        said: dict[str, Any] = {"id": sent.id, "after": sent.after}
        if isinstance(command, Fork):
            row = find_run(self._source.reader(), command.run)
            said["run"] = run_id(sent.id, str(row["problem"]))
        return ViewResponse(said, status_code=202)

    def _check_command(self, command: Command) -> None:
        """Refuse known faults, as the command line does.

        Raises:
            DaemonError: there is no such run or event, or a setting is wrong.
        """
        if isinstance(command, SteeringCommand):
            refuse_illegal_command(self._source.home, command)
        elif isinstance(command, Fork):
            reader = self._source.reader()
            find_run(reader, command.run)
            if command.seq is not None:
                find_event(reader, command.run, command.seq)
            state = reader.run_state(command.run, command.seq)
            apply_settings(state.pending_config or state.config, command.settings, look_up=find_unknown_names)
        else:
            assert not isinstance(command, Submit)  # no form creates a Submit

    def command_answer(self, request: Request) -> dict[str, Any]:
        """Return the state of a command: done with a result, rejected with a reason, or waiting."""
        after = parse_event_number(request.query_params.get("after", ""))
        sent = SentCommand(command_id(request), after or 0)
        reader = self._source.reader_or_none()
        try:
            found = None if reader is None else find_answer(reader, sent)
        except DaemonError as error:
            return {"state": "rejected", "error": error.info.model_dump()}
        if found is None:
            return {"state": "waiting" if self._source.is_owned else "queued"}
        return {"state": "done", "result": found.result}


def command_id(request: Request) -> str:
    """Return the id of the command in the request's path."""
    return str(request.path_params["id"])[: request_params.MOST_TEXT]
