"""A real systemd over this machine's own files, booted in about two seconds, for tests and chaos.

The root is an overlay: all that is installed here is there, what is written stays in memory and is gone with
it. systemd-nspawn boots it with a target of its own, so that no service of the machine starts. It needs root,
systemd-nspawn (Debian: systemd-container) and a kernel that allows mounts and cgroups: `find_obstacle` says
what is missing.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TARGET = "booted.target"
BOOT_SECONDS = 60.0
COMMAND_SECONDS = 120.0
CGROUPS = Path("/sys/fs/cgroup")
CONTROLLERS = ("memory", "pids")
"""What MemoryMax and TasksMax of a unit take."""

_TARGET = """[Unit]
Description=What there is to boot
Requires=sysinit.target dbus.socket
After=sysinit.target dbus.socket
AllowIsolate=yes
"""
_ENV = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "LC_ALL": "C.UTF-8",
    "HOME": "/root",
    "SYSTEMD_COLORS": "0",
    "SYSTEMD_PAGER": "",
}


def find_obstacle() -> str | None:
    """Return why no systemd can be booted here, None if nothing is known to be in the way."""
    if os.geteuid() != 0:
        return "booting a systemd takes root"
    for program, package in (("systemd-nspawn", "systemd-container"), ("nsenter", "util-linux")):
        if shutil.which(program) is None:
            return f"needs {program}; to enable: apt-get install {package}"
    tried = subprocess.run(["unshare", "--mount", "true"], capture_output=True, text=True, check=False)
    if tried.returncode:
        return f"booting a systemd takes mounts, which are not allowed here: {tried.stderr.strip()}"
    if not all(os.access(home, os.W_OK) for home in _cgroup_homes()):
        return f"booting a systemd takes cgroups of its own, and {CGROUPS} is read-only"
    return None


def _cgroup_homes() -> list[Path]:
    """Return where systemd keeps its cgroups: the one hierarchy, or its own beside those of controllers."""
    if _has_unified_cgroups():
        return [CGROUPS]
    return [home for home in (CGROUPS / "systemd", CGROUPS / "unified") if home.is_dir()]


def _has_unified_cgroups() -> bool:
    return (CGROUPS / "cgroup.procs").exists()


def _controller_homes() -> list[Path]:
    """Return where this process is in the hierarchies of CONTROLLERS, where each has its own (cgroup v1)."""
    lines = (line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines())
    homes = [CGROUPS / name / path.lstrip("/") for _, name, path in lines if name in CONTROLLERS]
    return [home for home in homes if os.access(home, os.W_OK)]


class BootedSystem:
    """A booted system; `root` is its files as seen from here, less what it mounts itself (/run, /tmp)."""

    def __init__(self, root: Path, pid: int) -> None:
        self.root = root
        self.pid = pid

    def run(
        self, *command: str | Path, check: bool = True, user: str | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a command inside, as root or as `user`; its output is text.

        Raises:
            RuntimeError: it failed, and `check` is true.
        """
        inside = ["nsenter", "-t", str(self.pid), "-m", "-p", "-u", "-i", "-C", "-n"]
        become = ["runuser", "-u", user, "--"] if user else []
        done = subprocess.run(
            [*inside, *become, *map(str, command)],
            env=_ENV,
            capture_output=True,
            text=True,
            timeout=COMMAND_SECONDS,
            check=False,
        )
        if check and done.returncode:
            raise RuntimeError(
                f"{' '.join(map(str, command))}: status {done.returncode}\n{done.stdout}{done.stderr}"
            )
        return done

    def show(self, unit: str, *properties: str) -> dict[str, str]:
        """Return properties of a unit."""
        text = self.run("systemctl", "show", unit, f"--property={','.join(properties)}").stdout
        return dict(line.split("=", 1) for line in text.splitlines() if "=" in line)

    def cgroup(self, unit: str, controller: str) -> Path:
        """Return the cgroup of a running unit in the hierarchy of a controller, as a path inside."""
        hierarchy = CGROUPS if _has_unified_cgroups() else CGROUPS / controller
        return hierarchy / self.show(unit, "ControlGroup")["ControlGroup"].lstrip("/")

    def journal(self, unit: str) -> list[dict[str, str]]:
        """Return the journal's entries of a unit, oldest first."""
        text = self.run("journalctl", "--unit", unit, "--output=json", "--no-pager").stdout
        return [json.loads(line) for line in text.splitlines()]

    def write(self, path: str | Path, text: str) -> None:
        """Write a file inside."""
        place = self.root / str(path).lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text, encoding="utf-8")


def wait_until(condition: Callable[[], bool], what: str, *, seconds: float = 150.0) -> None:
    """Wait until `condition` holds.

    Raises:
        TimeoutError: it does not within `seconds`.
    """
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {seconds:g} s: {what}")
        time.sleep(0.15)


