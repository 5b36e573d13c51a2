"""What there is to see of a home, as data: functions of the log, for the command line, the page and reports.

Each module has one topic and gives frozen dataclasses of JSON values; `as_json` makes a dictionary of one,
and that is what `--json` prints. Nothing here prints, sleeps, or looks at a clock: who needs to know what
time it is passes it in. Open `overview.py` first (all of a home), then `run.py` (one run) and `candidate.py`
(one kernel).
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any


def as_json(view: Any) -> Any:
    """Return a view as JSON values: dataclasses become dictionaries, tuples lists."""
    if is_dataclass(view) and not isinstance(view, type):
        return {one.name: as_json(getattr(view, one.name)) for one in fields(view)}
    if isinstance(view, dict):
        return {key: as_json(value) for key, value in view.items()}
    if isinstance(view, list | tuple):
        return [as_json(value) for value in view]
    return view
