"""What a profile says beside its counters: what is wasted, which lines cost time, what could not be read.

A profile may be anybody's: what has not the documented form is left out.
"""

from __future__ import annotations

from collections.abc import Iterator


def wasted_messages(profile: object) -> tuple[str, ...]:
    """What a kernel does in vain, in words; the largest share first."""
    found = _field(profile, "inefficiencies")
    return tuple(
        one["message"]
        for one in (found if isinstance(found, list) else ())
        if isinstance(one, dict) and type(one.get("message")) is str
    )


def busy_lines(profile: object) -> Iterator[str]:
    """The lines of a measured kernel that keep engines busy longest."""
    found = _field(profile, "busy_lines")
    for one in found if isinstance(found, list) else ():
        match one:
            case {"line": int(line), "engine": str(engine), "ms": int(ms) | float(ms), "op": str(op)}:
                yield f"line {line} keeps {engine} busy for {ms:.4g} ms, mostly {op}"


def profile_notes(profile: object) -> Iterator[str]:
    """Why tables of a measured profile were not read, and which fields their release lacks."""
    notes = _field(profile, "table_notes")
    yield from (note for note in (notes if isinstance(notes, list) else ()) if type(note) is str)
    match _field(profile, "missing_fields"):
        case {"fields": list(fields), "schema_version": str(version)}:
            yield f"the tables (schema {version}) lack {', '.join(map(str, fields))}"


def _field(profile: object, name: str) -> object:
    return profile.get(name) if isinstance(profile, dict) else None