@contextmanager
def boot_systemd(binds: Sequence[Path] = (ROOT,)) -> Iterator[BootedSystem]:
    """Boot a system that also sees `binds` (needed for what lies in /tmp), read-only; stop it in the end.

    Raises:
        RuntimeError: it cannot be booted here; the text says what went wrong.
    """
    folder = Path(tempfile.mkdtemp(prefix="booted-"))
    folder.chmod(0o711)  # a home's user reaches the home from outside too
    try:
        with _overlay(folder) as root, _cgroup(folder.name) as enter:
            (root / "etc/machine-id").write_text("")
            (root / "etc/systemd/system" / TARGET).write_text(_TARGET)
            with _boot(root, folder / "console", binds, enter) as pid:
                yield BootedSystem(root, pid)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _overlay(folder: Path) -> Iterator[Path]:
    layers, root = folder / "layers", folder / "root"
    layers.mkdir()
    root.mkdir()
    _call("mount", "-t", "tmpfs", "-o", "mode=0755", "tmpfs", str(layers))
    try:
        (layers / "upper").mkdir()
        (layers / "work").mkdir()
        options = f"lowerdir=/,upperdir={layers}/upper,workdir={layers}/work"
        _call("mount", "-t", "overlay", "overlay", "-o", options, str(root))
        (root / "root").chmod(0o711)  # root acts as the home's user, who must reach an interpreter in there
        try:
            yield root
        finally:
            _call("umount", "--lazy", str(root))
    finally:
        _call("umount", "--lazy", str(layers))


@contextmanager
def _cgroup(name: str) -> Iterator[Callable[[], None]]:
    """Make a cgroup of its own in each hierarchy that systemd uses; yield what moves a process into them."""
    groups = [home / name for home in (*_cgroup_homes(), *_controller_homes())]
    for group in groups:
        group.mkdir()

    def enter() -> None:
        for group in groups:
            (group / "cgroup.procs").write_text(str(os.getpid()))

    try:
        yield enter
    finally:
        for group in groups:
            _remove(group)


def _remove(group: Path) -> None:
    """Remove a cgroup with all below it, once its last process is gone."""
    folders = sorted((path for path in [group, *group.rglob("*")] if path.is_dir()), reverse=True)
    for folder in folders:
        for _ in range(100):
            with suppress(OSError):
                folder.rmdir()
                break
            time.sleep(0.02)


@contextmanager
def _boot(root: Path, console: Path, binds: Sequence[Path], enter: Callable[[], None]) -> Iterator[int]:
    with console.open("wb") as output:
        process = subprocess.Popen(
            [
                *("systemd-nspawn", "--register=no", "--keep-unit", "--quiet", "--directory", str(root)),
                *("--private-network", "--boot", "--console=pipe"),
                *(f"--bind-ro={path}" for path in binds),
                f"systemd.unit={TARGET}",
            ],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            preexec_fn=enter,  # noqa: PLW1509 - one small write, in a child of a process with few threads
            start_new_session=True,
        )
    try:
        pid = _first_process(process, console)
        _hand_over_controllers(BootedSystem(root, pid))
        yield pid
    finally:
        with suppress(UnboundLocalError, ProcessLookupError):
            os.kill(pid, signal.SIGKILL)  # takes all of its PID namespace along
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=10)
        process.kill()
        process.wait()


def _first_process(process: subprocess.Popen[bytes], console: Path) -> int:
    """Return the pid, as seen from here, of the init of a system that has booted."""
    found: list[int] = []

    def up() -> bool:
        if process.poll() is not None:
            said = console.read_text(errors="replace").strip()
            raise RuntimeError(f"systemd-nspawn ended: {said[-2000:]}")
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        found[:] = [int(child) for child in children if _name(int(child)) == "systemd"]
        return bool(found) and Path(f"/proc/{found[0]}/root/run/systemd/private").exists()

    try:
        wait_until(up, "systemd-nspawn boots", seconds=BOOT_SECONDS)
        BootedSystem(Path(), found[0]).run("systemctl", "is-system-running", "--wait", check=False)
    except TimeoutError as error:
        raise RuntimeError(f"{error}: {console.read_text(errors='replace')[-2000:]}") from error
    return found[0]


def _hand_over_controllers(machine: BootedSystem) -> None:
    """Let systemd use what systemd-nspawn mounts read-only, although it is the machine's own part alone."""
    homes = _controller_homes()
    for home in homes:
        hierarchy = CGROUPS / home.relative_to(CGROUPS).parts[0]
        machine.run("mount", "-o", "remount,rw,bind", hierarchy)
    if homes:  # it looks for controllers when it starts
        machine.run("systemctl", "daemon-reexec")
        machine.run("systemctl", "is-system-running", "--wait", check=False)


def _name(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return ""


def _call(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
