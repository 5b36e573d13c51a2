"""Turns hosts of a configuration into hosts that can be reached; opens no connection."""

from __future__ import annotations

from collections.abc import Iterable

from remote.ssh.host import DEFAULT_WORKDIR, HostSpec
from state.model import HostConfig


def host_from_config(config: HostConfig) -> HostSpec:
    """Return the host that an entry of a configuration names.

    Raises:
        BadHostError: its address, or another field, is invalid.
    """
    return HostSpec.parse(
        config.address,
        tags=frozenset(config.tags),
        python=config.python,
        workdir=config.workdir or DEFAULT_WORKDIR,
        cores=config.cores,
        slots=config.slots,
    )


def select_hosts(addresses: Iterable[str], configured: Iterable[HostConfig]) -> list[HostSpec]:
    """Return the hosts of these addresses with their configured fields; all hosts if there are none.

    Raises:
        BadHostError: an address is invalid.
    """
    known = {host.address: host for host in map(host_from_config, configured)}
    wanted = [HostSpec.parse(text) for text in addresses]
    return [known.get(host.address, host) for host in wanted] or list(known.values())
