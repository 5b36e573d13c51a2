"""Experiences in files: `optimization_memory/rewrites.json`, a list of objects with slow, fast and summary.

Such a file is read with keys missing; what it says is data of somebody else's: bounded, and without
characters that nobody sees. Files written here have one key more, `about`: what an experience is found by.
One without it is found by the instructions of its kernel.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pydantic import JsonValue, ValidationError

from agent_core.experiences import told
from agent_core.sequences import operators
from daemon.errors import CommandRefused, DaemonError, UnknownExperience
from daemon.reading import read_regular
from daemon.verbs import Learn, Remembering, Rewrite
from state.errors import BlobMissing
from state.events import Event, ExperiencesForgotten, ExperiencesLearnt
from state.learnt import MOST_IMPORTED
from state.model import About, LearntExperience, Tags, digest_of, reason
from state.reader import LogReader
from state.system import SystemState

MOST_BYTES = 16 << 20
"""Of a file that is read."""

Handed = tuple[Event | None, tuple[bytes, ...], dict[str, JsonValue]]
"""An event if there is anything to store, the blobs that it names, and what its command is answered with."""


def read(path: Path) -> tuple[tuple[Rewrite, ...], int]:
    """Return the experiences of a file, and how many of its entries say nothing.

    Raises:
        OSError: it cannot be read, or is larger than `MOST_BYTES`.
        DaemonError: it is not such a list, or has nothing, too much or wrong values in it; all are named.
    """
    try:
        content = json.loads(read_regular(path, most=MOST_BYTES))
    except (ValueError, RecursionError) as error:
        raise _bad(path, f"not JSON: {error}") from error
    if not isinstance(content, list) or not all(isinstance(one, dict) for one in content):
        raise _bad(path, "a list of objects with slow, fast and summary was expected")
    said = {at: one for at, one in enumerate(content) if one.get("summary") not in (None, "")}
    if not said:
        raise _bad(path, "no entry has a summary")
    if len(said) > MOST_IMPORTED:
        raise _bad(path, f"{len(said)} experiences; a home keeps {MOST_IMPORTED} of files")
    return _checked(path, said), len(content) - len(said)


def _checked(path: Path, said: dict[int, dict[str, Any]]) -> tuple[Rewrite, ...]:
    made, faults = [], []
    for at, one in said.items():
        known = {name: one[name] for name in Rewrite.model_fields if one.get(name) is not None}
        try:
            made.append(Rewrite.model_validate(known))
        except ValidationError as error:
            faults += [
                f"[{at}].{'.'.join(map(str, fault['loc']))}: {reason(fault).lower()}"
                for fault in error.errors(include_input=False)
            ]
    if faults:
        raise _bad(path, "; ".join(faults))
    return tuple(made)


def _bad(path: Path, what: str) -> DaemonError:
    return DaemonError(f"{path}: {what}", code="bad_rewrites")


def written(found: Iterable[LearntExperience], reader: LogReader) -> str:
    """Return experiences as the text of such a file; a kernel that is lost is left empty."""
    rows = [
        {
            "slow": source(one.slow, reader),
            "fast": source(one.fast, reader),
            "summary": one.summary,
            "about": one.about.model_dump(mode="json", exclude_defaults=True),
        }
        for one in found
    ]
    return json.dumps(rows, indent=2) + "\n"


def source(digest: str | None, reader: LogReader) -> str:
    """Return a kernel that an experience names, empty where it names none or the log has lost it."""
    try:
        return reader.blob(digest).decode(errors="replace") if digest else ""
    except BlobMissing:
        return ""


def handed_in(command: Remembering, system: SystemState) -> Handed:
    """Return what a command on the home's experiences comes to.

    Raises:
        CommandRefused: an experience has nothing to read in it.
        UnknownExperience: it names one that is not there.
    """
    there = {one.id for one in system.experiences}
    if not isinstance(command, Learn):
        for id_ in command.ids:
            if id_ not in there:
                raise UnknownExperience.of(id_)
        return ExperiencesForgotten(ids=command.ids), (), {"forgotten": list(command.ids)}
    blobs: dict[str, bytes] = {}
    made = {one.id: one for one in (_learnt(command, rewrite, blobs) for rewrite in command.rewrites)}
    fresh = tuple(one for id_, one in made.items() if id_ not in there)
    said: dict[str, JsonValue] = {"learnt": [one.id for one in fresh], "known": len(made) - len(fresh)}
    if not fresh:
        return None, (), said
    return ExperiencesLearnt(experiences=fresh), tuple(blobs.values()), said


def _learnt(command: Learn, rewrite: Rewrite, blobs: dict[str, bytes]) -> LearntExperience:
    from agent_core.roles.llm.quoting import clean, line

    summary = told(rewrite.summary)
    if not summary:
        raise CommandRefused(f"learn: a summary of {line(command.file)} has nothing in it")
    sources = [clean(text) for text in (rewrite.slow, rewrite.fast)]
    digests = [digest_of(text.encode()) if text.strip() else None for text in sources]
    blobs |= {name: text.encode() for name, text in zip(digests, sources, strict=True) if name}
    return LearntExperience(
        origin=line(command.file),
        imported=True,
        about=_about(rewrite.about) if rewrite.about else About(tags=_tags(command.target, sources)),
        slow=digests[0],
        fast=digests[1],
        summary=summary,
    )


def _tags(target: str, sources: Iterable[str]) -> Tags:
    """Return what can be said of kernels by themselves: what they call, nothing of shapes and data types."""
    from agent_core.roles.llm.quoting import line

    called = next((found for one in sources if (found := operators(one, target))), frozenset[str]())
    return Tags(target=line(target), operators=tuple(sorted(called)), dtypes=(), extents=())


def _about(about: About) -> About:
    """Return it with its words in lines of what can be seen."""
    from agent_core.roles.llm.quoting import line

    tags = about.tags
    return About(
        tags=Tags(
            target=line(tags.target),
            operators=tuple(sorted({line(name) for name in tags.operators})),
            dtypes=tuple(sorted({line(name) for name in tags.dtypes})),
            extents=tags.extents,
        ),
        kind=about.kind,
        technique=line(about.technique),
        speedup=about.speedup,
        predicted=about.predicted,
        toolchain=line(about.toolchain),
        problem=line(about.problem),
    )
