"""Step `probe`: reports what this host has to compile, run and profile kernels; changes nothing.

Answer: `device` (`neuron` if everything it needs is there, else `nki_sim` with `lacking` saying what is
missing), versions of the SDK's packages and of Python's, the instance's type, the routes by which kernels can
be compiled, the profiler, and the strongest jail that works.
"""

from __future__ import annotations

import contextlib
import platform
import sys
from pathlib import Path
from typing import Any

from remote.hostside.devices import neuron
from remote.hostside.steps import libraries
from remote.hostside.task import StepTask

_PACKAGES = ("numpy", "ml_dtypes", *neuron.PACKAGES)


def run(folder: Path) -> None:
    """Probe this host."""
    task = StepTask(folder)
    libraries.import_archives(task)
    found = neuron.probe_device()
    task.write_answer(
        {
            "device": "nki_sim" if found["lacking"] else "neuron",
            "python": platform.python_version(),
            "packages": package_versions(),
            "jail": _strongest_jail(),
            **found,
        }
    )


def package_versions() -> dict[str, str]:
    """Return the versions of the relevant packages that are installed."""
    from importlib import metadata

    found = {}
    for name in _PACKAGES:
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
