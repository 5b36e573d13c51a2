"""Turns errors of asyncssh and sockets into this package's errors, each with what to do about it."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import asyncssh

from remote.ssh.errors import (
    HostAuthError,
    HostError,
    HostUnreachableError,
    LinkLostError,
    SshConfigError,
)
from remote.ssh.host import HostSpec


class _KeyVerifier(Protocol):
    known: tuple[str, ...]

    def key_error(self, why: str) -> HostError: ...


@contextmanager
def translate_errors(host: HostSpec, acquaintance: _KeyVerifier) -> Iterator[None]:
    """Turn what fails while connecting into this package's errors."""
    try:
        yield
    except asyncssh.HostKeyNotVerifiable as error:
        raise acquaintance.key_error(str(error)) from error
    except asyncssh.KeyExchangeFailed as error:
        # If a server no longer has a key of the known kind, connecting fails before it shows the new key.
        if acquaintance.known and "host key" in str(error).lower():
            raise acquaintance.key_error(str(error)) from error
        raise HostUnreachableError(f"{host.address}: no common way to encrypt: {error}") from error
    except asyncssh.PermissionDenied as error:
        raise HostAuthError(
            f"{host.address}: it refuses our keys ({error}); check the user's name, and that "
            f"`{host.login_command}` logs in without a question"
        ) from error
    except (asyncssh.ConfigParseError, asyncssh.KeyImportError) as error:
        raise SshConfigError(f"{host.address}: the SSH configuration cannot be used: {error}") from error
    except socket.gaierror as error:
        raise HostUnreachableError(
            f"{host.address}: no such name ({error.strerror}); check its spelling and the network"
        ) from error
    except TimeoutError as error:
        raise HostUnreachableError(
            f"{host.address}: it does not answer; check that it runs and that the network lets port 22 "
            "(or the one given) through"
        ) from error
    except ConnectionRefusedError as error:
        port = "port 22, or that of ssh_config" if host.port is None else f"port {host.port}"
        raise HostUnreachableError(
            f"{host.address}: nothing listens on {port}; check the port, and that its SSH server runs"
        ) from error
    except (asyncssh.Error, OSError) as error:
        raise HostUnreachableError(
            f"{host.address}: no connection: {error or type(error).__name__}"
        ) from error


def link_lost_error(host: HostSpec, error: BaseException | None = None) -> LinkLostError:
    """Return the error for a broken connection."""
    why = f": {error}" if error is not None and str(error) else ""
    return LinkLostError(f"{host.address}: the connection broke{why}")
