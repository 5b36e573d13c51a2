"""Real SSH servers for tests: one on a loopback port, with keys of its own, that can be made to fail.

`Sshd` is a context manager: it makes its folder, starts, and ends all that came of it. `link` is the user's
side: an ssh_config that names the key; `trust_host` has a project home know the host.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pwd
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Self

from remote.hostside import process_tree
from remote.ssh.host import HostSpec
from remote.ssh.host_keys import fetch_host_key, trust_key
from remote.ssh.link import LinkTiming, SshLink
from remote.ssh.worker_archive import WorkerArchive, build_worker_archive

SOON_S = 60.0
_PROGRAM = "/usr/sbin/sshd"
_PRIVILEGE_FOLDER = Path("/run/sshd")
_CONFIG = """
ListenAddress 127.0.0.1
Port {port}
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/authorized_keys
PidFile {folder}/pid
StrictModes no
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin yes
PrintMotd no
LogLevel VERBOSE
MaxStartups 200
{extra}
"""
QUICK = LinkTiming(
    connect_s=20, login_s=30, keepalive_s=1, keepalives=3, attempts=3, backoff_s=0.1, backoff_most_s=1
)


def free_port() -> int:
    """A loopback port that nobody listens on, of those that no outgoing connection is given meanwhile."""
    while True:
        port = random.randrange(15_000, 32_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def make_key(path: Path, kind: str = "ed25519") -> str:
    """Make a key pair and return its public line."""
    path.unlink(missing_ok=True)
    command = ["ssh-keygen", "-q", "-t", kind, "-N", "", "-C", "tests", "-f", str(path)]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
    return path.with_name(f"{path.name}.pub").read_text()


class Sshd:
    """One server; `environment` is what its sessions have, `inside` a command to run it in (a namespace)."""

    def __init__(
        self,
        folder: Path,
        *,
        environment: Mapping[str, str] | None = None,
        inside: Sequence[str] = (),
        extra: str = "",
    ) -> None:
        self.folder = folder
        self.port = free_port()
        self.cuts = 0
        self.inside = inside
        self.workdir = folder / "host"
        self.leases = folder / "leases"
        folder.mkdir(parents=True, exist_ok=True)
        if os.geteuid() == 0:
            _PRIVILEGE_FOLDER.mkdir(mode=0o755, exist_ok=True)
        make_key(folder / "host_key")
        (folder / "authorized_keys").write_text(make_key(folder / "user_key"))
        # A home without the files that this user's shell would run at each login.
        (folder / "user").mkdir(exist_ok=True)
        own = {"NKI_KERNEL_AGENT_LEASES": str(self.leases), "HOME": str(folder / "user")}
        variables = {**own, **(environment or {})}
        setting = " ".join(f'{name}="{value}"' for name, value in variables.items())
        self.config = folder / "sshd_config"
        self.config.write_text(
            _CONFIG.format(port=self.port, folder=folder, extra=f"SetEnv {setting}\n{extra}")
        )
        self.ssh_config = folder / "ssh_config"
        self.ssh_config.write_text(f"IdentityFile {folder}/user_key\nIdentitiesOnly yes\n")
        self._server: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        log = (self.folder / "log").open("ab")
        command = [*self.inside, _PROGRAM, "-D", "-e", "-f", str(self.config)]
        self._server = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
        log.close()
        if not self.inside:
            wait_for(lambda: answers(self.port), f"sshd on {self.port}: {self.log()[-500:]}")

    def stop(self) -> None:
        """End the server, its connections and every process of its jobs."""
        if self._server is not None:
            self.resume()
            everyone = [*self.processes(), *self.workers()]
            self._server.kill()
            self._server.wait()
            self._server = None
            for pid in everyone:
                _signal(pid, signal.SIGKILL)
        wait_for(lambda: not self._kill_workers(), "the end of the host's processes")

    def restart(self) -> None:
        """Kill the server with its connections and start it again; jobs live on."""
        assert self._server is not None
        everyone = self.processes()
        for pid in everyone:
            _signal(pid, signal.SIGKILL)
        self._server.wait()
        self.start()

    def change_key(self, kind: str = "ed25519") -> None:
        """Become another machine at the same address."""
        make_key(self.folder / "host_key", kind)
        self.restart()

    def certify(self, authority: Path) -> None:
        """Show a certificate of an authority instead of the bare key."""
        public = self.folder / "host_key.pub"
        command = [
            "ssh-keygen",
            "-q",
            "-s",
            str(authority),
            "-I",
            "tests",
            "-h",
            "-n",
            "127.0.0.1",
            str(public),
        ]
        subprocess.run(command, check=True, stdin=subprocess.DEVNULL, capture_output=True)
        self.config.write_text(f"{self.config.read_text()}HostCertificate {self.folder}/host_key-cert.pub\n")
        self.restart()

    def running(self, name: str) -> list[int]:
        """The processes of that name that came over connections."""
        below = set(self.connections())
        return [
            process.pid
            for process in process_tree.list_processes()
            if process.pid in below and process.name == name
        ]

    def _kill_workers(self) -> list[int]:
        left = self.workers()
        for pid in left:
            _signal(pid, signal.SIGKILL)
        return left

    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    @property
    def pid(self) -> int:
        """The server's process, or that of the machine it is in; -1, of nobody, while it is off."""
        return self._server.pid if self._server is not None else -1

    def processes(self) -> list[int]:
        """The server's own process and those of its connections, with all that they started."""
        assert self._server is not None
        return [self._server.pid, *descendants(self._server.pid)]

    def connections(self) -> list[int]:
        """The processes that serve connections."""
        assert self._server is not None
        return descendants(self._server.pid)

    def cut(self) -> None:
        """Kill the processes that serve connections: home sees its connections end."""
        for pid in self.connections():
            _signal(pid, signal.SIGKILL)
            self.cuts += 1

    def freeze(self) -> None:
        """Stop the server and its connections: home sees nothing at all."""
        for pid in self.processes():
            _signal(pid, signal.SIGSTOP)

    def resume(self) -> None:
        if self._server is not None:
            for pid in self.processes():
                _signal(pid, signal.SIGCONT)

    def workers(self) -> list[int]:
        """All living processes of this host's worker and of its jobs, wherever they hang."""
        return [process.pid for process in process_tree.list_processes() if self._ours(process.pid)]

    def _ours(self, pid: int) -> bool:
        with contextlib.suppress(OSError):
            variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            return f"NKI_KERNEL_AGENT_LEASES={self.leases}".encode() in variables
        return False

    def host(self, **options: object) -> HostSpec:
        return HostSpec.parse(
            f"{pwd.getpwuid(os.geteuid()).pw_name}@127.0.0.1:{self.port}",
            **{"python": sys.executable, "workdir": str(self.workdir), **options},
        )

    def link(
        self, home: Path, *, timing: LinkTiming = QUICK, port: int | None = None, **options: object
    ) -> SshLink:
        """A link to it, or to a proxy before it at `port`."""
        host = self.host(**options)
        if port is not None:
            host = HostSpec(
                name=host.name,
                user=host.user,
                port=port,
                python=host.python,
                workdir=host.workdir,
                cores=host.cores,
            )
        return SshLink(host, home=home, timing=timing, config=self.ssh_config)


