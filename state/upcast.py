"""Decodes events of any age: upcasters convert old payloads to today's shape, and types are checked.

Rows are never rewritten. An upcaster is a pure, total function on the payload's JSON object, from one version
of one type to the next; upcasters are chained before validation. A type or version that this program does not
know was written by a newer one, and is refused rather than half understood.
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


def _accept_any_gain(body: dict[str, Any]) -> dict[str, Any]:
    """Keep any predicted gain, as runs did before predictions had draws."""
    config = body.get("config")
    search = config.get("search", {}) if isinstance(config, dict) else None
    if not (isinstance(config, dict) and isinstance(search, dict)):
        return body
    return {**body, "config": {**config, "search": {"confidence_percent": 0.0, **search}}}


def _without_draws(body: dict[str, Any]) -> dict[str, Any]:
    """Latencies without draws, and uncertainty without numbers, stay as they are."""
    return body


def _unchanged(body: dict[str, Any]) -> dict[str, Any]:
    """Change nothing: the defaults of new fields describe the old behaviour."""
    return body


def _disable_lookahead(body: dict[str, Any]) -> dict[str, Any]:
    """Switch the lookahead off, as in runs before it existed."""
    config = body.get("config")
    search = config.get("search", {}) if isinstance(config, dict) else None
    if not (isinstance(config, dict) and isinstance(search, dict)):
        return body
    return {**body, "config": {**config, "search": {"lookahead_predictions": 0, **search}}}


def _disable_memory_dropout(body: dict[str, Any]) -> dict[str, Any]:
    """Show plans all that was learnt, as in runs before a part of it was drawn."""
    config = body.get("config")
    llm = config.get("llm", {}) if isinstance(config, dict) else None
    if not (isinstance(config, dict) and isinstance(llm, dict)) or not llm.get("models"):
        return body
    return {**body, "config": {**config, "llm": {"memory_dropout_percent": 0.0, **llm}}}


def _paused_by_person(body: dict[str, Any]) -> dict[str, Any]:
    """Let a person end the pause: older events give the cause only as text, which is no evidence."""
    return {**body, "cause": PauseCause.PERSON}


UPCASTERS: dict[tuple[str, int], Upcaster] = {
    ("RunCreated", 1): _accept_any_gain,
    ("RunCreated", 2): _unchanged,
    ("RunCreated", 3): _unchanged,
    ("RunCreated", 4): _disable_lookahead,
    ("RunCreated", 5): _unchanged,
    ("RunCreated", 6): _unchanged,
    ("RunCreated", 7): _unchanged,
    ("RunCreated", 8): _disable_memory_dropout,
    ("RunForked", 1): _unchanged,
    ("RunForked", 2): _unchanged,
    ("RunForked", 3): _unchanged,
    ("RunForked", 4): _unchanged,
    ("RunPaused", 1): _unchanged,
    ("RunPaused", 2): _paused_by_person,
    ("RunPaused", 3): _unchanged,
    ("RunResumed", 1): _unchanged,
    ("ConfigChanged", 1): _accept_any_gain,
    ("ConfigChanged", 2): _unchanged,
    ("ConfigChanged", 3): _unchanged,
    ("ConfigChanged", 4): _disable_lookahead,
    ("ConfigChanged", 5): _unchanged,
    ("ConfigChanged", 6): _unchanged,
    ("ConfigChanged", 7): _unchanged,
    ("ConfigChanged", 8): _disable_memory_dropout,
    ("RoundStarted", 1): _unchanged,
    ("EvaluationCompleted", 1): _without_draws,
    ("EvaluationCompleted", 2): _unchanged,
    ("EvaluationCompleted", 3): _unchanged,
    ("EvaluationFailed", 1): _unchanged,
    ("KernelKept", 1): _without_draws,
    ("KernelDiscarded", 1): _without_draws,
    ("BeamSelected", 1): _without_draws,
    ("GuardCheckpointed", 1): _without_draws,
    ("KernelKept", 2): _unchanged,
    ("KernelDiscarded", 2): _unchanged,
    ("BeamSelected", 2): _unchanged,
    ("GuardCheckpointed", 2): _unchanged,
    ("RunCompleted", 1): _unchanged,
    ("RoundCompleted", 1): _unchanged,
    ("RoundCompleted", 2): _unchanged,
    ("PlanProposed", 1): _unchanged,
    ("CommandReceived", 1): _unchanged,
    ("CallStarted", 1): _unchanged,
    ("CallCompleted", 1): _unchanged,
    ("DayReserved", 1): _unchanged,
    ("DaySettled", 1): _unchanged,
    ("SequenceLearnt", 1): _unchanged,
    ("SequencesGiven", 1): _unchanged,
}
"""(type, version) -> the function that converts it to version + 1."""


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
        LogTooNew: no upcasters lead from that version to today's.
        ValueError: `payload` is not a JSON object, or the version cannot exist.
    """
    current = EVENT_TYPES[type_].version
    body = json.loads(payload)
    if not isinstance(body, dict) or version < 1:
        raise ValueError(f"version {version} of it is nothing that was ever written")
    for step in range(version, current):
        body = upcasters[type_, step](body)
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
