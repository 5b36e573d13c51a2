"""The back ends of the jail: what a jailed program may see and use, and the command line that builds it.

Three strengths; the best one that works here is used (`jail_strength`, probed once by running it):

- `bubblewrap`: own user, network, PID, mount, IPC and UTS namespaces; the file system holds the Python
  installation and the packages asked for, read-only, and nothing else.
- `namespaces`: the same from `unshare`, `mount` and `pivot_root`.
- `weak`: the host's file system and network; only the protections below.

All of them have an environment with only the variables that make runs repeatable, fixed addresses where the
system allows that, limits on CPU, memory, files and processes, and a system-call filter (see `jail_init`).
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from enum import Enum
from functools import cache
from pathlib import Path

_INIT = Path(__file__).with_name("jail_init.py")
_PROBE_WALL_S = 20
_OLD_ROOT = "/.old_root"
# GNU C library: fill new memory with the complement of 255; turn off its cache, which is not filled.
_FILL_TUNABLES = "glibc.malloc.perturb=255:glibc.malloc.tcache_count=0"
# Large blocks come from the heap, and free memory at its end is kept.
_KEEP_TUNABLES = f"glibc.malloc.mmap_max=0:glibc.malloc.trim_threshold={1 << 40}"
_TMP = "/tmp"  # noqa: S108  a place in the jail, where it is empty and read-only


class JailStrength(str, Enum):  # noqa: UP042  hosts run this file under Python 3.10, too
    """The kinds of jail, best first."""

    __str__ = str.__str__

    BUBBLEWRAP = "bubblewrap"
    NAMESPACES = "namespaces"
    WEAK = "weak"


@dataclass(frozen=True, slots=True)
class JailLimits:
    """What jailed code may use. The CPU limit has its own signal; the wall clock is the last resort.

    The wall-clock limit is far above the CPU limit. So on a busy machine, too, a kernel in an endless loop is
    stopped by its own CPU time, which does not depend on other load.
    """

    cpu_s: int = 60
    wall_s: int = 600
    memory_bytes: int = 2 << 30
    file_bytes: int = 1 << 20
    open_files: int = 64
    processes: int = 64
    answer_bytes: int = 256 << 20


@dataclass(frozen=True, slots=True)
class JailedProgram:
    """A module whose `main` runs in a jail, the packages it needs, and what it may do.

    `packages` are folders of packages, visible read-only and importable. `site_packages` adds the installed
    third-party packages. The number of the answer's file descriptor is appended to `argv`. `fills_memory`:
    memory that nobody wrote to reads as zeros, which costs time for programs with large arrays.
    `keeps_memory`: freed memory is kept, so that the next large array need not get it anew. Compilers need
    more: `scratch`, a writable folder that is also the temporary one; `programs`, whether it may start other
    programs; `variables` of its environment. `hash_seed`: None for the hashes and addresses of every run; a
    number for hashes of this seed and addresses that the system draws.
    """

    module: str
    argv: tuple[str, ...] = ()
    packages: tuple[Path, ...] = ()
    site_packages: bool = False
    threads: bool = False
    fills_memory: bool = False
    keeps_memory: bool = False
    scratch: Path | None = None
    programs: bool = False
    variables: tuple[tuple[str, str], ...] = ()
    hash_seed: int | None = None
    limits: JailLimits = field(default_factory=JailLimits)

    def import_paths(self) -> tuple[str, ...]:
        """The entries of sys.path."""
        parents = dict.fromkeys(str(path.resolve().parent) for path in self.packages)
        return (*parents, *(_site_folders() if self.site_packages else ()))

    def visible_paths(self) -> tuple[str, ...]:
        """What the jail can read besides the system's libraries."""
        folders = [sys.base_prefix, *(str(path.resolve()) for path in self.packages)]
        return tuple(dict.fromkeys([*folders, *(_site_folders() if self.site_packages else ())]))