async def trust_host(link: SshLink, home: Path) -> SshLink:
    """Return a link whose host the home trusts from now on."""
    trust_key(home, await fetch_host_key(link.host, home=home, config=link.config))
    return link


def answers(port: int) -> bool:
    """Whether an SSH server speaks on a loopback port."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=5) as peer:
        return peer.recv(4) == b"SSH-"
    return False


def descendants(root: int) -> list[int]:
    """Process ids of all that descend from `root`, living."""
    return [process.pid for process in process_tree._find_descendants(root, process_tree.list_processes())]


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def wait_for(condition: Callable[[], object], what: str, within_s: float = SOON_S) -> None:
    """Wait until `condition` is true."""
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, f"waited {within_s:g} s for {what}"
        time.sleep(0.02)


async def until(condition: Callable[[], object], what: str, within_s: float = SOON_S) -> None:
    """Wait until `condition` is true, letting others run."""
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, f"waited {within_s:g} s for {what}"
        await asyncio.sleep(0.02)


def steps_of_tests(*, clock: bool = False) -> WorkerArchive:
    """The worker with the steps of tests; with `clock`, one whose clocks a test can set."""
    here = Path(__file__).parent
    extra = {"remote/hostside/steps/__init__.py": (here / "host_steps.py").read_text(encoding="utf-8")}
    if clock:
        extra["__main__.py"] = (here / "host_clock.py").read_text(encoding="utf-8")
    return build_worker_archive(extra)
