"""Facts about this machine, read without running anything."""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import sys
from pathlib import Path
from typing import Any

from remote.hostside import process_tree
from remote.hostside.workdir import Workdir

_DEVICES = Path("/sys/devices/virtual/neuron_device")  # one folder per device of the Neuron driver
_WALLS = ("bwrap", "unshare", "setpriv", "mount", "pivot_root", "setarch", "systemd-run", "docker")
_LOGICAL = "NEURON_LOGICAL_NC_CONFIG"
_PAIRED = ("NCv3", "NCv4")  # here two physical cores make a logical one by default


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
        "neuron": bool(neuron_cores()),
        "walls": [name for name in _WALLS if shutil.which(name)],
        "workdir": str(place.root),
    }


def cpu_numbers() -> list[int]:
    """Return the CPUs that this user may use."""
    return sorted(os.sched_getaffinity(0))


def core_numbers() -> list[int]:
    """Return the NeuronCores of this machine; without a device, one stand-in per CPU."""
    return neuron_cores() or cpu_numbers()


def neuron_cores(devices: Path = _DEVICES) -> list[int]:
    """Return the numbers of the logical NeuronCores; empty without a device.

    The driver lists physical cores; how many make a logical one is a setting of the runtime.
    """
    count = 0
    for device in sorted(devices.glob("neuron[0-9]*")):
        physical = sum(1 for _ in device.glob("neuron_core[0-9]*"))
        count += physical // _physical_per_logical(device)
    return list(range(count))


def _physical_per_logical(device: Path) -> int:
    chosen = os.environ.get(_LOGICAL, "")
    if chosen in {"1", "2"}:
        return int(chosen)
    with contextlib.suppress(OSError):
        kind = (device / "info" / "architecture" / "arch_type").read_text(encoding="ascii")
        return 2 if kind.startswith(_PAIRED) else 1
    return 1