@cache
def jail_strength() -> JailStrength:
    """The strongest jail that works on this machine, found by trying each once, in order."""
    probe = JailedProgram("", limits=JailLimits(cpu_s=10, wall_s=_PROBE_WALL_S))
    for strength in (JailStrength.BUBBLEWRAP, JailStrength.NAMESPACES):
        if can_build_jail(strength, probe):
            return strength
    return JailStrength.WEAK


def guess_strength() -> JailStrength | None:
    """The strongest jail whose programs are here; None if one was tried out already."""
    if jail_strength.cache_info().currsize:
        return None
    real = (JailStrength.BUBBLEWRAP, JailStrength.NAMESPACES)
    return next((one for one in real if all(map(shutil.which, _TOOLS[one]))), None)


def can_build_jail(strength: JailStrength, probe: JailedProgram) -> bool:
    """Whether a jail of this strength can be built here; tried by running `probe` in one."""
    if any(shutil.which(tool) is None for tool in _TOOLS[strength]):
        return False
    try:
        done = subprocess.run(
            jail_command(strength, probe, 1),
            env={},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_PROBE_WALL_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def jail_command(strength: JailStrength, program: JailedProgram, answer_fd: int) -> list[str]:
    """Return the command line that runs `program` in a jail; its answer goes to `answer_fd`."""
    number = f"{answer_fd:05}"  # always the same length: it would shift what follows in memory
    config = {
        "paths": program.import_paths(),
        "module": program.module,
        "argv": [*program.argv, number],
        "answer_fd": number,
        "limits": asdict(program.limits),
        "threads": program.threads or program.programs,
        "programs": program.programs,
        "old_root": _OLD_ROOT if strength is JailStrength.NAMESPACES else "",
    }
    # Not -I: that implies -s -P and ignores the environment, which is ours and has the hash seed.
    apart = ("-P",) if sys.version_info >= (3, 11) else ()
    python = [_base_python(), "-s", *apart, "-S", "-B", "-c", _init_source(), json.dumps(config)]
    return [*_JAIL_COMMANDS[strength](program), *_environment_command(program), *python]


def _environment_command(program: JailedProgram) -> list[str]:
    """What makes a program's runs repeatable: hashes, the contents of new memory, addresses."""
    asked = ((_FILL_TUNABLES, program.fills_memory), (_KEEP_TUNABLES, program.keeps_memory))
    tunables = ":".join(text for text, wanted in asked if wanted)
    environment = [f"PYTHONHASHSEED={program.hash_seed or 0}"]
    environment += [f"GLIBC_TUNABLES={tunables}"] if tunables else []
    environment += [f"{name}={value}" for name, value in program.variables]
    if program.scratch is not None:
        environment += [f"TMPDIR={program.scratch}", f"HOME={program.scratch}"]
    fixed_addresses = _setarch_command() if program.hash_seed is None else ()
    return [*fixed_addresses, shutil.which("env") or "/usr/bin/env", "-i", *environment]


@cache
def _setarch_command() -> tuple[str, ...]:
    """The command that turns off address randomisation; empty where the system forbids that."""
    setarch = shutil.which("setarch")
    command = (setarch or "", platform.machine(), "--addr-no-randomize")
    works = (
        setarch and not subprocess.run([*command, "/bin/true"], capture_output=True, check=False).returncode
    )
    return command if works else ()


@cache
def _base_python() -> str:
    """The installation's own interpreter: a virtual environment's may be outside what the jail sees."""
    base: str = getattr(sys, "_base_executable", sys.executable)
    return os.path.realpath(base)


@cache
def _init_source() -> str:
    return _INIT.read_text()


@cache
def _site_folders() -> tuple[str, ...]:
    return tuple(dict.fromkeys(sysconfig.get_path(kind) for kind in ("purelib", "platlib")))


def _system_folders() -> tuple[list[str], list[tuple[str, str]]]:
    """The folders that programs load their libraries from: real ones, and links as (target, place)."""
    places = [Path(place) for place in ("/usr", "/lib", "/lib32", "/lib64", "/bin", "/etc/ld.so.cache")]
    links = [(str(place.readlink()), str(place)) for place in places if place.is_symlink()]
    return [str(place) for place in places if place.exists() and not place.is_symlink()], links


def _bubblewrap_command(program: JailedProgram) -> list[str]:
    real, links = _system_folders()
    command = ["bwrap", "--unshare-all", "--die-with-parent", "--cap-drop", "ALL", "--clearenv"]
    command += ["--uid", "65534", "--gid", "65534", "--hostname", "jail"]
    for path in dict.fromkeys([*real, *program.visible_paths()]):
        command += ["--ro-bind", path, path]
    if program.scratch is not None:
        command += ["--bind", str(program.scratch), str(program.scratch)]
    for target, place in links:
        command += ["--symlink", target, place]
    return [*command, "--dir", _TMP, "--remount-ro", "/", "--chdir", "/", "--"]


# Builds the same root by hand on a tmpfs and moves into it; jail_init drops the old root and capabilities.
# Arguments are the folder to build it on, `bind PATH`, `open PATH` (writable) and `link TARGET PLACE`, then
# `--` and the command.
_NAMESPACE_SCRIPT = r"""
set -eu
mount -t tmpfs -o mode=755,size=1m jail "$1"
cd "$1"
shift
mkdir -p tmp .old_root
while [ "$1" != -- ]; do
  case "$1" in
    bind)
      if [ -d "$2" ]; then mkdir -p ".$2"; else mkdir -p ".${2%/*}"; : > ".$2"; fi
      mount --rbind "$2" ".$2"
      mount -o remount,bind,ro ".$2"
      shift 2 ;;
    open) mkdir -p ".$2"; mount --rbind "$2" ".$2"; shift 2 ;;
    link) mkdir -p ".${3%/*}"; ln -s "$2" ".$3"; shift 3 ;;
  esac
done
shift
pivot_root . .old_root
cd /
# Not exec: the first process of a PID namespace does not get the CPU limit's signal.
status=0
"$@" || status=$?
exit "$status"
"""


def _namespaces_command(program: JailedProgram) -> list[str]:
    real, links = _system_folders()
    # unshare kills its child when it dies, and setpriv kills unshare when this process dies.
    command = [
        "setpriv",
        "--pdeathsig",
        "KILL",
        "unshare",
        "--user",
        "--map-root-user",
        "--net",
        "--pid",
        "--fork",
        "--kill-child",
    ]
    paths = list(dict.fromkeys([*real, *program.visible_paths()]))
    command += [
        "--mount",
        "--ipc",
        "--uts",
        "/bin/sh",
        "-c",
        _NAMESPACE_SCRIPT,
        "sh",
        _choose_mount_point(paths),
    ]
    for path in paths:
        command += ["bind", path]
    if program.scratch is not None:
        command += ["open", str(program.scratch)]
    for target, place in links:
        command += ["link", target, place]
    return [*command, "--"]


def _choose_mount_point(paths: Sequence[str]) -> str:
    """A folder to mount over inside the namespace, one that hides none of `paths`."""
    places = ("/mnt", "/media", "/srv", "/opt", "/home", _TMP)
    free = (p for p in places if Path(p).is_dir() and not any(path.startswith(f"{p}/") for path in paths))
    return next(free, _TMP)


def _weak_command(program: JailedProgram) -> list[str]:
    return []


_JAIL_COMMANDS = {
    JailStrength.BUBBLEWRAP: _bubblewrap_command,
    JailStrength.NAMESPACES: _namespaces_command,
    JailStrength.WEAK: _weak_command,
}
_TOOLS = {
    JailStrength.BUBBLEWRAP: ("bwrap",),
    JailStrength.NAMESPACES: ("setpriv", "unshare", "mount", "pivot_root"),
    JailStrength.WEAK: (),
}
