"""Reads and writes experiences as files: `rewrites.json`, a list of objects with `slow`, `fast` and
`summary`.

The format is that of AccelOpt's `optimization_memory/rewrites.json`. Keys may be missing. The content is
untrusted: it is bounded, and invisible characters are removed. Files written here have one more key,
`about`, by which an experience is found later. One without it is found by the instructions of its
kernels.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pydantic import JsonValue, ValidationError

from agent_core.experiences import clean_summary
from agent_core.sequences import collect_operators
from daemon.command_models import ExperienceCommand, ExperienceEntry, Learn
from daemon.errors import CommandRefused, DaemonError, UnknownExperience
from daemon.safe_read import read_regular_file
from state.errors import BlobMissing
from state.events import Event, ExperiencesForgotten, ExperiencesLearnt
from state.learning import MAX_IMPORTED
from state.model import ExperienceContext, LearntExperience, ProblemTags, digest_of, validation_reason
from state.reader import LogReader
from state.system import SystemState

MAX_FILE_BYTES = 16 << 20
"""The largest file that is read."""

ExperienceChange = tuple[Event | None, tuple[bytes, ...], dict[str, JsonValue]]
"""An event (None if there is nothing to store), the blobs that it names, and the answer to its command."""


def read_experiences(path: Path) -> tuple[tuple[ExperienceEntry, ...], int]:
    """Return the experiences of a file, and how many of its entries have no summary.

    Raises:
        OSError: the file cannot be read, or is larger than `MAX_FILE_BYTES`.
        DaemonError: it is not such a list, or has no entries, too many, or wrong values; all faults are
            named.
    """
    try:
        content = json.loads(read_regular_file(path, most=MAX_FILE_BYTES))
    except (ValueError, RecursionError) as error:
        raise _file_error(path, f"not JSON: {error}") from error
    if not isinstance(content, list) or not all(isinstance(one, dict) for one in content):
        raise _file_error(path, "a list of objects with slow, fast and summary was expected")
    said = {at: one for at, one in enumerate(content) if one.get("summary") not in (None, "")}
    if not said:
        raise _file_error(path, "no entry has a summary")
    if len(said) > MAX_IMPORTED:
        raise _file_error(path, f"{len(said)} experiences; a home keeps {MAX_IMPORTED} of files")
    return _validate_entries(path, said), len(content) - len(said)


def _validate_entries(path: Path, said: dict[int, dict[str, Any]]) -> tuple[ExperienceEntry, ...]:
    made, faults = [], []
    for at, one in said.items():
        known = {name: one[name] for name in ExperienceEntry.model_fields if one.get(name) is not None}
        try:
            made.append(ExperienceEntry.model_validate(known))
        except ValidationError as error:
            faults += [
                f"[{at}].{'.'.join(map(str, fault['loc']))}: {validation_reason(fault).lower()}"
                for fault in error.errors(include_input=False)
            ]
    if faults:
        raise _file_error(path, "; ".join(faults))
    return tuple(made)


def _file_error(path: Path, what: str) -> DaemonError:
    return DaemonError(f"{path}: {what}", code="bad_rewrites")


def render_experiences(found: Iterable[LearntExperience], reader: LogReader) -> str:
    """Return experiences as the text of such a file; a kernel that is lost is written as an empty string."""
    rows = [
        {
            "slow": read_kernel(one.slow, reader),
            "fast": read_kernel(one.fast, reader),
            "summary": one.summary,
            "about": one.about.model_dump(mode="json", exclude_defaults=True),
        }
        for one in found
    ]
    return json.dumps(rows, indent=2) + "\n"


def read_kernel(digest: str | None, reader: LogReader) -> str:
    """Return a kernel that an experience names; empty if it names none or the log has lost it."""
    try:
        return reader.get_blob(digest).decode(errors="replace") if digest else ""
    except BlobMissing:
        return ""


def apply_experience_command(command: ExperienceCommand, system: SystemState) -> ExperienceChange:
    """Return the event, blobs and answer of a command on the home's experiences.

    Raises:
        CommandRefused: the summary of an experience is empty after cleaning.
        UnknownExperience: the command names an experience that does not exist.
    """
    there = {one.id for one in system.experiences}
    if not isinstance(command, Learn):
        for id_ in command.ids:
            if id_ not in there:
                raise UnknownExperience.for_id(id_)
        return ExperiencesForgotten(ids=command.ids), (), {"forgotten": list(command.ids)}
    blobs: dict[str, bytes] = {}
    made = {
        one.id: one for one in (_build_experience(command, rewrite, blobs) for rewrite in command.rewrites)
    }
    fresh = tuple(one for id_, one in made.items() if id_ not in there)
    said: dict[str, JsonValue] = {"learnt": [one.id for one in fresh], "known": len(made) - len(fresh)}
    if not fresh:
        return None, (), said
    return ExperiencesLearnt(experiences=fresh), tuple(blobs.values()), said


def _build_experience(command: Learn, rewrite: ExperienceEntry, blobs: dict[str, bytes]) -> LearntExperience:
    from agent_core.roles.llm.quoting import clean_text, single_line

    summary = clean_summary(rewrite.summary)
    if not summary:
        raise CommandRefused(f"learn: a summary of {single_line(command.file)} has nothing in it")
    sources = [clean_text(text) for text in (rewrite.slow, rewrite.fast)]
    digests = [digest_of(text.encode()) if text.strip() else None for text in sources]
    blobs |= {name: text.encode() for name, text in zip(digests, sources, strict=True) if name}
    return LearntExperience(
        origin=single_line(command.file),
        imported=True,
        about=_clean_about(rewrite.about)
        if rewrite.about
        else ExperienceContext(tags=_derive_tags(command.target, sources)),
        slow=digests[0],
        fast=digests[1],
        summary=summary,
    )


def _derive_tags(target: str, sources: Iterable[str]) -> ProblemTags:
    """Return the tags that can be derived from kernels alone: the operators that they call, no shapes or
    data types.
    """
    from agent_core.roles.llm.quoting import single_line

    called = next((found for one in sources if (found := collect_operators(one, target))), frozenset[str]())
    return ProblemTags(target=single_line(target), operators=tuple(sorted(called)), dtypes=(), extents=())


def _clean_about(about: ExperienceContext) -> ExperienceContext:
    """Return `about` with each text on one line and without invisible characters."""
    from agent_core.roles.llm.quoting import single_line

    tags = about.tags
    return ExperienceContext(
        tags=ProblemTags(
            target=single_line(tags.target),
            operators=tuple(sorted({single_line(name) for name in tags.operators})),
            dtypes=tuple(sorted({single_line(name) for name in tags.dtypes})),
            extents=tags.extents,
        ),
        kind=about.kind,
        technique=single_line(about.technique),
        speedup=about.speedup,
        predicted=about.predicted,
        toolchain=single_line(about.toolchain),
        problem=single_line(about.problem),
    )
