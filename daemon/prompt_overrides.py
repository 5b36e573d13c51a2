"""The prompts of a home: files that override the built-in ones, and the set in force.

`<home>/prompts/` holds overrides under the paths that `agentctl prompts` lists. Hidden files and editor
backups (`name~`) are ignored.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from difflib import get_close_matches
from itertools import islice
from pathlib import Path

from agent_core.prompting import PromptSet, PromptsInvalid, assemble_prompts, builtin_prompts
from daemon.config import ConfigError
from daemon.errors import DaemonError
from daemon.safe_read import read_regular_file
from state.errors import BlobMissing
from state.log import EventLog
from state.model import Digest

PROMPTS_FOLDER = "prompts"
MAX_FILES = 200
MAX_FILE_BYTES = 1 << 20
"""The largest file that is read. A prompt's own limit is smaller; the prompt set checks it."""


def override_paths(home: Path) -> list[Path]:
    """Return the files that override prompts, sorted; at most `MAX_FILES` + 1 of them."""
    return sorted(islice(_walk_files(home / PROMPTS_FOLDER, []), MAX_FILES + 1))


def load_prompts(home: Path) -> PromptSet:
    """Return the prompt set of a home: the built-in prompts with the home's overrides.

    Raises:
        ConfigError: it names every fault of every file.
    """
    unread: list[OSError] = []
    found = sorted(islice(_walk_files(home / PROMPTS_FOLDER, unread), MAX_FILES + 1))
    faults = [
        f"{_path_in_home(home, Path(error.filename))}: cannot be read: {error.strerror}" for error in unread
    ]
    if len(found) > MAX_FILES:
        faults.append(f"{PROMPTS_FOLDER}: more than {MAX_FILES} files")
        raise ConfigError(faults)
    if not found and not faults:
        return builtin_prompts()
    files: dict[str, bytes] = {}
    for path in found:
        try:
            files[path.relative_to(home / PROMPTS_FOLDER).as_posix()] = read_regular_file(
                path, most=MAX_FILE_BYTES
            )
        except OSError as error:
            # otherwise an editor is saving the file right now
            if path.is_symlink() or not isinstance(error, FileNotFoundError):
                faults.append(f"{_path_in_home(home, path)}: cannot be read: {error.strerror}")
    try:
        prompts = assemble_prompts(files)
    except PromptsInvalid as error:
        faults += (f"{PROMPTS_FOLDER}/{fault}" for fault in error.faults)
    if faults:
        raise ConfigError(faults)
    return prompts


def copy_prompt(home: Path, path: str) -> Path:
    """Copy the built-in prompt `path` into the home for editing; return its new path.

    Raises:
        DaemonError: there is no such prompt, the home already has a file for it, or it cannot be
            written.
    """
    own = {name: text for name, text in builtin_prompts().files.items() if name.endswith(".md")}
    if path not in own:
        close = get_close_matches(path, own, n=1)
        hint = f"did you mean {close[0]}?" if close else "agentctl prompts lists them"
        raise DaemonError(f"no prompt {path!r}", code="unknown_prompts", hint=hint)
    there = home / PROMPTS_FOLDER / path
    if there.exists() or there.is_symlink():
        raise DaemonError(f"{there}: is there already", code="prompt_exists", hint="remove it first")
    part = there.with_name(f".{there.name}.part")  # hidden, so that an owner of the home ignores it
    try:
        there.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(own[path], encoding="utf-8")
        part.rename(there)
    except OSError as error:
        raise DaemonError(f"{there}: {error.strerror}", code="not_permitted") from error
    return there


def _walk_files(folder: Path, unread: list[OSError]) -> Iterator[Path]:
    """Yield the files of a folder, and collect what cannot be read; a missing folder yields nothing."""
    if not os.path.lexists(folder):
        return
    for place, folders, names in os.walk(folder, onerror=unread.append):
        folders[:] = [name for name in folders if not name.startswith(".")]
        yield from (
            Path(place, name) for name in names if not name.startswith(".") and not name.endswith("~")
        )


def _path_in_home(home: Path, path: Path) -> str:
    """Return a path relative to the home, in ASCII because not every name is UTF-8."""
    return ascii(str(path.relative_to(home)))[1:-1]


def prompts_in_force(log: EventLog) -> Digest:
    """Return the prompt version for new runs, as the log last recorded it."""
    return log.system_state().prompts or builtin_prompts().version


def missing_prompt_blobs(log: EventLog, version: Digest) -> tuple[bytes, ...]:
    """Return the built-in set as a blob if `version` names it and the log does not have it."""
    try:
        log.get_blob(version)
    except BlobMissing:
        return (builtin_prompts().to_json(),) if version == builtin_prompts().version else ()
    return ()
