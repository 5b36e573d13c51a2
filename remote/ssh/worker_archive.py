"""Packs the worker into one archive that a host's Python runs; its contents decide its name.

The archive is identical wherever it is built, so each version of the worker is sent to a host once.
"""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_PACKAGE = Path(__file__).parents[1] / "hostside"
_DATE = (1980, 1, 1, 0, 0, 0)
_MAIN = '''"""Starts the worker."""
import sys
from remote.hostside.__main__ import main
sys.exit(main(sys.argv[1:]))
'''
_FIRST = '"""What of this project runs on hosts."""\n'


@dataclass(frozen=True, slots=True)
class WorkerArchive:
    """An archive and its sha256."""

    digest: str
    data: bytes


@cache
def load_worker_archive() -> WorkerArchive:
    """Return the worker of this version."""
    return build_worker_archive()


def build_worker_archive(extra: Mapping[str, str] | None = None) -> WorkerArchive:
    """Return an archive of the worker; modules in `extra` (path to source) are added or replaced."""
    sources = {"__main__.py": _MAIN, "remote/__init__.py": _FIRST}
    for path in sorted(_PACKAGE.rglob("*.py")):
        name = f"remote/hostside/{path.relative_to(_PACKAGE).as_posix()}"
        sources[name] = path.read_text(encoding="utf-8")
    sources.update(extra or {})
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_STORED) as file:  # it is compressed on its way
        for name, text in sorted(sources.items()):
            file.writestr(zipfile.ZipInfo(name, _DATE), text)
    data = made.getvalue()
    return WorkerArchive(hashlib.sha256(data).hexdigest(), data)
