"""Reads fields of server events; a field of the wrong type counts as absent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_EMPTY: Mapping[str, Any] = {}


def get_table(value: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return a field that is an object; empty if there is none."""
    found = value.get(name)
    return found if isinstance(found, Mapping) else _EMPTY


def get_first_table(value: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return the first object of a field that is a list; empty if there is none."""
    found = value.get(name)
    return found[0] if isinstance(found, list) and found and isinstance(found[0], Mapping) else _EMPTY


def get_text(value: Mapping[str, Any], name: str) -> str | None:
    """Return a field that is text, or None."""
    found = value.get(name)
    return found if isinstance(found, str) else None


def get_count(value: Mapping[str, Any], name: str) -> int | None:
    """Return a field that is a count, or None."""
    found = value.get(name)
    return found if isinstance(found, int) and not isinstance(found, bool) and found >= 0 else None
