"""Finds a Python on a host and installs the worker there: the only commands before the worker starts.

Both are fixed scripts; only their arguments differ from host to host.
"""

from __future__ import annotations

import shlex
import zlib
from collections.abc import Sequence

from remote.hostside.process_tree import MARK_VARIABLE, UNMARKED
from remote.ssh.errors import HostFullError, HostPythonError, HostWorkerError
from remote.ssh.host import HostSpec
from remote.ssh.link import SshLink
from remote.ssh.worker_archive import WorkerArchive
from targets.registry import load_host_parts

_FIND_S = 60.0
_INSTALL_S = 120.0
_FULL = 28
NOT_FOUND = frozenset({126, 127})

# Try the vendor's Pythons (PYTHONS stands for their patterns), then the one that host setup makes, then the
# system's. Commands start in the user's $HOME, to which a relative work folder belongs; an interpreter found
# there gets an absolute path.
_FIND = """
for python in PYTHONS "$1"/venv/bin/python "$(command -v python3)"; do
  if [ -x "$python" ] && "$python" -I -c 'import sys; sys.exit(sys.version_info < (3, 9))' 2>/dev/null; then
    case $python in /*) ;; *) python=$PWD/$python ;; esac
    printf 'python=%s\\n' "$python"
    exit 0
  fi
done
exit 9
"""
_INSTALL = """
import errno, hashlib, os, sys, zlib
folder, digest = os.path.join(sys.argv[1], "worker"), sys.argv[2]
data = zlib.decompress(sys.stdin.buffer.read())
if hashlib.sha256(data).hexdigest() != digest:
    sys.exit("what arrived is not what was sent")
part = os.path.join(folder, "%s.%d.part" % (digest, os.getpid()))
try:
    os.makedirs(folder, mode=0o700, exist_ok=True)
    with open(part, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, os.path.join(folder, digest + ".pyz"))
except OSError as error:
    if os.path.exists(part):
        os.unlink(part)
    sys.stderr.write(str(error))
    sys.exit(28 if error.errno in (errno.ENOSPC, errno.EDQUOT) else 1)
"""


def home_command(argv: Sequence[str]) -> list[str]:
    """Return the command that runs `argv` in $HOME, where relative paths belong.

    Sessions start in the folder that the system has for the user, which may be another one; host setup uses
    $HOME too.
    """
    return ["sh", "-c", 'cd -- "$HOME" && exec "$@"', "sh", *argv]


def find_command(host: HostSpec) -> list[str]:
    """Return the command that prints the Python to use."""
    pythons = " ".join(pattern for parts in load_host_parts() for pattern in parts.pythons)
    return home_command(["sh", "-c", _FIND.replace("PYTHONS", pythons), "sh", host.workdir])


def install_command(host: HostSpec, python: str, digest: str) -> list[str]:
    """Return the command that reads the compressed worker and stores it."""
    return home_command([python, "-I", "-c", _INSTALL, host.workdir, digest])


def serve_command(host: HostSpec, python: str, digest: str) -> list[str]:
    """Return the command that starts the worker for one connection."""
    program = [python, "-I", "-B", f"{host.workdir}/worker/{digest}.pyz", "serve", host.workdir]
    return home_command(["env", f"{MARK_VARIABLE}={UNMARKED}", *program])


async def find_python(link: SshLink) -> str:
    """Return the host's interpreter: the configured one, or the first that is good enough.

    Raises:
        HostPythonError: there is none.
        HostError: the host cannot be reached.
    """
    if link.host.python is not None:
        return link.host.python
    ran = await link.run_command(find_command(link.host), deadline_s=_FIND_S)
    lines = ran.stdout.decode("utf-8", "replace").splitlines()
    found = [line.removeprefix("python=") for line in lines if line.startswith("python=/")]
    if ran.status or not found:
        raise HostPythonError(
            f"{link.host.address}: no Python of version 3.9 or later there; run: agentctl host setup "
            f"{link.host.address}"
        )
    return found[-1]


async def install_worker(link: SshLink, python: str, worker: WorkerArchive) -> int:
    """Install the worker on the host; return the number of bytes sent.

    Raises:
        HostFullError: its disk is full.
        HostPythonError: the interpreter does not run.
        HostWorkerError: anything else.
    """
    data = zlib.compress(worker.data, 9)
    ran = await link.run_command(
        install_command(link.host, python, worker.digest), stdin=data, deadline_s=_INSTALL_S
    )
    if ran.status == 0:
        return len(data)
    said = ran.stderr.decode("utf-8", "replace")[-500:].strip()
    where = f"{link.host.address}: {shlex.quote(link.host.workdir)}"
    if ran.status == _FULL:
        raise HostFullError(f"{where}: no room for the worker ({said}); free some disk there")
    if ran.status in NOT_FOUND:
        raise HostPythonError(
            f"{link.host.address}: {python} does not run there ({said}); set another python"
        )
    raise HostWorkerError(f"{where}: the worker cannot be put there: {said}")
