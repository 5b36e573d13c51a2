"""Step `probe`: reports what this host has to compile, run and profile kernels; changes nothing.

Payload: `devices` (kinds, best first). Answer: `device` (the first of them that lacks nothing here), the
facts about the best kind with what it is `lacking`, versions of packages and of Python, and the strongest
jail that works.
"""

from __future__ import annotations

import contextlib
import platform
import sys
from pathlib import Path
from typing import Any

from remote.hostside import devices
from remote.hostside.steps import libraries
from remote.hostside.task import StepTask

_PACKAGES = ("numpy", "ml_dtypes")


def run(folder: Path) -> None:
    """Probe this host."""
    task = StepTask(folder)
    libraries.import_archives(task)
    found = {kind: devices.probe_device(kind) for kind in task.payload["devices"]}
    usable = [kind for kind, facts in found.items() if not facts["lacking"]]
    task.write_answer(
        {
            "device": usable[0] if usable else "",
            "python": platform.python_version(),
            "packages": package_versions(),
            "jail": _strongest_jail(),
            **found[task.payload["devices"][0]],
        }
    )


def package_versions() -> dict[str, str]:
    """Return the versions of the relevant packages that are installed."""
    from importlib import metadata

    found = {}
    for name in (*_PACKAGES, *devices.package_names()):
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def _strongest_jail() -> str:
    """The strongest jail that works here; the modules that build one need Python 3.10."""
    if sys.version_info < (3, 10):
        return "none"
    from remote.jail_backends import jail_strength

    strength: Any = jail_strength()
    return str(strength.value)
