"""Packs the worker into one archive that a host's Python runs; its contents decide its name.

The archive is identical wherever it is built, so each version of the worker is sent to a host once.
"""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from remote.ssh.step_archives import package_files, parent_packages
from targets.registry import load_host_parts

_DATE = (1980, 1, 1, 0, 0, 0)
_MAIN = '''"""Starts the worker."""
import sys
from remote.hostside.__main__ import main
sys.exit(main(sys.argv[1:]))
'''
_FIRST = '"""What of this project runs on hosts."""\n'
_INSTALLED = '"""Which devices this worker knows: module names by kind."""\nDEVICES = '


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
    devices: dict[str, str] = {}
    for name, data in package_files("remote.hostside"):
        sources[name] = data.decode()
    for parts in load_host_parts():
        devices |= {kind: device.worker for kind, device in parts.devices.items()}
        sources |= dict.fromkeys(parent_packages(parts.package), _FIRST)
        sources |= {name: data.decode() for name, data in package_files(parts.package)}
    sources["remote/hostside/installed.py"] = f"{_INSTALLED}{json.dumps(devices, indent=1)}\n"
    sources.update(extra or {})
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_STORED) as file:  # it is compressed on its way
        for name, text in sorted(sources.items()):
            file.writestr(zipfile.ZipInfo(name, _DATE), text)
    data = made.getvalue()
    return WorkerArchive(hashlib.sha256(data).hexdigest(), data)
