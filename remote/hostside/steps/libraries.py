"""Makes the code that comes with a job importable: archives among its inputs, unpacked and compiled once.

`judge.zip` has home's modules that draw inputs, sketch outputs and build jails; the others, `PACKAGE.zip`,
have a package that the device needs. They are the modules that home itself uses, so a host cannot draw other
inputs because it has another version of them.
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

_MAX_BYTES = 256 << 20


def import_archives(task: StepTask) -> dict[str, Path]:
    """Make the job's archives importable; return where each was unpacked."""
    shelf = FolderCache(task.caches_folder / "libraries", _MAX_BYTES)
    found = {path.name: _unpack_archive(shelf, path) for path in task.list_inputs(".zip")}
    for folder in found.values():
        sys.path.insert(0, str(folder))
        for package in folder.iterdir():
            # Packages that are already loaded, including this one, must look there too.
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
        # Compile once, not at each import: cached folders never change, and are complete after a power
        # failure.
        compileall.compile_dir(draft, quiet=2, invalidation_mode=PycInvalidationMode.UNCHECKED_HASH)
        os.sync()
    return shelf.put(key, draft)
