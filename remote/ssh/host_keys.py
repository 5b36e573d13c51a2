"""Verifies a host's key strictly, with the user's known_hosts and the home's own file.

No key is ever accepted on first sight. `fetch_host_key` fetches the key without trusting it; `trust_key`
stores it after somebody agreed. A key that differs from the known one is an error of its own, with both
fingerprints.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncssh
from asyncssh.public_key import get_default_certificate_algs, get_default_public_key_algs

from remote.ssh.error_translation import translate_errors
from remote.ssh.errors import HostError, HostKeyChangedError, HostKeyUnknownError, SshConfigError
from remote.ssh.host import HostSpec

_PORT = 22
# Features that an ssh_config may enable and a worker must not have: the agent, variables, a terminal, X11.
_NOTHING_ALONG: dict[str, Any] = {
    "agent_forwarding": False,
    "send_env": [],
    "env": {},
    "request_pty": False,
    "x11_forwarding": False,
}


def known_hosts_file(home: Path) -> Path:
    """Return the file that `trust_key` writes."""
    return home / "known_hosts"


@dataclass(frozen=True, slots=True)
class ShownKey:
    """A key that a host showed. `place` is what it is filed under: name and port as ssh_config has them.

    `peer` tells who showed it: name and port, and the address that was reached unless a jump host is in
    between.
    """

    place: str
    peer: str
    line: str
    fingerprint: str
    known: tuple[str, ...]

    @property
    def is_trusted(self) -> bool:
        """Whether this very key is already known."""
        return self.fingerprint in self.known


class HostKeyVerifier:
    """Looks up one host's keys while connecting, and remembers the known keys and the one shown."""

    def __init__(self, host: HostSpec, files: Sequence[Path]) -> None:
        self._host = host
        self._files = files
        self.place = host.name
        self.known: tuple[str, ...] = ()
        self.shown: str | None = None
        self.address = ""

    def lookup_keys(self, name: str, address: str, port: int | None) -> Any:
        """Return the known keys of a host; asyncssh calls this during the connection."""
        entries = asyncssh.import_known_hosts("\n".join(_read_text(path) for path in self._files))
        found = entries.match(name, address, port)
        self.address = address or self.address
        self.place = name if port in {None, _PORT} else f"[{name}]:{port}"
        self.known = tuple(dict.fromkeys(_key_fingerprint(key) for key in found[0]))
        return found

    def list_algorithms(self, options: asyncssh.SSHClientConnectionOptions) -> list[str]:
        """Return the kinds of keys to request, known kinds first, so that a host shows its known key.

        The other kinds are needed too: without them, a host whose key kind changed would end the connection
        unseen.
        """
        found = self.lookup_keys(
            options.host_key_alias or options.host, "", None if options.port == _PORT else options.port
        )
        known = [kind for key in found[0] for kind in key.sig_algorithms]
        if found[1]:
            known = [*get_default_certificate_algs(), *known]
        others = [] if known else get_default_certificate_algs()
        every = dict.fromkeys([*others, *known, *get_default_public_key_algs()])
        return [kind.decode("ascii") for kind in every]

    def describe_peer(self, options: asyncssh.SSHClientConnectionOptions) -> str:
        """Describe who was reached, for people."""
        name = options.host
        address = f" ({self.address})" if self.address not in {"", name} else ""
        return f"{name}{address}, port {options.port or _PORT},"

    def create_client(self) -> asyncssh.SSHClient:
        """Return the object that asyncssh asks about unknown keys: it always says no."""
        return _StrictClient(self)

    def key_error(self, why: str) -> HostError:
        """Return the error for a host whose key was not accepted."""
        address, shown = self._host.address, self.shown
        remedy = f"compare the fingerprint with one that you trust and run: agentctl host trust {address}"
        if self.known:
            return HostKeyChangedError(
                f"{address}: the key it shows ({shown or why}) is not the one that is known for {self.place} "
                f"({', '.join(self.known)}): it is another machine, or somebody stands in between; "
                f"if it was set up anew, {remedy}",
                fingerprint=shown,
                known=self.known,
            )
        if shown is None:  # a jump host, or a certificate
            return HostKeyUnknownError(f"{address}: {why}; log in once with ssh to see which host is meant")
        return HostKeyUnknownError(
            f"{address}: its key ({shown}) is not known; {remedy}",
            fingerprint=shown,
        )


