"""Facts about this machine, read without running anything."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from pathlib import Path
from typing import Any

from remote.hostside import devices, process_tree
from remote.hostside.workdir import Workdir

_WALLS = ("bwrap", "unshare", "setpriv", "mount", "pivot_root", "setarch", "systemd-run", "docker")


def collect_facts(place: Workdir, program: str) -> dict[str, Any]:
    """Return the facts for the greeting, in the form of `remote.ssh.job.HostFacts`."""
    disk = os.statvfs(place.root)
    return {
        "worker": Path(program).stem,
        "hostname": platform.node(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": f"{platform.python_version()} ({sys.executable})",
        "boot_id": process_tree.boot_id(),
        "cpus": len(cpu_numbers()),
        "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "free_disk_bytes": disk.f_bavail * disk.f_frsize,
        "cores": core_numbers(),
        "has_device": bool(devices.list_cores()),
        "walls": [name for name in _WALLS if shutil.which(name)],
        "workdir": str(place.root),
    }


def cpu_numbers() -> list[int]:
    """Return the CPUs that this user may use."""
    return sorted(os.sched_getaffinity(0))


def core_numbers() -> list[int]:
    """Return the device cores of this machine; without a device, one stand-in per CPU."""
    return devices.list_cores() or cpu_numbers()
