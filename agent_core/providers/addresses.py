"""Which addresses may be called: any in production, but only this machine's own in tests.

Tests set the variable below for themselves and for the processes that they start. If it is set, a provider
refuses every other address before it sends anything, with an error that is never retried.
"""

from __future__ import annotations

import os
from ipaddress import ip_address
from urllib.parse import urlsplit

LOOPBACK_ONLY = "NKI_KERNEL_AGENT_LOOPBACK_ONLY"
"""If this variable is set to anything, no model outside this machine is called."""


class RealRequestForbidden(RuntimeError):  # noqa: N818 - the names of this tree say what happened
    """A call to a real model was about to be made where that is forbidden."""


def is_loopback(url: str) -> bool:
    """Return whether the address is this machine's own."""
    host = urlsplit(url).hostname or ""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def public_address(url: str) -> str:
    """Return an address for display, without parts that may be secret, such as a password."""
    parts = urlsplit(url)
    host = parts.hostname or "?"
    try:
        port = parts.port
    except ValueError:  # not a number, so not a port
        port = None
    named = f"[{host}]" if ":" in host else host
    return f"{parts.scheme}://{named}" if port is None else f"{parts.scheme}://{named}:{port}"


def require_allowed(url: str) -> None:
    """Refuse an address that must not be called here.

    Raises:
        RealRequestForbidden: only this machine may be called, and the address is another one.
    """
    if os.environ.get(LOOPBACK_ONLY) and not is_loopback(url):
        raise RealRequestForbidden(
            f"{urlsplit(url).hostname} would have been asked, and {LOOPBACK_ONLY} forbids real requests"
        )
