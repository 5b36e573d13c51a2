"""Views of a home as data: functions of the log that the command line, the live page and reports use.

Each module has one topic and returns frozen dataclasses of JSON values. `as_json` turns one into a
dictionary, and `--json` prints that. Nothing here prints, sleeps or reads a clock; callers pass the time
in. Open `overview.py` first (a whole home), then `run.py` (one run) and `candidate.py` (one kernel).
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any

OMIT_EMPTY = "omit_empty"


def shown_fields(view: Any) -> dict[str, Any]:
    """Return the fields of a view; empty ones with the metadata `OMIT_EMPTY` are left out."""
    found = ((one, getattr(view, one.name)) for one in fields(view))
    return {one.name: value for one, value in found if value or OMIT_EMPTY not in one.metadata}


def as_json(view: Any) -> Any:
    """Return a view as JSON values: dataclasses become dictionaries, tuples become lists."""
    if is_dataclass(view) and not isinstance(view, type):
        return {name: as_json(value) for name, value in shown_fields(view).items()}
    if isinstance(view, dict):
        return {key: as_json(value) for key, value in view.items()}
    if isinstance(view, list | tuple):
        return [as_json(value) for value in view]
    return view