class _StrictClient(asyncssh.SSHClient):
    """Rejects each key that no file knows, and records it."""

    def __init__(self, acquaintance: HostKeyVerifier) -> None:
        self._acquaintance = acquaintance

    def validate_host_public_key(
        self,
        host: str,  # noqa: ARG002  asyncssh's signature
        addr: str,  # noqa: ARG002
        port: int,  # noqa: ARG002
        key: asyncssh.SSHKey,
    ) -> bool:
        self._acquaintance.shown = _key_fingerprint(key)
        return False


def config_options(config: Path | None) -> dict[str, Any]:
    """Return the options that make asyncssh read this ssh_config instead of the user's, also for jumps."""
    return {"config": [str(config)]} if config else {}


async def connection_options(
    host: HostSpec, home: Path, config: Path | None = None
) -> tuple[asyncssh.SSHClientConnectionOptions, HostKeyVerifier]:
    """Return the connection options, from ssh_config and the user's keys, and the verifier of the host's key.

    Raises:
        SshConfigError: ssh_config, or a key file that it names, cannot be read.
    """
    given = config_options(config)
    if host.user:
        given["username"] = host.user
    if host.port:
        given["port"] = host.port
    try:
        plain = await asyncssh.SSHClientConnectionOptions.construct(host=host.name, **given)
        users = plain.known_hosts or []
        files = [Path(path) for path in users if isinstance(path, str)] or [Path("~/.ssh/known_hosts")]
        acquaintance = HostKeyVerifier(host, [*(path.expanduser() for path in files), known_hosts_file(home)])
        options = await asyncssh.SSHClientConnectionOptions.construct(
            plain,
            known_hosts=acquaintance.lookup_keys,
            client_factory=acquaintance.create_client,
            server_host_key_algs=acquaintance.list_algorithms(plain),
            **_NOTHING_ALONG,
        )
    except (asyncssh.ConfigParseError, asyncssh.KeyImportError, ValueError, OSError) as error:
        raise SshConfigError(f"{host.address}: the SSH configuration cannot be used: {error}") from error
    return options, acquaintance


async def fetch_host_key(
    host: HostSpec, *, home: Path, config: Path | None = None, timeout_s: float = 30.0
) -> ShownKey:
    """Fetch a host's key, without trusting it and without logging in.

    Raises:
        HostError: it cannot be reached.
    """
    options, acquaintance = await connection_options(host, home, config)
    with translate_errors(host, acquaintance):
        async with asyncio.timeout(timeout_s):
            key = await asyncssh.get_server_host_key(
                host.name, options=options, server_host_key_algs="default", **config_options(config)
            )
    if key is None:
        raise HostKeyUnknownError(f"{host.address}: it shows no key")
    line = f"{acquaintance.place} {key.export_public_key('openssh').decode().strip()}"
    return ShownKey(
        acquaintance.place,
        acquaintance.describe_peer(options),
        line,
        _key_fingerprint(key),
        acquaintance.known,
    )


def trust_key(home: Path, key: ShownKey) -> None:
    """Store a key as its host's, replacing other keys that the home knows for it."""
    _write_lines(known_hosts_file(home), [*_other_lines(home, key.place), key.line])


async def distrust_host(
    host: HostSpec, home: Path, config: Path | None = None
) -> tuple[bool, tuple[str, ...]]:
    """Remove what `trust_key` stored for a host.

    Return whether there was anything, and which keys are still known, from the user's own files. The host is
    not contacted.

    Raises:
        SshConfigError: ssh_config cannot be read.
    """
    _, acquaintance = await connection_options(host, home, config)
    path = known_hosts_file(home)
    others = _other_lines(home, acquaintance.place)
    if len(others) == len(_read_text(path).splitlines()):
        return False, acquaintance.known
    _write_lines(path, others)
    _, acquaintance = await connection_options(host, home, config)
    return True, acquaintance.known


def _other_lines(home: Path, place: str) -> list[str]:
    """Return the home's lines about other places."""
    lines = _read_text(known_hosts_file(home)).splitlines()
    return [line for line in lines if line.split(maxsplit=1)[:1] != [place]]


def _write_lines(path: Path, lines: Sequence[str]) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    part.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    part.replace(path)


def _key_fingerprint(key: asyncssh.SSHKey) -> str:
    return f"{key.algorithm.decode()} {key.get_fingerprint()}"


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return ""
