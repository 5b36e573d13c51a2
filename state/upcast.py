"""Reading events of any age: upcasters lift old payloads to today's shape, and types are checked.

Rows are never rewritten. An upcaster is a pure, total function on the payload's JSON object, from one
version of one type to the next; they are chained before validation. A type or version that this program
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
from state.model import PauseCause, reason
from state.records import Row, kind_of

Upcaster = Callable[[dict[str, Any]], dict[str, Any]]


def _any_gain(body: dict[str, Any]) -> dict[str, Any]:
    """Before predictions had draws, any predicted gain was kept; runs of that time go on so."""
    config = body.get("config")
    search = config.get("search", {}) if isinstance(config, dict) else None
    if not (isinstance(config, dict) and isinstance(search, dict)):
        return body
    return {**body, "config": {**config, "search": {"confidence_percent": 0.0, **search}}}


def _no_draws(body: dict[str, Any]) -> dict[str, Any]:
    """Latencies without draws, and doubts that nobody put into numbers, are what they were."""
    return body


def _nothing_else(body: dict[str, Any]) -> dict[str, Any]:
    """What was added since has a default that says what was so before it."""
    return body


def _no_looking_ahead(body: dict[str, Any]) -> dict[str, Any]:
    """Before planners looked ahead, none did; runs of that time go on so."""
    config = body.get("config")
    search = config.get("search", {}) if isinstance(config, dict) else None
    if not (isinstance(config, dict) and isinstance(search, dict)):
        return body
    return {**body, "config": {**config, "search": {"lookahead_predictions": 0, **search}}}


def _whole_memory(body: dict[str, Any]) -> dict[str, Any]:
    """Before plans were told a part of what was learnt, they were told all; runs of that time go on so."""
    config = body.get("config")
    llm = config.get("llm", {}) if isinstance(config, dict) else None
    if not (isinstance(config, dict) and isinstance(llm, dict)) or not llm.get("models"):
        return body
    return {**body, "config": {**config, "llm": {"memory_dropout_percent": 0.0, **llm}}}


def _by_person(body: dict[str, Any]) -> dict[str, Any]:
    """The cause of a pause stood in its reason only, which is no evidence: a person lets the run go on."""
    return {**body, "cause": PauseCause.PERSON}


UPCASTERS: dict[tuple[str, int], Upcaster] = {
    ("RunCreated", 1): _any_gain,
    ("RunCreated", 2): _nothing_else,
    ("RunCreated", 3): _nothing_else,
    ("RunCreated", 4): _no_looking_ahead,
    ("RunCreated", 5): _nothing_else,
    ("RunCreated", 6): _nothing_else,
    ("RunCreated", 7): _nothing_else,
    ("RunCreated", 8): _whole_memory,
    ("RunForked", 1): _nothing_else,
    ("RunForked", 2): _nothing_else,
    ("RunForked", 3): _nothing_else,
    ("RunForked", 4): _nothing_else,
    ("RunPaused", 1): _nothing_else,
    ("RunPaused", 2): _by_person,
    ("RunPaused", 3): _nothing_else,
    ("RunResumed", 1): _nothing_else,
    ("ConfigChanged", 1): _any_gain,
    ("ConfigChanged", 2): _nothing_else,
    ("ConfigChanged", 3): _nothing_else,
    ("ConfigChanged", 4): _no_looking_ahead,
    ("ConfigChanged", 5): _nothing_else,
    ("ConfigChanged", 6): _nothing_else,
    ("ConfigChanged", 7): _nothing_else,
    ("ConfigChanged", 8): _whole_memory,
    ("RoundStarted", 1): _nothing_else,
    ("EvaluationCompleted", 1): _no_draws,
    ("EvaluationCompleted", 2): _nothing_else,
    ("EvaluationCompleted", 3): _nothing_else,
    ("EvaluationFailed", 1): _nothing_else,
    ("KernelKept", 1): _no_draws,
    ("KernelDiscarded", 1): _no_draws,
    ("BeamSelected", 1): _no_draws,
    ("GuardCheckpointed", 1): _no_draws,
    ("KernelKept", 2): _nothing_else,
    ("KernelDiscarded", 2): _nothing_else,
    ("BeamSelected", 2): _nothing_else,
    ("GuardCheckpointed", 2): _nothing_else,
    ("RunCompleted", 1): _nothing_else,
    ("RoundCompleted", 1): _nothing_else,
    ("RoundCompleted", 2): _nothing_else,
    ("PlanProposed", 1): _nothing_else,
    ("CommandReceived", 1): _nothing_else,
    ("CallStarted", 1): _nothing_else,
    ("CallCompleted", 1): _nothing_else,
    ("DayReserved", 1): _nothing_else,
    ("DaySettled", 1): _nothing_else,
    ("SequenceLearnt", 1): _nothing_else,
    ("SequencesGiven", 1): _nothing_else,
}
"""(type, version) -> what makes version + 1 of it."""


@cache
def _reader_of(type_: str) -> Callable[[str], Event]:
    """Return what reads the payload of a type; it is built when first asked for: few programs meet all."""
    read: Callable[[str], Event] = EVENT_TYPES[type_].__pydantic_validator__.validate_json
    return read


def decode(row: Row) -> Event:
    """Return the validated event of a row.

    Raises:
        LogTooNew: its type or version is unknown here.
        LogDamaged: its payload is not such an event.
    """
    known = EVENT_TYPES.get(row.type)
    if known is None:
        raise _too_new(row.type, row.sv)
    try:
        payload = row.payload if row.sv == known.version else upcast(row.type, row.sv, row.payload)
        event = _reader_of(row.type)(payload)
    except ValueError as error:  # no JSON, which upcasting needs, or not what the type says
        why = reason(error.errors()[0]) if isinstance(error, ValidationError) else str(error)
        what = f"payload is not a {row.type}: {why}"
        raise LogDamaged(what, seq=row.seq, stream=row.stream, run_seq=row.run_seq) from error
    return event


def upcast(
    type_: str, version: int, payload: str, *, upcasters: Mapping[tuple[str, int], Upcaster] = UPCASTERS
) -> str:
    """Return the JSON text of `payload` (version `version` of `type_`) in today's version.

    Raises:
        LogTooNew: there is no way from that version to today's.
        ValueError: `payload` is not a JSON object, or of no version at all.
    """
    current = EVENT_TYPES[type_].version
    body = json.loads(payload)
    if not isinstance(body, dict) or version < 1:
        raise ValueError(f"version {version} of it is nothing that was ever written")
    for step in range(version, current):
        body = upcasters[type_, step](body)
    if version > current:
        raise _too_new(type_, version)
    return json.dumps(body)


def check_kinds(kinds: list[tuple[object, object]]) -> None:
    """Refuse a log that holds a type or version unknown here, before anything is folded.

    Raises:
        LogTooNew: naming the first such kind.
        LogDamaged: what is there is no list of kinds.
    """
    for type_, version in map(kind_of, kinds):
        known = EVENT_TYPES.get(type_) if isinstance(type_, str) else None
        if known is None or version > known.version:
            raise _too_new(type_, version)


def _too_new(type_: str, version: int) -> LogTooNew:
    return LogTooNew(
        f"the log holds {type_} version {version}, written by a newer version; upgrade to read it"
    )
