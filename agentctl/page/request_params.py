"""Reads names and numbers from a request's address, and checks them."""

from __future__ import annotations

from starlette.requests import Request

from agentctl.run_lookup import parse_event_number
from daemon.errors import DaemonError
from state.events import EVENT_TYPES, FAMILIES

MOST_TEXT = 200
"""The maximum length of a text parameter, in characters."""


class BadRequest(DaemonError):  # noqa: N818 - named for what it is about
    """The address has a parameter that is not valid."""

    default_code = "bad_request"


def number_param(request: Request, name: str, *, least: int = 1) -> int | None:
    """Return a number from the query, None if it is missing.

    Raises:
        BadRequest: it is not a number, or below `least`.
    """
    text = request.query_params.get(name)
    if text is None:
        return None
    found = parse_event_number(text)
    if found is None or found < least:
        raise BadRequest(f"{name}: {text[:MOST_TEXT]!r} is not a number of {least} or more")
    return found


def text_param(request: Request, name: str) -> str:
    """Return a text from the query, "" if it is missing.

    Raises:
        BadRequest: it is longer than `MOST_TEXT`.
    """
    found = request.query_params.get(name, "")
    if len(found) > MOST_TEXT:
        raise BadRequest(f"{name}: longer than {MOST_TEXT} characters")
    return found


def event_types_param(request: Request) -> tuple[str, ...] | None:
    """Return the event types that the families and names in the query select; None for all.

    Raises:
        BadRequest: one is neither a family nor a type.
    """
    chosen: set[str] = set()
    for word in filter(None, text_param(request, "types").split(",")):
        names = FAMILIES.get(word, (word,) if word in EVENT_TYPES else ())
        if not names:
            raise BadRequest(f"types: {word!r} is neither a family nor the name of an event")
        chosen.update(names)
    return tuple(sorted(chosen)) or None


def event_number_param(request: Request, name: str) -> int:
    """Return an event number from the request's path.

    Raises:
        BadRequest: it is not an event number.
    """
    found = parse_event_number(request.path_params[name])
    if not found:
        raise BadRequest(f"{request.path_params[name][:MOST_TEXT]!r} is not the number of an event")
    return found
