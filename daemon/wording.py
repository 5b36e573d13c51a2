"""The prompts of a home: the files in it that replace the program's own, and the set that counts.

`<home>/prompts/` holds replacements under the paths that `agentctl prompts` lists. Hidden files and what
editors leave behind (`name~`) are passed over.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from agent_core.prompting import Prompts, PromptsInvalid, assemble, builtin
from daemon.config import ConfigError
from daemon.reading import read_regular
from state.errors import BlobMissing
from state.log import EventLog
from state.model import Digest

FOLDER = "prompts"
MOST_FILES = 200
MOST_BYTES = 1 << 20
"""What is read of a file at all; what a prompt may take is less, and said by the set."""


def paths(home: Path) -> list[Path]:
    """Return the files that replace prompts, sorted, one more than `MOST_FILES` at most."""
    return sorted(islice(_walk(home / FOLDER), MOST_FILES + 1))


def _walk(folder: Path) -> Iterator[Path]:
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        yield from (
            Path(place, name) for name in names if not name.startswith(".") and not name.endswith("~")
        )


def read(home: Path) -> Prompts:
    """Return the set of a home: the program's own with the home's files in their place.

    Raises:
        ConfigError: naming every fault of every file.
    """
    found = paths(home)
    if (home / FOLDER).exists() and not (home / FOLDER).is_dir():
        raise ConfigError([f"{FOLDER}: a folder was expected, this is a file"])
    if len(found) > MOST_FILES:
        raise ConfigError([f"{FOLDER}: more than {MOST_FILES} files"])
    files: dict[str, bytes] = {}
    faults: list[str] = []
    for path in found:
        try:
            files[path.relative_to(home / FOLDER).as_posix()] = read_regular(path, most=MOST_BYTES)
        except FileNotFoundError:
            continue  # an editor is writing it
        except OSError as error:
            faults.append(f"{FOLDER}/{path.relative_to(home / FOLDER)}: cannot be read: {error.strerror}")
    try:
        prompts = assemble(files)
    except PromptsInvalid as error:
        faults += (f"{FOLDER}/{fault}" if fault else fault for fault in error.faults)
    if faults:
        raise ConfigError(faults)
    return prompts


def in_force(log: EventLog) -> Digest:
    """Return the version of the prompts for runs to come, as this log was last told."""
    return log.system().prompts or builtin().version


def missing(log: EventLog, version: Digest) -> tuple[bytes, ...]:
    """Return the program's own set as a blob where `version` names it and the log does not have it."""
    try:
        log.get_blob(version)
    except BlobMissing:
        return (builtin().to_json(),) if version == builtin().version else ()
    return ()
