"""Lessons: what benchmark runs learn, stored with their results and offered to the arm that reuses them.

A run is offered what runs on other problems have learnt, never what was learnt on its own problem.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from state.events import SequenceLearnt
from state.log import EventLog
from state.model import SYSTEM_STREAM, LearntSequence
from state.reader import LogReader
from state.records import NewEvent

Lesson = Mapping[str, Any]
"""A learnt sequence, and the sources of the kernels that it names, as JSON."""


def read_lesson(home: Path, run: str) -> dict[str, Any] | None:
    """Return what a run has taught its home; None if nothing of it was verified."""
    with LogReader.open(home) as reader:
        found = next((one for one in reader.system_state().sequences if one.run == run), None)
        if found is None:
            return None
        sources = [reader.get_blob(leg.source).decode() for leg in found.legs]
    return {"sequence": found.model_dump(mode="json"), "sources": sources}


def store_lessons(home: Path, lessons: Sequence[Lesson]) -> None:
    """Store lessons of other runs in a new home."""
    events = [
        NewEvent(SYSTEM_STREAM, SequenceLearnt(sequence=LearntSequence.model_validate(one["sequence"])))
        for one in lessons
    ]
    sources = dict.fromkeys(source for one in lessons for source in one["sources"])
    with EventLog.open(home) as log:
        log.append_now(events, blobs=[source.encode() for source in sources])


def lessons_of_others(
    rows: Mapping[str, Mapping[str, Any]], problem: str, donors: Sequence[str]
) -> list[Lesson]:
    """Return the lessons of the runs `donors`, except those on `problem` itself.

    Raises:
        RuntimeError: one of them has not run, or its results are older than lessons.
    """
    missing = [name for name in donors if not has_lesson(rows.get(name, {}))]
    if missing:
        raise RuntimeError(f"nothing is known of what was learnt in {', '.join(missing)}")
    found = (rows[name] for name in donors)
    return [one["lesson"] for one in found if one["problem"] != problem and one["lesson"] is not None]


def has_lesson(row: Mapping[str, Any]) -> bool:
    """Return whether a result has a lesson field, even if the run learnt nothing."""
    return "lesson" in row
