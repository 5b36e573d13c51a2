"""Reads fields of server events; a field of the wrong type counts as absent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_EMPTY: Mapping[str, Any] = {}


def get_table(value: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return a field that is an object; empty if there is none."""
    return _table(value.get(name))


def get_first_table(value: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return the first object of a field that is a list; empty if there is none."""
    found = value.get(name)
    return found[0] if isinstance(found, list) and found and isinstance(found[0], Mapping) else _EMPTY


def get_text(value: Mapping[str, Any], name: str) -> str | None:
    """Return a field that is text, or None."""
    found = value.get(name)
    return found if isinstance(found, str) else None


def get_text_or_parts(value: Mapping[str, Any], name: str) -> str:
    """Return a field that is text, or a list of parts with texts, joined; other parts are left out."""
    found = value.get(name)
    if not isinstance(found, list):
        return get_text(value, name) or ""
    texts = (part if isinstance(part, str) else get_text(_table(part), "text") for part in found)
    return "".join(text for text in texts if text)


def _table(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else _EMPTY


def get_count(value: Mapping[str, Any], name: str) -> int | None:
    """Return a field that is a count, or None."""
    found = value.get(name)
    return found if isinstance(found, int) and not isinstance(found, bool) and found >= 0 else None
