"""Code that comes with a job: archives among its inputs, unpacked and compiled once and put on the path.

`judge.zip` has what draws inputs, sketches outputs and builds jails, as home has it; `nki_sim.zip` the
simulator, for hosts without the vendor's SDK. Both are the very modules that home uses, so that a host cannot
draw other inputs because it has another version of them.
"""

from __future__ import annotations

import compileall
import hashlib
import importlib
import os
import sys
import zipfile
from pathlib import Path
from py_compile import PycInvalidationMode

from remote.hostside.steps.folder_cache import FolderCache
from remote.hostside.task import StepTask

ARCHIVES = ("judge.zip", "nki_sim.zip")
_MAX_BYTES = 256 << 20


def import_archives(task: StepTask) -> dict[str, Path]:
    """Make the job's archives importable; return where each was unpacked."""
    shelf = FolderCache(task.caches_folder / "libraries", _MAX_BYTES)
    found = {name: _unpack_archive(shelf, task.input_path(name)) for name in ARCHIVES if task.has_input(name)}
    for folder in found.values():
        sys.path.insert(0, str(folder))
        for package in folder.iterdir():
            # Packages that are loaded already, this one among them, look there too.
            loaded = sys.modules.get(package.name)
            if loaded is not None and hasattr(loaded, "__path__"):
                loaded.__path__.insert(0, str(package))
    importlib.invalidate_caches()
    return found


def _unpack_archive(shelf: FolderCache, archive: Path) -> Path:
    key = hashlib.sha256(archive.read_bytes()).hexdigest()
    found = shelf.find(key)
    if found is not None:
        return found
    with shelf.create_draft() as draft, zipfile.ZipFile(archive) as file:
        file.extractall(draft)
        # Once, not at each import: what is on the shelf never changes, and is whole if the power fails.
        compileall.compile_dir(draft, quiet=2, invalidation_mode=PycInvalidationMode.UNCHECKED_HASH)
        os.sync()
    return shelf.put(key, draft)
