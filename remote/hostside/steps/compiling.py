"""Step `compile`: runs the kernel's Python once, in a jail, and keeps only the compiled artefact.

Payload: `artefact` (the key to keep it under: digest of kernel, problem, target and toolchain), `request`
(the request to the tracer, as text; see `remote.tracing`), `limits` (of the jail), `strength` (the weakest
jail that may hold it). Answer: how the jailed program ended, and the artefact's sha256 and size. A kernel
that was compiled before is not compiled again; the answer is the same as then.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

from remote.hostside import devices
from remote.hostside.steps import libraries
from remote.hostside.steps.folder_cache import FolderCache
from remote.hostside.task import StepTask

MAX_BYTES = 8 << 30
ARTEFACT = "artefact"
_ENDED = "ended.json"


def run(folder: Path) -> None:
    """Compile the kernel, or reuse the compiled one."""
    task = StepTask(folder)
    found = libraries.import_archives(task)
    shelf = _open_cache(task)
    kept = shelf.find(task.payload["artefact"])
    cached = kept is not None
    if kept is None:
        with shelf.create_draft() as draft:
            ended = devices.compile_kernel(task, found, draft / ARTEFACT)
            data = (draft / ARTEFACT).read_bytes()
            ended.update(digest=hashlib.sha256(data).hexdigest(), size=len(data))
            (draft / _ENDED).write_text(json.dumps(ended), encoding="utf-8")
        # A kill from outside says nothing about the kernel, so the next job compiles again.
        kept = draft if ended["killed"] else shelf.put(task.payload["artefact"], draft)
    ended = _read_ending(kept)
    shutil.copyfile(kept / ARTEFACT, task.out / ARTEFACT)
    if kept.name.startswith(".new-"):
        shutil.rmtree(kept, ignore_errors=True)
    task.write_answer({**ended, "cached": cached})


def find_artefact(task: StepTask, key: str = "") -> Path:
    """Return the file of a compiled kernel, by default of the one that the payload names.

    Raises:
        FileNotFoundError: it is no longer here.
    """
    found = _open_cache(task).find(key or task.payload["artefact"])
    if found is None:
        raise FileNotFoundError("the compiled kernel is no longer here; it has to be compiled again")
    return found / ARTEFACT


def _open_cache(task: StepTask) -> FolderCache:
    return FolderCache(task.caches_folder / "compiled", MAX_BYTES)


def _read_ending(folder: Path) -> dict[str, Any]:
    ended: dict[str, Any] = json.loads((folder / _ENDED).read_text(encoding="utf-8"))
    return ended
