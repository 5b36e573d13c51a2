"""Decodes events of any age: upcasters convert old payloads to today's shape, and types are checked.

Rows are never rewritten. A version that only gained fields whose defaults describe what events did before
needs no upcaster. Any other change has one: a pure, total function on the payload's JSON object, from one
version of one type to the next; upcasters are chained before validation. A type or version that this program
does not know was written by a newer one, and is refused rather than half understood.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from pydantic import ValidationError

from state.errors import LogDamaged, LogTooNew
from state.events import EVENT_TYPES, Event
from state.model import PauseCause, validation_reason
from state.records import EventRow, parse_kind

Upcaster = Callable[[dict[str, Any]], dict[str, Any]]


def _set_default(section: str, key: str, value: object) -> Upcaster:
    """Return an upcaster that gives runs of before a setting the value that describes what they did.

    It leaves the content of a configuration file as it is, which is for runs to come.
    """

    def upcast(body: dict[str, Any]) -> dict[str, Any]:
        config = body.get("config")
        if isinstance(config, dict) and "daemon" in config:
            return body
        found = config.get(section, {}) if isinstance(config, dict) else None
        if not (isinstance(config, dict) and isinstance(found, dict)):
            return body
        return {**body, "config": {**config, section: {key: value, **found}}}

    return upcast


_accept_any_gain = _set_default("search", "confidence_percent", 0.0)
_disable_lookahead = _set_default("search", "lookahead_predictions", 0)


_keep_winners_as_they_are = _set_default("search", "simplify", False)


def _keep_rebased_winners_as_they_are(body: dict[str, Any]) -> dict[str, Any]:
    rebase = body.get("rebase")
    return {**body, "rebase": _keep_winners_as_they_are(rebase)} if isinstance(rebase, dict) else body


def _disable_memory_dropout(body: dict[str, Any]) -> dict[str, Any]:
    """Show plans all that was learnt; only a run that asks models is configured for that."""
    config = body.get("config")
    llm = config.get("llm") if isinstance(config, dict) else None
    has_models = isinstance(llm, dict) and bool(llm.get("models"))
    return _set_default("llm", "memory_dropout_percent", 0.0)(body) if has_models else body


def _paused_by_person(body: dict[str, Any]) -> dict[str, Any]:
    """Let a person end the pause: older events give the cause only as text, which is no evidence."""
    return {**body, "cause": PauseCause.PERSON}


UPCASTERS: dict[tuple[str, int], Upcaster] = {
    ("RunCreated", 1): _accept_any_gain,
    ("RunCreated", 4): _disable_lookahead,
    ("RunCreated", 8): _disable_memory_dropout,
    ("RunCreated", 10): _keep_winners_as_they_are,
    ("RunForked", 6): _keep_rebased_winners_as_they_are,
    ("RunPaused", 2): _paused_by_person,
    ("ConfigChanged", 1): _accept_any_gain,
    ("ConfigChanged", 4): _disable_lookahead,
    ("ConfigChanged", 8): _disable_memory_dropout,
    ("ConfigChanged", 10): _keep_winners_as_they_are,
}
"""(type, version) -> the function that converts it to version + 1, where defaults do not describe it."""


@cache
def _payload_reader(type_: str) -> Callable[[str], Event]:
    """Return the parser of a type's payload; built on first use, because few programs need all types."""
    read: Callable[[str], Event] = EVENT_TYPES[type_].__pydantic_validator__.validate_json
    return read


def decode_event(row: EventRow) -> Event:
    """Return the validated event of a row.

    Raises:
        LogTooNew: its type or version is unknown here.
        LogDamaged: its payload is not such an event.
    """
    known = EVENT_TYPES.get(row.type)
    if known is None:
        raise _too_new_error(row.type, row.sv)
    try:
        payload = row.payload if row.sv == known.version else upcast_payload(row.type, row.sv, row.payload)
        event = _payload_reader(row.type)(payload)
    except ValueError as error:  # not JSON, which upcasting needs, or not such an event
        why = validation_reason(error.errors()[0]) if isinstance(error, ValidationError) else str(error)
        what = f"payload is not a {row.type}: {why}"
        raise LogDamaged(what, seq=row.seq, stream=row.stream, run_seq=row.run_seq) from error
    return event


def upcast_payload(
    type_: str, version: int, payload: str, *, upcasters: Mapping[tuple[str, int], Upcaster] = UPCASTERS
) -> str:
    """Return the JSON text of `payload` (version `version` of `type_`) in today's version.

    Raises:
        LogTooNew: that version is newer than today's.
        ValueError: `payload` is not a JSON object, or the version cannot exist.
    """
    current = EVENT_TYPES[type_].version
    body = json.loads(payload)
    if not isinstance(body, dict) or version < 1:
        raise ValueError(f"its version {version} was never written")
    for step in range(version, current):
        if (upcaster := upcasters.get((type_, step))) is not None:
            body = upcaster(body)
    if version > current:
        raise _too_new_error(type_, version)
    return json.dumps(body)


def check_kinds(kinds: list[tuple[object, object]]) -> None:
    """Refuse a log that holds an unknown type or version, before anything is folded.

    Raises:
        LogTooNew: names the first such kind.
        LogDamaged: the list of kinds is damaged.
    """
    for type_, version in map(parse_kind, kinds):
        known = EVENT_TYPES.get(type_) if isinstance(type_, str) else None
        if known is None or version > known.version:
            raise _too_new_error(type_, version)


def _too_new_error(type_: str, version: int) -> LogTooNew:
    return LogTooNew(
        f"the log holds {type_} version {version}, written by a newer version; upgrade to read it"
    )
